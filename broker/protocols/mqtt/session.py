"""Conversation of one MQTT client (3.1, 3.1.1 and 5.0): bytes in, commands out; the broker's replies in, bytes out.
Pure.

A session that outlives its connection is stored in its own queue. Only this connection reads and writes that queue,
with the same commands that clients use for other queues. A record is in the journal before the packet that confirms it
is sent: PUBACK, PUBREC, PUBCOMP, SUBACK and UNSUBACK are receipts.

    conversation       the client's identity, and the interfaces to the client and the broker; used by all others
    stored_session     the session's queue
    qos2               state of QoS 2, and its records
    publish            PUBLISH and PUBREL from the client
    retained_delivery  retained messages for new subscriptions
    deliver            PUBLISH to the client, and its acknowledgements
    subscribe          SUBSCRIBE, UNSUBSCRIBE
    connect            CONNECT to CONNACK, DISCONNECT

``receive`` never raises, for any input. After a fatal error or DISCONNECT, no further input is parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tandemmq.broker.core.commands import (
    Ack,
    AckMode,
    ClientError,
    Command,
    Connect,
    ErrorKind,
    ProtocolFailure,
    Undeliverable,
    forget_frames,
)
from tandemmq.broker.protocols.mqtt import packets
from tandemmq.broker.protocols.mqtt.connect import Connecting
from tandemmq.broker.protocols.mqtt.conversation import Conversation, Hooks, MqttLimits, Receipt
from tandemmq.broker.protocols.mqtt.deliver import Delivering
from tandemmq.broker.protocols.mqtt.packets import Acknowledgement, Packet, PacketType, Publish, Version
from tandemmq.broker.protocols.mqtt.parser import PacketParser
from tandemmq.broker.protocols.mqtt.publish import Publishing
from tandemmq.broker.protocols.mqtt.reason_codes import MqttError, Reason, reason_of
from tandemmq.broker.protocols.mqtt.retained_delivery import INBOX, RetainedDelivery
from tandemmq.broker.protocols.mqtt.session_records import STATE
from tandemmq.broker.protocols.mqtt.stored_session import StoredSession
from tandemmq.broker.protocols.mqtt.subscribe import Subscribing
from tandemmq.broker.protocols.session import COMMANDS_MAX, RECEIVED_BYTES_MAX
from tandemmq.store.records.message import Message
from tandemmq.store.records.transactions import XaTransactionId

__all__ = ["MqttLimits", "MqttSession"]

_PUBREL: Final = PacketType.PUBREL
_OF_FILTERS: Final = (packets.Subscribe, packets.Unsubscribe)
# Limit of a CONNECT packet. A will's payload and each string may have 64 KiB.
CONNECT_BYTES_MAX: Final = 256 * 1024


class MqttSession(Conversation):
    """Conversation with one client over one connection. The session and its parts refer to each other. ``end`` removes
    these references, so that the session and its messages are freed at once."""

    __deletable__ = ("_connecting", "_subscribing", "_delivering", "_retained", "_publishing", "_stored")

    def __init__(self, connection_id: str, clock: Callable[[], int], *, limits: MqttLimits, hooks: Hooks) -> None:
        Conversation.__init__(self, connection_id, clock, limits=limits, hooks=hooks)
        self.send_interval_ms = 0
        self.receive_interval_ms = 0
        self._parser = PacketParser(min(limits.packet_bytes_max, CONNECT_BYTES_MAX))
        self._early_bytes = 0  # bytes that arrived between CONNECT and CONNACK
        self._stored = StoredSession(self)
        self._retained = RetainedDelivery(self, self._stored)
        self._publishing = Publishing(self, self._stored, self._retained)
        self._delivering = Delivering(self, self._stored, self._retained)
        self._subscribing = Subscribing(self, self._stored, self._retained, self._delivering)
        self._connecting = Connecting(self, self._stored, self._publishing, self._delivering, self._subscribing)

    @property
    def survives_errors(self) -> bool:
        """True: this class decides whether a refusal ends its connection."""
        return True

    @property
    def can_pull(self) -> bool:
        return False

    @property
    def is_logged_in(self) -> bool:
        return self.is_connected

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of an incomplete packet, and of packets that wait for CONNACK."""
        return self._early_bytes + self._parser.unfinished_bytes

    # ---- input of the client

    def receive(self, data: bytes) -> Sequence[Command]:
        """Return commands, as Session.receive describes. The session's own commands come first."""
        commands: list[Command] = []
        is_stopped = False
        try:
            if data and not self.is_over:
                self._parser.feed(data)
                if self._connecting.is_waiting:
                    self._early_bytes += len(data)
            self._append_queued(commands)
            is_stopped = self._parse(commands)
            self._append_queued(commands)
        except MqttError as error:
            forget_frames(error)
            commands += self._stored.gathered()
            if not self.is_over:
                self.end_input()
                commands.append(ProtocolFailure(error))
        if not self.queued and self.is_connected and len(commands) < COMMANDS_MAX:
            self._retained.send_more(commands)
        is_full = is_stopped or len(commands) >= COMMANDS_MAX
        self.has_more = is_full or bool(self.queued) or self._retained.wants_turn
        return commands

    def _append_queued(self, commands: list[Command]) -> None:
        """Append the session's own commands, until ``commands`` has COMMANDS_MAX."""
        self.queued.extend(self._stored.gathered())
        while self.queued and len(commands) < COMMANDS_MAX:
            commands.append(self.queued.popleft())

    def _parse(self, commands: list[Command]) -> bool:
        """Parse packets, and append their commands. Return whether complete packets are left. Parsing stops at a limit
        of packets and filters, because many packets, such as PINGREQ, give no command. It also stops within a packet
        with many filters, and if the session has commands of its own, which come first."""
        connecting, parser = self._connecting, self._parser
        now = taken = 0
        ends = parser.offset + RECEIVED_BYTES_MAX
        while not self.is_over and not connecting.is_waiting and len(commands) < COMMANDS_MAX and not self.queued:
            if self._early_bytes and self.is_connected:
                self._early_bytes = 0
            if taken >= COMMANDS_MAX or parser.offset >= ends:
                return True
            if self._subscribing.is_under_way:
                self._subscribing.handle_more(commands)
                taken += COMMANDS_MAX
                continue
            packet = parser.next_packet()
            if packet is None:
                return parser.is_reading
            taken += len(packet.filters) if isinstance(packet, _OF_FILTERS) else 1
            now = now or self.clock()
            self._handle(packet, commands, now)
        if len(commands) > COMMANDS_MAX:  # one packet had very many filters
            self.queued.extendleft(reversed(commands[COMMANDS_MAX:]))
            del commands[COMMANDS_MAX:]
        return bool(self.queued)

    def _handle(self, packet: Packet, commands: list[Command], now: int) -> None:
        if isinstance(packet, Publish):
            self._publishing.publish(packet, commands, now)
            return
        if isinstance(packet, Acknowledgement):
            if packet.type is _PUBREL:
                self._publishing.release(packet, commands)
            else:
                self._delivering.acknowledged(packet, commands)
            return
        commands += self._stored.gathered()
        if isinstance(packet, packets.Connect):
            self._connecting.connect(packet, commands)
        elif isinstance(packet, packets.PingRequest):
            self.send(packets.PINGRESP)
        elif isinstance(packet, packets.Subscribe):
            self._subscribing.subscribe(packet, commands)
        elif isinstance(packet, packets.Unsubscribe):
            self._subscribing.unsubscribe(packet, commands)
        elif isinstance(packet, packets.Disconnect):
            self._connecting.disconnect(packet, commands, now)
        else:
            raise MqttError(Reason.PROTOCOL_ERROR, "AUTH without an authentication method in CONNECT")

    def end_input(self) -> None:
        """Parse no further input."""
        self.is_over = True
        version, self._parser = self._parser.version, PacketParser(CONNECT_BYTES_MAX)
        self._parser.version = version
        self._early_bytes = 0

    def end(self) -> None:
        """End the session with its connection, and report the end to the hooks. Later calls do nothing."""
        had_ended, self.has_ended = self.has_ended, True
        self.end_input()
        self.queued.clear()
        self.has_more = False
        if had_ended:
            return
        if self.is_connected:
            self._connecting.left()
        else:
            self._connecting.given_up()
        self.last_refusal = None
        self._subscribing.cut()
        self._retained.cut()
        self._stored.cut()
        del self._connecting, self._subscribing, self._delivering, self._retained, self._publishing, self._stored

    def peer_disconnect(self) -> Command | None:
        """Return None: MQTT has no half-closed connections, so the connection ends without DISCONNECT."""
        return None

    # ---- replies of the broker

    def connected(self, command: Connect, session_id: str, user: str | None = None) -> None:
        """Continue CONNECT after the login."""
        if self.has_ended:
            return
        self.receive_interval_ms = self._connecting.keep_alive_ms
        self._parser.packet_bytes_max = self.limits.packet_bytes_max
        self._connecting.connected(command)

    def receipt(self, receipt: int | Receipt) -> None:
        """Confirm a durable command: send PUBACK if ``receipt`` is a packet id, otherwise call ``receipt.done``."""
        if not isinstance(receipt, int):
            receipt.done()
        elif not self.has_ended:
            self._publishing.stored(receipt)

    def deliver(
        self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode
    ) -> Callable[[], None] | None:
        """Process a record from the session's queue, a token of a retained message, or a message of a subscription."""
        if self.has_ended:
            return None
        if subscription_id == STATE:
            self._stored.deliver(tag, message)
            return None
        if subscription_id == INBOX:
            return self._deliver_retained(tag, message)
        subscription = self._subscribing.of_id(subscription_id)
        if subscription is None:
            return None  # the subscription is being closed, and the message then returns to it
        return self._delivering.deliver(subscription, tag, message, redeliveries)

    def _deliver_retained(self, tag: int, token: Message) -> Callable[[], None] | None:
        owed = self._retained.owed(token)
        prepare = None
        try:
            if owed is not None and not owed[0].is_left:
                subscription, message, position = owed
                prepare = self._delivering.deliver(subscription, tag, message, 0, position)
            else:
                self.later(Ack(INBOX, tag))
        except Undeliverable:
            self.later(Ack(INBOX, tag))
        if prepare is None:
            self._retained.arrived(token)
        return prepare

    def fail(self, error: ClientError) -> None:
        """Report a refusal to the part that waits for the command, or to the client if it ends the connection."""
        receipt = error.receipt
        if isinstance(receipt, Receipt):
            receipt.failed(error)
        elif self.has_ended:
            return
        elif isinstance(receipt, int):
            self._publishing.refuse(PacketType.PUBACK, receipt, error)
        elif error.is_fatal:
            self._connecting.write_end_reason(error, self._parser.version)
        elif error.kind in _OF_PUBLISH and self.version is not Version.V5:
            if self._publishing.report_refusal(error):
                self.hang_up(reason_of(error), error.message)
            else:
                self.last_refusal = error
        else:
            self.last_refusal = error

    def nothing(self, subscription_id: str) -> None:
        """Do nothing: MQTT clients do not browse or pull."""

    def drop_prepared(self) -> None:
        if not self.has_ended:
            self._delivering.drop_prepared()

    def tell_prefetch(self, subscription_id: str, prefetch: int) -> None:
        raise AssertionError("MQTT clients do not pull")

    def close_consumer(self, subscription_id: str, error: ClientError) -> None:
        """End the connection: MQTT has no packet that ends one subscription."""
        self.hang_up(reason_of(error), error.message)

    def prepared(self, receipt: object, is_read_only: bool) -> None:
        raise AssertionError("MQTT clients do not prepare transactions")

    def recovered(self, receipt: object, branches: Sequence[XaTransactionId]) -> None:
        raise AssertionError("MQTT clients do not request prepared transactions")

    def tell_brokers(self) -> None:
        """Do nothing: MQTT has no packet for other brokers."""

    def heart_beat(self) -> None:
        """Do nothing: only the client sends heart-beats (PINGREQ), and gets an answer."""


# Kinds of errors with which a message of QoS 0, or a message in a transaction, is refused.
_OF_PUBLISH: Final = frozenset((ErrorKind.SECURITY, ErrorKind.DESTINATION, ErrorKind.RESOURCE, ErrorKind.FORMAT))
