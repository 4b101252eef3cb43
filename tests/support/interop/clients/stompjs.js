// @stomp/stompjs over a pair of brokers, in Node (TCP or WebSocket) and in a browser.
'use strict';

const CHAINS = 10;
const PAUSE_MS = 3;

// Sends and receives until the function that it returns is called. `connect`: how to connect, options of the Client.
function run(stomp, queue, write, connect) {
  const producer = `stompjs-${Math.random()}`; // a name that is never used again
  const unconfirmed = new Set();
  let last = 0;
  let isOver = false;

  const client = new stomp.Client({
    ...connect(() => client),
    reconnectDelay: 100,
    onConnect() {
      client.subscribe(queue, (message) => {
        write({ received: Number(message.body), id: `${message.headers['message-id']} ${message.headers.timestamp}` });
        message.ack();
      }, { ack: 'client-individual' });
      unconfirmed.forEach(publish); // what has no receipt is sent again
    },
    onStompError: (frame) => write({ note: frame.headers.message }),
  });

  function publish(number) {
    const receipt = `receipt-${number}`;
    client.watchForReceipt(receipt, () => {
      if (!unconfirmed.delete(number)) return;
      write({ confirmed: number });
      setTimeout(next, PAUSE_MS);
    });
    const headers = { persistent: 'true', receipt, 'tandemmq-send-id': `${producer}:${number}` };
    client.publish({ destination: queue, body: String(number), headers });
  }

  function next() {
    if (!isOver) {
      last += 1;
      unconfirmed.add(last);
      write({ sent: last });
      if (client.connected) publish(last);
    } else if (unconfirmed.size === 0) {
      write({ done: true });
    }
  }

  client.activate();
  for (let chain = 0; chain < CHAINS; chain += 1) next();
  return () => { isOver = true; };
}

if (typeof require === 'function') {
  const stomp = require('@stomp/stompjs');
  const [addresses, queue] = process.argv.slice(2);
  const urls = addresses.split(',');
  let turn = -1;
  const url = () => urls[(turn += 1) % urls.length];

  const connect = (client) => {
    if (addresses.startsWith('ws')) {
      global.WebSocket = require('ws').WebSocket;
      return { beforeConnect: () => { client().brokerURL = url(); } };
    }
    const { TCPWrapper } = require('@stomp/tcp-wrapper');
    return {
      webSocketFactory() {
        const { hostname, port } = new URL(url());
        return new TCPWrapper(hostname, Number(port));
      },
    };
  };
  const stop = run(stomp, queue, (line) => console.log(JSON.stringify(line)), connect);
  process.stdin.resume().on('end', stop);
}
