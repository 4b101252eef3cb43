// Persistent messages over MQTT 3.1.1 (paho.mqtt.golang) or into JetStream (nats.go), until standard input ends.
// bench/peers/loads.py states what it reads and writes.
//
//	load mqtt HOST PORT SENDERS CONSUMERS WINDOW BYTES QOS
//	load nats HOST PORT SENDERS CONSUMERS WINDOW BYTES
//
// Each sender and each consumer has its own connection, four topics share them. Sessions are kept (clean session 0). A
// sender has at most WINDOW messages outstanding. Senders stop while waitingMax messages are sent and not received.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	queues     = 4
	waitingMax = 10_000
	stall      = 30 * time.Second
)

var (
	sent, confirmed, received atomic.Int64
	isGoing                   atomic.Bool
	steps, ages               histogram
	problem                   atomic.Pointer[string]
	begin                     = time.Now()
)

// Microseconds in 32 steps for each power of two, so within 3 %.
type histogram struct{ counts [1280]atomic.Int64 }

func (own *histogram) add(duration time.Duration) {
	micros := uint64(max(0, duration.Microseconds()))
	shift := max(0, bits.Len64(micros)-6)
	own.counts[min(len(own.counts)-1, shift*32+int(micros>>shift))].Add(1)
}

// The median and the 99th percentile since the last call; nil without a value.
func (own *histogram) taken() []int64 {
	var counts [1280]int64
	var all int64
	for place := range own.counts {
		counts[place] = own.counts[place].Swap(0)
		all += counts[place]
	}
	if all == 0 {
		return nil
	}
	percentile := func(share float64) int64 {
		var seen int64
		for place, count := range counts {
			if seen += count; float64(seen) >= float64(all)*share {
				shift := max(0, place/32-1)
				return int64(place-shift*32) << shift
			}
		}
		return 0
	}
	return []int64{percentile(0.5), percentile(0.99)}
}

func failed(what error) {
	if what != nil {
		text := what.Error()
		problem.CompareAndSwap(nil, &text)
	}
}

func say(what any) {
	failed(json.NewEncoder(os.Stdout).Encode(what))
}

func sayFigures() {
	problems := []string{}
	if found := problem.Load(); found != nil {
		problems = append(problems, *found)
	}
	say(map[string]any{
		"nanos": time.Since(begin).Nanoseconds(), "sent": confirmed.Load(), "received": received.Load(),
		"step_us": steps.taken(), "receive_us": ages.taken(), "problems": problems,
	})
}

// A token of paho, or a future of JetStream.
type outstanding struct {
	at   time.Duration
	wait func() error
}

// Publish whenever the window has room; the answers are awaited in their order.
func sender(window, size int, publish func(body []byte) (func() error, error)) {
	open := make(chan outstanding, window)
	room := make(chan struct{}, window)
	go func() {
		for each := range open {
			if problem := each.wait(); problem != nil {
				failed(problem)
				return
			}
			steps.add(time.Since(begin) - each.at)
			confirmed.Add(1)
			<-room
		}
	}()
	go func() {
		for problem.Load() == nil {
			if !isGoing.Load() || sent.Load()-received.Load() >= waitingMax {
				time.Sleep(time.Millisecond)
				continue
			}
			room <- struct{}{}
			body := make([]byte, size)
			at := time.Since(begin)
			binary.BigEndian.PutUint64(body, uint64(at))
			sent.Add(1)
			wait, problem := publish(body)
			if problem != nil {
				failed(problem)
				return
			}
			open <- outstanding{at, wait}
		}
	}()
}

func arrived(body []byte) {
	ages.add(time.Since(begin) - time.Duration(binary.BigEndian.Uint64(body)))
	received.Add(1)
}

func connected(address, name string) mqtt.Client {
	options := mqtt.NewClientOptions().AddBroker("tcp://" + address).SetClientID(name).SetCleanSession(false)
	options.SetUsername("guest").SetPassword("guest").SetAutoReconnect(false)
	options.SetConnectionLostHandler(func(_ mqtt.Client, problem error) { failed(problem) })
	client := mqtt.NewClient(options)
	failed(answered(client.Connect()))
	return client
}

func answered(token mqtt.Token) error {
	token.Wait()
	return token.Error()
}

func overMqtt(address string, senders, consumers, window, size int, qos byte) {
	for number := range consumers {
		client := connected(address, fmt.Sprintf("bench-consumer-%d", number))
		topic := fmt.Sprintf("bench/%d", number%queues)
		failed(answered(client.Subscribe(topic, qos, func(_ mqtt.Client, message mqtt.Message) { arrived(message.Payload()) })))
	}
	for number := range senders {
		client := connected(address, fmt.Sprintf("bench-sender-%d", number))
		topic := fmt.Sprintf("bench/%d", number%queues)
		sender(window, size, func(body []byte) (func() error, error) {
			token := client.Publish(topic, qos, false, body)
			return func() error { return answered(token) }, nil
		})
	}
}

func overNats(address string, senders, consumers, window, size int) {
	open := func() jetstream.JetStream {
		client, problem := nats.Connect("nats://"+address, nats.NoReconnect())
		failed(problem)
		stream, problem := jetstream.New(client, jetstream.WithPublishAsyncMaxPending(window))
		failed(problem)
		return stream
	}
	background := context.Background()
	first := open()
	for number := range queues {
		_, problem := first.CreateStream(background, jetstream.StreamConfig{
			Name: fmt.Sprintf("bench-%d", number), Subjects: []string{fmt.Sprintf("bench.%d", number)},
			Storage: jetstream.FileStorage, Retention: jetstream.WorkQueuePolicy,
		})
		failed(problem)
	}
	for number := range consumers {
		configuration := jetstream.ConsumerConfig{Durable: "own", AckPolicy: jetstream.AckExplicitPolicy}
		consumer, problem := open().CreateOrUpdateConsumer(background, fmt.Sprintf("bench-%d", number%queues), configuration)
		if failed(problem); problem != nil {
			return
		}
		_, problem = consumer.Consume(func(message jetstream.Msg) {
			failed(message.Ack())
			arrived(message.Data())
		})
		failed(problem)
	}
	for number := range senders {
		stream, subject := open(), fmt.Sprintf("bench.%d", number%queues)
		sender(window, size, func(body []byte) (func() error, error) {
			future, problem := stream.PublishAsync(subject, body)
			return func() error {
				select {
				case <-future.Ok():
					return nil
				case problem := <-future.Err():
					return problem
				}
			}, problem
		})
	}
}

// Returns when all that was sent is confirmed and received.
func pause() {
	isGoing.Store(false)
	last, moved := int64(-1), time.Now()
	for problem.Load() == nil {
		time.Sleep(2 * time.Millisecond)
		if now := confirmed.Load() + received.Load(); now != last {
			last, moved = now, time.Now()
			continue
		}
		if time.Since(moved) > 20*time.Millisecond && confirmed.Load() == sent.Load() && received.Load() >= sent.Load() {
			return
		}
		if time.Since(moved) > stall {
			failed(fmt.Errorf("sent %d, confirmed %d, received %d", sent.Load(), confirmed.Load(), received.Load()))
		}
	}
}

func main() {
	var numbers []int
	for _, each := range os.Args[4:] {
		number, problem := strconv.Atoi(each)
		failed(problem)
		numbers = append(numbers, number)
	}
	address := os.Args[2] + ":" + os.Args[3]
	if os.Args[1] == "mqtt" {
		overMqtt(address, numbers[0], numbers[1], numbers[2], numbers[3], byte(numbers[4]))
	} else {
		overNats(address, numbers[0], numbers[1], numbers[2], numbers[3])
	}
	say("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); sayFigures() {
		switch command, _, _ := strings.Cut(lines.Text(), " "); command {
		case "go":
			isGoing.Store(true)
		case "pause":
			pause()
		}
	}
}
