// paho.mqtt.golang (MQTT 3.1.1) over a pair of brokers, QoS 2 both ways.
package main

import (
	"encoding/json"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
)

const (
	chains = 10
	pause  = 3 * time.Millisecond
)

type line map[string]any

var (
	out   = json.NewEncoder(os.Stdout)
	mutex sync.Mutex
)

func write(what line) {
	mutex.Lock()
	defer mutex.Unlock()
	if err := out.Encode(what); err != nil {
		panic(err)
	}
}

func main() {
	topic := os.Args[2]
	options := mqtt.NewClientOptions().SetClientID("paho-go").SetCleanSession(false)
	options.SetConnectRetry(true).SetConnectRetryInterval(100 * time.Millisecond)
	options.SetMaxReconnectInterval(200 * time.Millisecond)
	for _, address := range strings.Split(os.Args[1], ",") {
		options.AddBroker(address)
	}
	options.SetDefaultPublishHandler(func(_ mqtt.Client, message mqtt.Message) {
		number, err := strconv.Atoi(string(message.Payload()))
		if err != nil {
			panic(err)
		}
		write(line{"received": number, "id": strconv.Itoa(int(message.MessageID()))})
	})
	client := mqtt.NewClient(options)
	if token := client.Connect(); token.Wait() && token.Error() != nil {
		panic(token.Error())
	}
	if token := client.Subscribe(topic, 2, nil); token.Wait() && token.Error() != nil {
		panic(token.Error())
	}

	var isOver atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		isOver.Store(true)
	}()
	var last atomic.Int64
	var ends sync.WaitGroup
	for range chains {
		ends.Add(1)
		go func() {
			defer ends.Done()
			for !isOver.Load() {
				number := last.Add(1)
				write(line{"sent": number})
				token := client.Publish(topic, 2, false, strconv.FormatInt(number, 10))
				if token.Wait() && token.Error() != nil {
					write(line{"note": token.Error().Error()})
				} else {
					write(line{"confirmed": number})
				}
				time.Sleep(pause)
			}
		}()
	}
	ends.Wait()
	write(line{"done": true})
	select {}
}
