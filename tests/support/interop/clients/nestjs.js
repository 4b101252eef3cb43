// NestJS over a pair of brokers: a microservice and a client with its MQTT transport, QoS 2 both ways.
'use strict';

require('reflect-metadata');
const { Controller, Module } = require('@nestjs/common');
const { NestFactory } = require('@nestjs/core');
const { ClientProxyFactory, EventPattern, MqttRecordBuilder, Transport } = require('@nestjs/microservices');
const { lastValueFrom } = require('rxjs');

const CHAINS = 10;
const PAUSE_MS = 3;
const [addresses, topic] = process.argv.slice(2);
const write = (line) => console.log(JSON.stringify(line));
let last = 0;
let open = 0;
let isOver = false;
process.stdin.resume().on('end', () => { isOver = true; });

const servers = addresses.split(',').map((address) => {
  const { hostname, port } = new URL(address);
  return { host: hostname, port: Number(port) };
});
const transport = (clientId) => ({
  transport: Transport.MQTT,
  options: {
    servers, clientId, clean: false, reconnectPeriod: 100, protocolVersion: 5,
    properties: { sessionExpiryInterval: 3600 }, subscribeOptions: { qos: 2 },
  },
});

class Numbers {
  receive(number) {
    write({ received: number });
  }
}
// What the decorators of TypeScript do:
EventPattern(topic)(Numbers.prototype, 'receive', Object.getOwnPropertyDescriptor(Numbers.prototype, 'receive'));
Controller()(Numbers);
class Service {}
Module({ controllers: [Numbers] })(Service);

async function main() {
  const service = await NestFactory.createMicroservice(Service, { ...transport('nestjs-service'), logger: false });
  await service.listen();
  const client = ClientProxyFactory.create(transport('nestjs-client'));
  await client.connect();

  // False: no broker is connected, and the message was not taken.
  async function emit(number) {
    try {
      await lastValueFrom(client.emit(topic, new MqttRecordBuilder(number).setQoS(2).build()), { defaultValue: null });
      return true;
    } catch {
      return false;
    }
  }

  async function next() {
    if (isOver) {
      if (open === 0) write({ done: true });
      return;
    }
    last += 1;
    open += 1;
    const number = last;
    write({ sent: number });
    while (!await emit(number)) await new Promise((wake) => setTimeout(wake, 100));
    write({ confirmed: number });
    open -= 1;
    setTimeout(next, PAUSE_MS);
  }
  for (let chain = 0; chain < CHAINS; chain += 1) next();
}
main();
