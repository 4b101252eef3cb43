// go-amqp (AMQP 1.0) over a pair of brokers. The library does not reconnect. The program does, and sends messages without
// an outcome again.
package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/Azure/go-amqp"
)

const (
	chains  = 10
	credit  = 50
	pause   = 3 * time.Millisecond
	between = 50 * time.Millisecond
	patient = 5 * time.Second
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

// links is one connection with its links.
type links struct {
	connection *amqp.Conn
	sender     *amqp.Sender
	receiver   *amqp.Receiver
}

// pair is a pair of brokers, with the links of the present connection.
type pair struct {
	addresses []string
	queue     string
	mutex     sync.Mutex
	turn      int
	now       *links
}

// instead returns new links in place of these, which failed.
func (p *pair) instead(failed *links) *links {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.now != failed {
		return p.now
	}
	if failed != nil {
		_ = failed.connection.Close()
	}
	for {
		address := p.addresses[p.turn%len(p.addresses)]
		p.turn++
		opened, err := p.open(address)
		if err == nil {
			p.now = opened
			return opened
		}
		write(line{"note": err.Error()})
		time.Sleep(between)
	}
}

func (p *pair) open(address string) (*links, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	connection, err := amqp.Dial(ctx, address, &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
	if err != nil {
		return nil, err
	}
	session, err := connection.NewSession(ctx, nil)
	if err != nil {
		_ = connection.Close()
		return nil, err
	}
	sender, err := session.NewSender(ctx, p.queue, nil)
	if err == nil {
		receiver, failure := session.NewReceiver(ctx, p.queue, &amqp.ReceiverOptions{Credit: credit})
		if failure == nil {
			return &links{connection, sender, receiver}, nil
		}
		err = failure
	}
	_ = connection.Close()
	return nil, err
}

func main() {
	ctx := context.Background()
	both := &pair{addresses: strings.Split(os.Args[1], ","), queue: os.Args[2]}
	first := both.instead(nil)

	go func() {
		present := first
		for {
			message, err := present.receiver.Receive(ctx, nil)
			if err != nil {
				present = both.instead(present)
				continue
			}
			text, _ := message.Value.(string)
			number, err := strconv.Atoi(text)
			if err != nil {
				panic(err)
			}
			write(line{"received": number, "id": message.Properties.MessageID})
			if err := present.receiver.AcceptMessage(ctx, message); err != nil {
				write(line{"note": err.Error()}) // the message is redelivered
			}
		}
	}()

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
			present := first
			for !isOver.Load() {
				number := last.Add(1)
				write(line{"sent": number})
				text := strconv.FormatInt(number, 10)
				for {
					message := &amqp.Message{
						Header:     &amqp.MessageHeader{Durable: true},
						Properties: &amqp.MessageProperties{MessageID: "n" + text},
						Value:      text,
					}
					err := present.sender.Send(ctx, message, nil) // returns when the broker has it
					if err == nil {
						break
					}
					write(line{"note": err.Error()})
					present = both.instead(present)
				}
				write(line{"confirmed": number})
				time.Sleep(pause)
			}
		}()
	}
	ends.Wait()
	write(line{"done": true})
	select {}
}
