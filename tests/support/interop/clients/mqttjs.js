// MQTT.js over a pair of brokers, QoS 2 both ways: node mqttjs.js 4|5 ADDRESSES TOPIC.
'use strict';

const { readFileSync } = require('fs');
const mqtt = require('mqtt');

const CHAINS = 10;
const PAUSE_MS = 3;
const [version, addresses, topic] = process.argv.slice(2);
const write = (line) => console.log(JSON.stringify(line));
let last = 0;
let open = 0;
let isOver = false;
process.stdin.resume().on('end', () => { isOver = true; });

const servers = addresses.split(',').map((address) => {
  const { protocol, hostname, port } = new URL(address);
  return { host: hostname, port: Number(port), protocol: protocol.slice(0, -1) };
});
const own = process.env.CERTIFICATE && readFileSync(process.env.CERTIFICATE);
const client = mqtt.connect({
  servers,
  protocol: servers[0].protocol,
  protocolVersion: Number(version),
  clientId: `mqttjs-${version}`,
  clean: false,
  reconnectPeriod: 100,
  ...(own && { cert: own, key: own }),
  ...(version === '5' && { properties: { sessionExpiryInterval: 3600 } }),
});

function next() {
  if (isOver) {
    if (open === 0) write({ done: true });
    return;
  }
  last += 1;
  open += 1;
  const number = last;
  write({ sent: number });
  client.publish(topic, String(number), { qos: 2 }, (error) => {
    open -= 1;
    write(error ? { note: String(error) } : { confirmed: number });
    setTimeout(next, PAUSE_MS);
  });
}

client.on('message', (_, payload) => write({ received: Number(payload) }));
client.on('error', (error) => write({ note: String(error) }));
client.once('connect', () => {
  client.subscribe(topic, { qos: 2 }, (error) => {
    if (error) throw error;
    for (let chain = 0; chain < CHAINS; chain += 1) next();
  });
});
