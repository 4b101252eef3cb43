// Send and receive over a pair of brokers by AMQP 1.0 with rhea (npm install rhea). The program continues when the
// master dies.
//
//   node pair_rhea.js send    a:5672,b:5672 orders 1000
//   node pair_rhea.js receive a:5672,b:5672 orders 1000
//
// rhea connects to the next address and opens its links again. A message without an outcome is sent again: the broker
// may store it twice, so the receiver ignores messages that it has seen.
'use strict';

const rhea = require('rhea');

const [what, hosts, queue, count] = process.argv.slice(2);

const servers = hosts.split(',').map((each) => {
  const [host, port] = each.split(':');
  return { host, port: Number(port) };
});
let attempt = 0;
const connection = rhea.connect({
  connection_details: () => servers[attempt++ % servers.length],
  initial_reconnect_delay: 10,
  max_reconnect_delay: 200,
});

function send() {
  const sender = connection.open_sender(queue);
  let number = 1;
  let delivery = null; // delivery of this number; null: it is not sent
  const next = () => {
    if (delivery === null && sender.sendable()) {
      delivery = sender.send({ durable: true, body: `order ${number}` });
    }
  };
  connection.on('sendable', next);
  connection.on('accepted', (context) => {
    if (context.delivery !== delivery) return; // a delivery of a lost connection
    delivery = null;
    number += 1;
    if (number > Number(count)) {
      connection.close();
    } else {
      next();
    }
  });
  connection.on('rejected', (context) => {
    throw new Error(`rejected: ${context.delivery.remote_state.error}`);
  });
  connection.on('disconnected', () => {
    delivery = null; // the broker may have the message or not: send it again
  });
}

function receive() {
  const seen = new Set();
  connection.open_receiver({ source: queue, credit_window: 100, autoaccept: false });
  connection.on('message', ({ message, delivery }) => {
    if (!seen.has(message.body)) {
      console.log(message.body);
      seen.add(message.body);
    }
    delivery.accept();
    if (seen.size === Number(count)) {
      connection.close();
    }
  });
}

(what === 'send' ? send : receive)();
