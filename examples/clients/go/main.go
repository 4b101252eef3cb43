// Send and receive over a pair of brokers with go-stomp. The program continues when the master dies.
//
//	go run . send    a:61613,b:61613 /queue/orders 1000
//	go run . receive a:61613,b:61613 /queue/orders 1000
//
// go-stomp handles one connection. This program finds the master among the hosts, and sends messages again.
package main

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-stomp/stomp/v3"
)

const (
	dialTimeout    = 2 * time.Second
	receiptTimeout = 10 * time.Second
	pause          = 50 * time.Millisecond
	heartBeat      = 5 * time.Second
)

// connect returns a connection to the master. A standby refuses connections; then the next host is tried.
func connect(hosts []string) *stomp.Conn {
	for {
		for _, host := range hosts {
			peer, err := net.DialTimeout("tcp", host, dialTimeout)
			if err != nil {
				continue
			}
			connection, err := stomp.Connect(peer,
				stomp.ConnOpt.HeartBeat(heartBeat, heartBeat),
				stomp.ConnOpt.HeartBeatGracePeriodMultiplier(1.5),
				stomp.ConnOpt.RcvReceiptTimeout(receiptTimeout))
			if err == nil {
				return connection
			}
			peer.Close()
		}
		time.Sleep(pause)
	}
}

func send(hosts []string, queue string, count int) {
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		panic(err)
	}
	producer := fmt.Sprintf("shop-%x", random) // a name that is never used again
	connection := connect(hosts)
	for number := 1; number <= count; number++ {
		for {
			// Send returns when the receipt has arrived. After an error, send the same message with the same number.
			err := connection.Send(queue, "text/plain", []byte(fmt.Sprintf("order %d", number)),
				stomp.SendOpt.Receipt,
				stomp.SendOpt.NoContentLength, // JMS clients get a text message
				stomp.SendOpt.Header("persistent", "true"),
				stomp.SendOpt.Header("tandemmq-send-id", fmt.Sprintf("%s:%d", producer, number)))
			if err == nil {
				break
			}
			fmt.Fprintln(os.Stderr, err)
			connection.MustDisconnect()
			connection = connect(hosts)
		}
	}
	connection.Disconnect()
}

func receive(hosts []string, queue string, count int) {
	seen := map[string]bool{}
	for len(seen) < count {
		connection := connect(hosts)
		subscription, err := connection.Subscribe(queue, stomp.AckClientIndividual,
			stomp.SubscribeOpt.Header("activemq.prefetchSize", "100"))
		for err == nil && len(seen) < count {
			message, open := <-subscription.C
			if !open || message.Err != nil {
				break // the connection is lost; unacknowledged messages are delivered again
			}
			if body := string(message.Body); !seen[body] {
				fmt.Println(body)
				seen[body] = true
			}
			err = connection.Ack(message)
		}
		if len(seen) == count {
			connection.Disconnect() // its receipt confirms the acknowledgements
		} else {
			connection.MustDisconnect()
		}
	}
}

func main() {
	hosts := strings.Split(os.Args[2], ",")
	count, err := strconv.Atoi(os.Args[4])
	if err != nil {
		panic(err)
	}
	if os.Args[1] == "send" {
		send(hosts, os.Args[3], count)
	} else {
		receive(hosts, os.Args[3], count)
	}
}
