"""STOMP for queues and transactions, and MQTT for the topic: messages of QoS 1, and a persistent session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.ledger.client import WAIT_SECONDS_MAX, Message, Received, Subscription
from tests.support.ledger.stomp_client import StompClient


class MqttClient(StompClient):
    """A client whose messages to the topic have no properties: their bodies begin with their keys, and no selector
    matches them."""

    is_mqtt = True

    def __init__(self, stomp: int, port: int) -> None:
        super().__init__(stomp)
        self._mqtt = port
        self._session: _Session | None = None

    def send(self, to: str, messages: Sequence[Message], transaction: str | None) -> list[str]:
        if transaction is not None or not to.startswith("topic://"):
            return super().send(to, messages, transaction)
        session = _Session(self._mqtt, "publisher", is_kept=False)
        for message in messages:
            session.publish(to.removeprefix("topic://"), message.body)
        session.close()
        return []

    def receive(
        self, source: str, count: int, selector: str | None = None, subscription: Subscription | None = None,
        transaction: str | None = None,
    ) -> list[Received]:  # fmt: skip
        if subscription is None or not subscription.is_mqtt:
            return super().receive(source, count, selector, subscription, transaction)
        self._session = _Session(self._mqtt, subscription.client, is_kept=True)
        self._session.subscribe(subscription.topic.removeprefix("topic://"))
        return [Received(None, each.payload.decode(), {}, each) for each in self._session.take(count)]

    def acknowledge(self, received: Received, transaction: str | None) -> None:
        if not isinstance(received.handle, mqtt.MQTTMessage):
            super().acknowledge(received, transaction)
            return
        assert self._session is not None, "it received"
        self._session.acknowledge(received.handle)

    def release(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        super().release()

    def subscribe(self, subscription: Subscription) -> None:
        if not subscription.is_mqtt:
            super().subscribe(subscription)
            return
        self.receive(subscription.topic, 0, subscription=subscription)
        self.release()

    def unsubscribe(self, subscription: Subscription) -> None:
        if not subscription.is_mqtt:
            super().unsubscribe(subscription)
            return
        session = _Session(self._mqtt, subscription.client, is_kept=True)
        session.unsubscribe(subscription.topic.removeprefix("topic://"))
        session.close()


class _Session:
    """One connection of MQTT 3.1.1."""

    def __init__(self, port: int, client: str, *, is_kept: bool) -> None:
        self._changed = threading.Condition()
        self._messages: list[mqtt.MQTTMessage] = []
        self._answers: set[object] = set()
        self._topic: str | None = None
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client, clean_session=not is_kept, manual_ack=True, reconnect_on_failure=False
        )
        self._client.on_connect = lambda *_: self._heard("connected")
        self._client.on_message = lambda _client, _data, message: self._came(message)
        self._client.on_subscribe = lambda _client, _data, number, *_: self._heard(number)
        self._client.on_unsubscribe = lambda _client, _data, number, *_: self._heard(number)
        self._client.on_disconnect = lambda *_: self._heard("ended")
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._wait(lambda: "connected" in self._answers)

    def subscribe(self, topic: str) -> None:
        self._topic = topic
        number = self._client.subscribe(topic, 1)[1]
        self._wait(lambda: number in self._answers)

    def unsubscribe(self, topic: str) -> None:
        self._topic = None
        number = self._client.unsubscribe(topic)[1]
        self._wait(lambda: number in self._answers)

    def publish(self, topic: str, body: str) -> None:
        sent = self._client.publish(topic, body.encode(), 1)
        sent.wait_for_publish(WAIT_SECONDS_MAX)
        assert sent.is_published(), "PUBACK"

    def take(self, count: int) -> list[mqtt.MQTTMessage]:
        self._wait(lambda: len(self._messages) >= count)
        return self._messages[:count]

    def acknowledge(self, message: mqtt.MQTTMessage) -> None:
        self._client.ack(message.mid, message.qos)

    def close(self) -> None:
        """Disconnect normally, after the broker has read everything."""
        if self._topic is not None:
            self.subscribe(self._topic)
        self._client.disconnect()
        self._wait(lambda: "ended" in self._answers)
        self._client.loop_stop()

    def _heard(self, what: object) -> None:
        with self._changed:
            self._answers.add(what)
            self._changed.notify_all()

    def _came(self, message: mqtt.MQTTMessage) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def _wait(self, is_so: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(is_so, WAIT_SECONDS_MAX), "an answer of MQTT"
