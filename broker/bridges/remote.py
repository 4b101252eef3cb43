"""A connection to another MQTT broker. aiomqtt connects, encrypts, subscribes and sends keep-alives.

aiomqtt and paho, on which it is built, would confirm messages too early: they send PUBREC before the message is stored,
and have the state of QoS 2 only in memory. So this module replaces paho's handling of packets about messages, and
passes these packets to the flow (broker.bridges.flow), which decides when to confirm. ``check`` tests at the broker's
start that paho has the private names that this requires. All versions that pyproject.toml permits have them.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import aiomqtt
from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as _Typeless
from paho.mqtt.subscribeoptions import SubscribeOptions

from tandemmq.broker.bridges.flow import Flow
from tandemmq.broker.bridges.link import PACKET_ID_MAX
from tandemmq.broker.protocols.mqtt.packets import PacketType, Publish
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties

#: Session Expiry Interval of a session that does not expire (MQTT 5).
NEVER: Final = 0xFFFF_FFFF
#: Time limit from the first byte to CONNACK, and for each SUBACK.
ANSWER_SECONDS_MAX: Final = 10.0
CONNECT_SECONDS_MAX: Final = 5.0
#: Limit of the packets that wait to be written. At the limit, messages of QoS 0 are dropped.
PACKETS_WAITING_MAX: Final = 1_000
_RETAIN_IF_NEW: Final = 1
_USED: Final = (
    "_handle_publish", "_handle_pubackcomp", "_handle_pubrec", "_handle_pubrel", "_send_publish", "_send_pubrec",
    "_send_pubrel", "_sock_close",
)  # fmt: skip
# Properties of a message: names here and names in paho.
_NAMES: Final = (
    ("payload_format", "PayloadFormatIndicator"),
    ("message_expiry", "MessageExpiryInterval"),
    ("content_type", "ContentType"),
    ("response_topic", "ResponseTopic"),
    ("correlation_data", "CorrelationData"),
)

T = TypeVar("T")
# Methods of paho's class have no types.
PahoProperties: Any = _Typeless


class Lost(Exception):
    """The connection failed or ended. The text is the reason."""


class Unusable(Exception):
    """The installed library cannot be used."""


def check() -> None:
    """Raise Unusable if the installed paho lacks a required name."""
    missing = [name for name in _USED if not hasattr(paho.Client, name)]
    if missing:
        raise Unusable(f"the installed paho-mqtt has no {', '.join(missing)}")


@dataclass(frozen=True, slots=True)
class Login:
    """Login at the other broker. ``tls`` None: without TLS."""

    client_id: str
    username: str | None
    password: str | None
    tls: ssl.SSLContext | None
    is_version_5: bool
    is_bridge: bool
    keep_alive_seconds: int
    receive_maximum: int


class Connection(aiomqtt.Client):
    """Implementation of ``broker.bridges.link.Remote``. Call ``open`` and ``close``. Calls raise Lost. Runs on the
    loop."""

    def __init__(self, host: str, port: int, login: Login, flow: Flow) -> None:
        self._is_version_5 = login.is_version_5
        properties: _Typeless | None = None
        if login.is_version_5:
            properties = PahoProperties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = NEVER
            properties.ReceiveMaximum = login.receive_maximum
        super().__init__(
            host,
            port,
            username=login.username,
            password=login.password,
            identifier=login.client_id,
            protocol=aiomqtt.ProtocolVersion.V5 if login.is_version_5 else aiomqtt.ProtocolVersion.V311,
            clean_session=None if login.is_version_5 else False,
            clean_start=False if login.is_version_5 else paho.MQTT_CLEAN_START_FIRST_ONLY,
            timeout=ANSWER_SECONDS_MAX,
            keepalive=login.keep_alive_seconds,
            properties=properties,
            tls_context=login.tls,
        )
        self._flow = flow
        self._socket: Any = None
        self._is_paused = False
        self._is_open = False
        self._is_closed = False
        self.is_resumed = False
        self._paho: Any = self._client
        self._replace_callbacks(login)

    def _replace_callbacks(self, login: Login) -> None:
        client, flow = self._paho, self._flow
        client.connect_timeout = CONNECT_SECONDS_MAX
        client.manual_ack_set(True)
        if login.is_bridge:
            client.enable_bridge_mode()
        decode_publish, self._write_pubrec = client._handle_publish, client._send_pubrec
        tell_connected, closed = client.on_connect, client.on_socket_close
        loop_thread = threading.get_ident()

        def publish() -> Any:
            result = decode_publish()  # this passes messages of QoS 0 and 1 to on_message
            while client._in_messages:
                self._receive(client._in_messages.popitem()[1])
            return result

        def handler_of(type: PacketType) -> Callable[..., Any]:
            def acknowledged(*_: object) -> Any:
                packet = client._in_packet["packet"]
                packet_id, reason = int.from_bytes(packet[:2], "big"), packet[2] if len(packet) > 2 else 0
                if type is PacketType.PUBREL:
                    flow.released(packet_id)
                else:
                    flow.acknowledged(type, packet_id, reason)
                return paho.MQTT_ERR_SUCCESS

            return acknowledged

        pubrec, puback, pubcomp = (
            handler_of(PacketType.PUBREC),
            handler_of(PacketType.PUBACK),
            handler_of(PacketType.PUBCOMP),
        )
        client._handle_publish = publish
        client._send_pubrec = lambda packet_id: paho.MQTT_ERR_SUCCESS  # the flow sends PUBREC
        client._handle_pubrec = pubrec
        client._handle_pubrel = handler_of(PacketType.PUBREL)
        client._handle_pubackcomp = lambda kind: puback() if kind == "PUBACK" else pubcomp()
        client.on_message = lambda *args: self._receive(args[-1])

        def connected(*args: Any) -> None:
            flags, reason, properties = args[2:5]
            if reason == paho.CONNACK_ACCEPTED and not self._connected.done():
                self.is_resumed = flags.session_present
                room = getattr(properties, "ReceiveMaximum", PACKET_ID_MAX)
                flow.attach(self, is_resumed=self.is_resumed, receive_maximum=room)
            tell_connected(*args)

        def socket_opened(*args: Any) -> None:
            """Called on the thread that connects."""
            if self._is_closed:
                raise OSError("the bridge was closed")  # no byte was sent to the other broker yet
            self._loop.call_soon_threadsafe(self._begin_reading, args[-1])

        def socket_closed(*args: Any) -> None:
            self._socket = None
            closed(*args)

        def has_to_write(*args: Any) -> None:
            if threading.get_ident() == loop_thread:
                self._begin_writing(args[-1])
            else:
                self._loop.call_soon_threadsafe(self._begin_writing, args[-1])

        client.on_connect = connected
        # Replaces aiomqtt's callbacks. These run later on the loop, with a file descriptor that may belong to another
        # socket by then.
        client.on_socket_open = socket_opened
        client.on_socket_close = socket_closed
        client.on_socket_register_write = has_to_write

    def _begin_reading(self, opened: Any) -> None:
        if not self._is_closed and opened.fileno() >= 0:
            self._socket = opened
            self._misc_task = self._loop.create_task(self._misc_loop())
            self._loop.add_reader(opened.fileno(), self._read)

    def _begin_writing(self, to: Any) -> None:
        if to is self._socket:
            # uvloop raises if the socket has just failed. ``_do`` then ends the connection.
            self._do(lambda: self._loop.add_writer(to.fileno(), self._do, self._paho.loop_write))

    def _receive(self, message: paho.MQTTMessage) -> None:
        self._flow.published(
            Publish(
                message.topic,
                bytes(message.payload),
                message.qos,
                bool(message.retain),
                bool(message.dup),
                message.mid,
                _from_paho(message.properties),
            )
        )

    async def open(self) -> None:
        """Connect. Return when the other broker has accepted the connection, after the call of ``Flow.attach``. Raises
        Lost."""
        await _or_lost(self.__aenter__())
        self._is_open = True

    async def close(self) -> None:
        """Send DISCONNECT if connected, and close the connection. An attempt to connect ends on its own thread."""
        self._is_closed = True
        try:
            if self._is_open and not self._disconnected.done():
                await self.__aexit__(None, None, None)
        except aiomqtt.MqttError:
            pass
        finally:
            self._paho.on_disconnect = None
            self._paho._sock_close()
            for each in (self._connected, self._disconnected):
                if each.done() and not each.cancelled():
                    each.exception()  # the error was reported before; this marks it as retrieved

    async def subscribe_all(self, filters: Sequence[tuple[str, int]]) -> None:
        """Subscribe. Return when the other broker has confirmed all filters; raise Lost if it refuses one. With MQTT 5,
        subscribe with No Local, and request retained messages only for new subscriptions."""
        for name, qos in filters:
            # Packet ids above PACKET_ID_MAX, because messages use the lower ones.
            self._paho._last_mid = PACKET_ID_MAX
            if self._is_version_5:
                options = SubscribeOptions(qos, noLocal=True, retainAsPublished=True, retainHandling=_RETAIN_IF_NEW)
                codes = await _or_lost(self.subscribe(name, options=options))
            else:
                codes = await _or_lost(self.subscribe(name, qos))
            code: Any = next(iter(codes))
            number = code if isinstance(code, int) else code.value
            if number >= 0x80:
                raise Lost(f"the other broker refuses the subscription to {name} (0x{number:02X})")

    async def unsubscribe_from(self, name: str) -> None:
        """Unsubscribe. Return when the other broker has confirmed it. Raises Lost."""
        self._paho._last_mid = PACKET_ID_MAX
        await _or_lost(self.unsubscribe(name))

    async def lost(self) -> None:
        """Wait until the connection ends. Raises Lost unless this side ended it."""
        await _or_lost(asyncio.shield(self._disconnected))

    # ---- Remote

    def publish(  # type: ignore[override]  # replaces aiomqtt's method
        self, topic: str, payload: bytes, qos: int, packet_id: int, retain: bool, dup: bool, properties: Properties
    ) -> bool:
        carried = _to_paho(properties) if self._is_version_5 else None
        if qos:
            self._paho._send_publish(packet_id, topic.encode(), payload, qos, retain, dup, None, carried)
        elif len(self._paho._out_packet) < PACKETS_WAITING_MAX:
            self._paho.publish(topic, payload, 0, retain, carried)
        else:
            return False
        return True

    def acknowledge(self, type: PacketType, packet_id: int) -> None:
        if type is PacketType.PUBREC:
            self._write_pubrec(packet_id)
        elif type is PacketType.PUBREL:
            self._paho._send_pubrel(packet_id)
        else:
            self._paho.ack(packet_id, 1 if type is PacketType.PUBACK else 2)

    def pause(self) -> None:
        if self._socket is not None and not self._is_paused:
            self._is_paused = True
            self._loop.remove_reader(self._socket.fileno())

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if self._socket is not None:
                self._loop.add_reader(self._socket.fileno(), self._read)
                self._read()  # TLS may have decrypted bytes that wait in memory

    def _read(self) -> None:
        self._do(self._paho.loop_read)
        while not self._is_paused and isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            self._do(self._paho.loop_read)

    def _do(self, step: Callable[[], object]) -> None:
        """Call paho. An error ends the connection."""
        try:
            step()
        except Exception as error:
            if not self._disconnected.done():
                self._disconnected.set_exception(Lost(str(error) or type(error).__name__))


async def _or_lost(call: Awaitable[T]) -> T:
    try:
        return await call
    except (aiomqtt.MqttError, OSError, ValueError) as error:
        raise Lost(str(error) or type(error).__name__) from error


def _from_paho(found: Any) -> Properties:
    if found is None or found.isEmpty():
        return NONE
    values = {ours: value for ours, theirs in _NAMES if (value := getattr(found, theirs, None)) is not None}
    user = tuple((str(name), str(value)) for name, value in getattr(found, "UserProperty", ()))
    if not values and not user:
        return NONE
    return Properties(user=user, **values)


def _to_paho(properties: Properties) -> Any:
    if properties is NONE:
        return None
    converted = PahoProperties(PacketTypes.PUBLISH)
    for ours, theirs in _NAMES:
        value = getattr(properties, ours)
        if value is not None:
            setattr(converted, theirs, value)
    if properties.user:
        converted.UserProperty = list(properties.user)
    return converted
