"""MQTT clients that count published and received messages by payload."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes

from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.paho_client import HOUR, PahoClient, properties

WAIT_SECONDS = 60.0


def publish(port: int, topic: str, payloads: Iterable[str], qos: int, *, retain: bool = False) -> None:
    """Publish messages, and wait until the broker has confirmed all of them."""
    with PahoClient(port, in_flight=100) as client:
        for each in [client.client.publish(topic, payload, qos, retain) for payload in payloads]:
            each.wait_for_publish(WAIT_SECONDS)
            assert each.is_published(), "the broker confirms it"


class Reader:
    """A subscriber that counts messages by payload. It reconnects by itself."""

    def __init__(self, port: int, topic_filter: str, qos: int, client_id: str, *, is_kept: bool = False) -> None:
        self.came: Counter[str] = Counter()
        self.topics: set[str] = set()
        self.messages: list[paho.MQTTMessage] = []
        self._is_subscribed = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5)
        expiry = properties(PacketTypes.CONNECT, SessionExpiryInterval=HOUR) if is_kept else None
        self._client.reconnect_delay_set(0, 1)
        self._client.on_message = self._on_message
        self._client.on_connect = lambda client, *_: client.subscribe(topic_filter, qos)
        self._client.on_subscribe = lambda *_: self._is_subscribed.set()
        self._client.connect("127.0.0.1", port, clean_start=not is_kept, properties=expiry)
        self._client.loop_start()
        assert self._is_subscribed.wait(WAIT_SECONDS), "it is subscribed"

    def _on_message(self, client: object, userdata: object, message: paho.MQTTMessage) -> None:
        self.messages.append(message)
        self.topics.add(message.topic)
        self.came[message.payload.decode()] += 1

    def wait(self, payloads: Iterable[str]) -> None:
        """Wait until each of these payloads has come."""
        wanted = set(payloads)
        wait_until(lambda: wanted <= set(self.came), "all messages come", WAIT_SECONDS)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def reader(
    port: int, topic_filter: str, qos: int = 2, client_id: str = "reader", *, is_kept: bool = False
) -> Iterator[Reader]:
    made = Reader(port, topic_filter, qos, client_id, is_kept=is_kept)
    try:
        yield made
    finally:
        made.close()
