// Send and receive over a pair of brokers with stompit (npm install stompit). The program continues when the master
// dies.
//
//   node pair.js send    a:61613,b:61613 /queue/orders 1000
//   node pair.js receive a:61613,b:61613 /queue/orders 1000
//
// ConnectFailover has ActiveMQ's option names. A Channel sends messages without a receipt again, and subscribes again.
'use strict';

const { randomUUID } = require('crypto');
const stompit = require('stompit');

const [what, hosts, queue, count] = process.argv.slice(2);

const servers = hosts.split(',').map((each) => {
  const [host, port] = each.split(':');
  return { host, port: Number(port), connectHeaders: { host: '/', 'heart-beat': '5000,5000' } };
});
const failover = new stompit.ConnectFailover(servers, { initialReconnectDelay: 10, maxReconnectDelay: 200 });

function send(channel) {
  const producer = `shop-${randomUUID()}`; // a name that is never used again
  const next = (number) => {
    if (number > Number(count)) {
      channel.close();
      return;
    }
    const headers = {
      destination: queue,
      persistent: 'true',
      'tandemmq-send-id': `${producer}:${number}`,
    };
    channel.send(headers, `order ${number}`, (error) => {
      if (error) throw error;
      next(number + 1); // it has its receipt
    });
  };
  next(1);
}

function receive(channel) {
  const seen = new Set();
  channel.subscribe({ destination: queue, ack: 'client-individual' }, (error, message, subscription) => {
    if (error) throw error;
    message.readString('utf-8', (failure, body) => {
      if (failure) return; // the connection broke within the message, which is delivered again
      if (!seen.has(body)) {
        console.log(body);
        seen.add(body);
      }
      channel.ack(message);
      if (seen.size === Number(count)) {
        subscription.unsubscribe();
        channel.close();
      }
    });
  });
}

new stompit.ChannelFactory(failover).channel((error, channel) => {
  if (error) throw error;
  (what === 'send' ? send : receive)(channel);
});
