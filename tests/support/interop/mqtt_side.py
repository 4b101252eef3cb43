"""A real client of MQTT, paho's, that waits: each call returns when the broker has answered."""

from __future__ import annotations

import queue
import threading
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

COMES_SECONDS = 10.0
QUIET_SECONDS = 0.3
VERSIONS = {
    "3.1": MQTTProtocolVersion.MQTTv31,
    "3.1.1": MQTTProtocolVersion.MQTTv311,
    "5.0": MQTTProtocolVersion.MQTTv5,
}


class MqttSide:
    """One connection. ``is_kept``: its session outlives it. ``has_session``: the broker knew one of that name."""

    def __init__(
        self, port: int, client_id: str, version: str = "3.1.1", *, is_kept: bool = False, **credentials: str
    ) -> None:
        self._answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.messages: queue.SimpleQueue[MQTTMessage] = queue.SimpleQueue()
        self._is_v5 = version == "5.0"
        options: dict[str, Any] = {} if self._is_v5 else {"clean_session": not is_kept}
        client = self._client = Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=VERSIONS[version], reconnect_on_failure=False, **options
        )
        client.on_connect = lambda _client, _data, flags, reason, _properties: self._answers.put(
            ("connect", (flags.session_present, reason))
        )
        client.on_subscribe = lambda _client, _data, _id, reasons, _properties: self._answers.put(
            ("subscribe", [each.value for each in reasons])
        )
        client.on_unsubscribe = lambda *_: self._answers.put(("unsubscribe", None))
        client.on_message = lambda _client, _data, message: self.messages.put(message)
        if credentials:
            client.username_pw_set(credentials["user"], credentials["password"])
        connect: dict[str, Any] = {}
        if self._is_v5:
            connect = {"clean_start": not is_kept, "properties": Properties(PacketTypes.CONNECT)}
            if is_kept:
                connect["properties"].SessionExpiryInterval = 3600
        client.connect("127.0.0.1", port, **connect)
        client.loop_start()
        self.has_session, reason = self._answer("connect")
        assert not reason.is_failure, f"refused: {reason}"

    def _answer(self, expected: str) -> Any:
        what, told = self._answers.get(timeout=COMES_SECONDS)
        assert what == expected, f"{what} for {expected}"
        return told

    def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        """The QoS that is granted, or why not."""
        self._client.subscribe(topic_filter, qos)
        [code] = self._answer("subscribe")
        return int(code)

    def unsubscribe(self, topic_filter: str) -> None:
        self._client.unsubscribe(topic_filter)
        self._answer("unsubscribe")

    def publish(
        self, topic: str, payload: bytes | str = b"", qos: int = 1, *, retain: bool = False, **properties: Any
    ) -> None:
        """It is confirmed when this returns, unless ``qos`` is 0. ``properties`` by paho's names (MQTT 5.0)."""
        carried = Properties(PacketTypes.PUBLISH) if self._is_v5 else None
        for name, value in properties.items():
            setattr(carried, name, value)
        sent = self._client.publish(topic, payload, qos, retain, carried)
        sent.wait_for_publish(COMES_SECONDS)
        assert sent.is_published(), f"{topic} was not confirmed"

    def take(self) -> MQTTMessage:
        """What must come."""
        return self.messages.get(timeout=COMES_SECONDS)

    def payloads(self, count: int) -> list[bytes]:
        return [self.take().payload for _ in range(count)]

    def is_quiet(self) -> bool:
        """Whether nothing more comes."""
        try:
            self.messages.get(timeout=QUIET_SECONDS)
        except queue.Empty:
            return True
        return False

    def close(self) -> None:
        """DISCONNECT."""
        self._client.disconnect()
        self._client.loop_stop()

    def break_off(self) -> None:
        """The connection ends without a word."""
        socket = self._client.socket()
        assert socket is not None, "it is connected"
        lost = threading.Event()
        self._client.on_disconnect = lambda *_: lost.set()
        socket.shutdown(2)
        assert lost.wait(COMES_SECONDS)
        self._client.loop_stop()
