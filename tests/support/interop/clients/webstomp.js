// webstomp-client over a pair of brokers, with the protocols that it offers by itself: the program connects again.
'use strict';

const { WebSocket } = require('ws');
const webstomp = require('webstomp-client');

const CHAINS = 10;
const PAUSE_MS = 3;
const [addresses, queue] = process.argv.slice(2);
const urls = addresses.split(',');
const producer = `webstomp-${Math.random()}`; // a name that is never used again
const write = (line) => console.log(JSON.stringify(line));
const unconfirmed = new Set();
let client = null;
let turn = 0;
let last = 0;
let isOver = false;
process.stdin.resume().on('end', () => { isOver = true; });
global.WebSocket = WebSocket;

function publish(number) {
  const receipt = `receipt-${number}`;
  const headers = { persistent: 'true', receipt, 'tandemmq-send-id': `${producer}:${number}` };
  client.send(queue, String(number), headers);
}

function next() {
  if (!isOver) {
    last += 1;
    unconfirmed.add(last);
    write({ sent: last });
    if (client && client.connected) publish(last);
  } else if (unconfirmed.size === 0) {
    write({ done: true });
  }
}

function connect() {
  const made = webstomp.client(urls[turn % urls.length], { debug: false });
  turn += 1;
  made.ws.on('error', () => {}); // refused: without a listener, the process ends
  made.onreceipt = (frame) => {
    const number = Number(frame.headers['receipt-id'].slice('receipt-'.length));
    if (!unconfirmed.delete(number)) return;
    write({ confirmed: number });
    setTimeout(next, PAUSE_MS);
  };
  made.connect({}, () => {
    client = made;
    client.subscribe(queue, (message) => {
      write({ received: Number(message.body), id: `${message.headers['message-id']} ${message.headers.timestamp}` });
      message.ack();
    }, { ack: 'client-individual' });
    unconfirmed.forEach(publish); // what has no receipt is sent again
  }, (error) => {
    if (error.command === 'ERROR') write({ note: error.headers.message });
    else setTimeout(connect, 100); // the connection is closed, or was refused
  });
}

connect();
for (let chain = 0; chain < CHAINS; chain += 1) next();
