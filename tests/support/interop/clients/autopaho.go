// autopaho (MQTT 5) over a pair of brokers, QoS 2 both ways.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"
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
	ctx := context.Background()
	topic := os.Args[2]
	var urls []*url.URL
	for _, address := range strings.Split(os.Args[1], ",") {
		parsed, err := url.Parse(address)
		if err != nil {
			panic(err)
		}
		urls = append(urls, parsed)
	}
	subscribed := make(chan struct{})
	var once sync.Once
	connection, err := autopaho.NewConnection(ctx, autopaho.ClientConfig{
		ServerUrls:            urls,
		KeepAlive:             20,
		SessionExpiryInterval: 3600,
		ReconnectBackoff:      autopaho.NewConstantBackoff(100 * time.Millisecond),
		OnConnectionUp: func(manager *autopaho.ConnectionManager, _ *paho.Connack) {
			subscription := []paho.SubscribeOptions{{Topic: topic, QoS: 2}}
			if _, err := manager.Subscribe(ctx, &paho.Subscribe{Subscriptions: subscription}); err != nil {
				write(line{"note": err.Error()})
				return
			}
			once.Do(func() { close(subscribed) })
		},
		ClientConfig: paho.ClientConfig{
			ClientID: "autopaho",
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){
				func(received paho.PublishReceived) (bool, error) {
					number, err := strconv.Atoi(string(received.Packet.Payload))
					write(line{"received": number})
					return true, err
				},
			},
		},
	})
	if err != nil {
		panic(err)
	}
	<-subscribed

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
				publish(ctx, connection, topic, number)
				time.Sleep(pause)
			}
		}()
	}
	ends.Wait()
	write(line{"done": true})
	select {}
}

// publish returns when the message is confirmed, or belongs to the session of the client, which sends it again.
func publish(ctx context.Context, connection *autopaho.ConnectionManager, topic string, number int64) {
	for {
		message := &paho.Publish{QoS: 2, Topic: topic, Payload: []byte(strconv.FormatInt(number, 10))}
		_, err := connection.Publish(ctx, message)
		switch {
		case err == nil:
			write(line{"confirmed": number})
			return
		case errors.Is(err, autopaho.ConnectionDownError):
			if err := connection.AwaitConnection(ctx); err != nil {
				panic(err)
			}
		default:
			write(line{"note": err.Error()})
			return
		}
	}
}
