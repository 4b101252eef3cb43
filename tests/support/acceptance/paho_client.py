"""Eclipse Paho's MQTT client in a separate thread, with a record of the messages it received."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.acceptance.broker_process import WAIT_SECONDS_MAX, wait_until

VERSIONS = {
    "3.1": MQTTProtocolVersion.MQTTv31,
    "3.1.1": MQTTProtocolVersion.MQTTv311,
    "5.0": MQTTProtocolVersion.MQTTv5,
}
HOUR = 3600
QUIET_SECONDS = 0.3


def properties(packet: int, **values: Any) -> Properties:
    """Return properties of MQTT 5.0, by Paho's names: ``properties(PacketTypes.CONNECT, SessionExpiryInterval=10)``."""
    made = Properties(packet)
    for name, value in values.items():
        setattr(made, name, value)
    return made


class PahoClient:
    """One connection. Without ``client_id``: MQTT 5.0 with a session that ends with the connection. ``expiry``: session
    expiry interval in seconds, MQTT 5.0 only. ``clean`` False: resume an existing session. ``is_kept``: both.
    ``in_flight``: maximum number of unconfirmed messages."""

    def __init__(
        self,
        port: int,
        client_id: str = "",
        version: str = "5.0",
        *,
        clean: bool = True,
        expiry: int = 0,
        is_kept: bool = False,
        keep_alive: int = 60,
        user: tuple[str, str] | None = None,
        will: tuple[str, bytes, int, bool] | None = None,
        will_delay: int = 0,
        in_flight: int = 20,
    ) -> None:
        if is_kept:
            clean, expiry = False, HOUR
        is_5 = version == "5.0"
        self.messages: list[mqtt.MQTTMessage] = []
        self.codes: list[Any] = []  # reason codes of SUBACK
        self.ended: list[Any] = []  # reason codes of the ends of connections
        self._accepted: list[tuple[Any, Any]] = []
        self._unsubscribed = self._taken = 0
        self.client = client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if is_5 else clean,
            protocol=VERSIONS[version],
            reconnect_on_failure=False,
        )
        client.max_inflight_messages_set(in_flight)
        client.on_connect = lambda _c, _u, flags, reason, _p: self._accepted.append((flags, reason))
        client.on_message = lambda _c, _u, message: self.messages.append(message)
        client.on_subscribe = lambda _c, _u, _m, codes, _p: self.codes.extend(codes)
        client.on_disconnect = lambda _c, _u, _f, reason, _p: self.ended.append(reason)
        client.on_unsubscribe = lambda *_: setattr(self, "_unsubscribed", self._unsubscribed + 1)
        if user is not None:
            client.username_pw_set(*user)
        if will is not None:
            of_will = properties(PacketTypes.WILLMESSAGE, WillDelayInterval=will_delay) if will_delay else None
            client.will_set(*will, properties=of_will)
        asked: dict[str, Any] = {}
        if is_5:
            asked = {
                "clean_start": clean,
                "properties": properties(PacketTypes.CONNECT, SessionExpiryInterval=expiry) if expiry else None,
            }
        client.connect("127.0.0.1", port, keepalive=keep_alive, **asked)
        client.loop_start()
        wait_until(lambda: self._accepted, "CONNACK")
        self.reason = self._accepted[0][1]
        self.session_present: bool = self._accepted[0][0].session_present

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()

    def subscribe(self, topic_filter: str, qos: int = 1) -> Any:
        """Subscribe, wait for the answer, and return its reason code."""
        known = len(self.codes)
        self.client.subscribe(topic_filter, qos)
        return wait_until(lambda: self.codes[known:], f"SUBACK for {topic_filter}")[0]

    def unsubscribe(self, topic_filter: str) -> None:
        """Unsubscribe, and wait for the answer."""
        known = self._unsubscribed
        self.client.unsubscribe(topic_filter)
        wait_until(lambda: self._unsubscribed > known, f"UNSUBACK for {topic_filter}")

    def publish(
        self, topic: str, payload: bytes | str = b"", qos: int = 1, *, retain: bool = False, **more: Any
    ) -> None:
        """Publish, and wait for the confirmation. ``more``: properties by Paho's names."""
        of_it = properties(PacketTypes.PUBLISH, **more) if more else None
        sent = self.client.publish(topic, payload, qos, retain, properties=of_it)
        sent.wait_for_publish(WAIT_SECONDS_MAX)
        assert sent.is_published(), f"{topic} was not confirmed"

    def take(self) -> mqtt.MQTTMessage:
        """Wait for the next message that was not taken before, and return it."""
        self._taken += 1
        return self.wait_messages(self._taken)[-1]

    def payloads(self, count: int) -> list[bytes]:
        return [self.take().payload for _ in range(count)]

    def is_quiet(self) -> bool:
        """Return whether no more messages come than were taken."""
        time.sleep(QUIET_SECONDS)
        return len(self.messages) == self._taken

    def wait_messages(self, count: int, seconds: float = WAIT_SECONDS_MAX) -> list[mqtt.MQTTMessage]:
        """Wait for ``count`` messages, and return the first ``count``."""
        wait_until(lambda: len(self.messages) >= count, f"{count} messages", seconds)
        return self.messages[:count]

    def drop(self) -> None:
        """Close the connection without DISCONNECT."""
        self.client.loop_stop()
        socket = self.client.socket()
        if socket is not None:
            socket.close()

    def leave(self, reason: Any = None) -> None:
        """Disconnect with DISCONNECT."""
        self.client.disconnect(reason)
        self.client.loop_stop()
