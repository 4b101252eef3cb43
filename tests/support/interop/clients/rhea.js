// rhea (AMQP 1.0) over a pair of brokers. It reconnects and attaches its links again; messages without an outcome are sent
// again.
'use strict';

const rhea = require('rhea');

const WINDOW = 50;
const [addresses, queue] = process.argv.slice(2);
const servers = addresses.split(',').map((address) => {
  const { hostname, port } = new URL(address);
  return { host: hostname, port: Number(port), transport: 'tcp' };
});
const write = (line) => console.log(JSON.stringify(line));
const open = new Map(); // number of each delivery without an outcome
let again = [];
let last = 0;
let turn = 0;
let isOver = false;
let isDone = false;

const connection = rhea.create_container().connect({
  username: 'anonymous', // without a name, rhea does not use SASL
  connection_details: () => servers[turn++ % servers.length],
  initial_reconnect_delay: 50,
  max_reconnect_delay: 200,
});
const sender = connection.open_sender(queue);
connection.open_receiver({ source: queue, credit_window: WINDOW, autoaccept: false });

function send() {
  while (sender.sendable() && open.size < WINDOW && (again.length || !isOver)) {
    if (!again.length) {
      last += 1;
      again.push(last);
      write({ sent: last });
    }
    const number = again.shift();
    open.set(sender.send({ durable: true, message_id: `n${number}`, body: String(number) }), number);
  }
  if (isOver && !open.size && !again.length && !isDone) {
    isDone = true;
    write({ done: true });
  }
}

connection.on('sendable', send);
connection.on('accepted', ({ delivery }) => {
  write({ confirmed: open.get(delivery) });
  open.delete(delivery);
  send();
});
for (const outcome of ['rejected', 'released', 'modified']) {
  connection.on(outcome, ({ delivery }) => {
    write({ note: `${outcome}: ${delivery.remote_state && delivery.remote_state.error}` });
    again.push(open.get(delivery));
    open.delete(delivery);
  });
}
connection.on('message', ({ message, delivery }) => {
  write({ received: Number(message.body), id: message.message_id });
  delivery.accept();
});
connection.on('disconnected', ({ error }) => {
  again = [...open.values(), ...again].sort((one, two) => one - two);
  open.clear();
  write({ note: `disconnected: ${error}` });
});
connection.on('connection_error', ({ connection: from }) => write({ note: `closed: ${from.error}` }));
process.stdin.resume().on('end', () => {
  isOver = true;
  send();
});
