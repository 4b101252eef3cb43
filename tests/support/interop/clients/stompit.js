// stompit over a pair of brokers: a Channel sends again what has no receipt, and subscribes again.
'use strict';

const stompit = require('stompit');

const CHAINS = 2;
const [addresses, queue] = process.argv.slice(2);
const producer = `stompit-${Math.random()}`; // a name that is never used again
const write = (line) => console.log(JSON.stringify(line));
let last = 0;
let open = 0;
let isOver = false;
process.stdin.resume().on('end', () => { isOver = true; });

const servers = addresses.split(',').map((address) => {
  const { hostname, port } = new URL(address);
  return { host: hostname, port: Number(port), connectHeaders: { host: '/', 'heart-beat': '5000,5000' } };
});
const failover = new stompit.ConnectFailover(servers, { initialReconnectDelay: 10, maxReconnectDelay: 200 });
failover.on('error', (error) => write({ note: String(error) }));
const channels = new stompit.ChannelFactory(failover);

channels.channel((error, channel) => {
  if (error) throw error;
  channel.subscribe({ destination: queue, ack: 'client-individual' }, (failure, message) => {
    if (failure) throw failure;
    message.readString('utf-8', (broken, body) => {
      if (broken) return; // the connection broke within it; it comes again
      write({ received: Number(body), id: `${message.headers['message-id']} ${message.headers.timestamp}` });
      channel.ack(message);
    });
  });
});

channels.channel((error, channel) => {
  if (error) throw error;
  const next = () => {
    if (isOver) {
      if (open === 0) write({ done: true });
      return;
    }
    last += 1;
    open += 1;
    const number = last;
    write({ sent: number });
    const headers = { destination: queue, persistent: 'true', 'tandemmq-send-id': `${producer}:${number}` };
    channel.send(headers, String(number), (failure) => {
      open -= 1;
      write(failure ? { note: String(failure) } : { confirmed: number });
      next(); // at once: a channel without anything to send is given back, and closed
    });
  };
  for (let chain = 0; chain < CHAINS; chain += 1) next();
});
