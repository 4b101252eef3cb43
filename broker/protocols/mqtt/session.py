"""Conversation of one MQTT client (3.1, 3.1.1 and 5.0): bytes in, commands out; the broker's replies in, bytes out.
Pure.

A session that outlives its connection is stored in its own queue. Only this connection reads and writes that queue,
with the same commands that clients use for other queues. A record is in the journal before the packet that confirms it
is sent: PUBACK, PUBREC, PUBCOMP, SUBACK and UNSUBACK are receipts.

    conversation       the client's identity, and the interfaces to the client and the broker; used by all others
    stored_session     the session's queue
    qos2               state of QoS 2, and its records
    publish            PUBLISH and PUBREL from the client
    retained_delivery  retained messages for subscriptions that began
    deliver            PUBLISH to the client, and its answers
    subscribe          SUBSCRIBE, UNSUBSCRIBE
    connect            CONNECT to CONNACK, DISCONNECT

Promises: ``receive`` never raises, whatever arrives; after a fatal failure or DISCONNECT nothing more is parsed.
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
from tandemmq.broker.protocols.mqtt.conversation import Conversation, Hooks, MqttLimits, Waiting
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
# Limit of a CONNECT, and of all input before it. A will's payload may have 64 KiB, and each name, too.
CONNECT_BYTES_MAX: Final = 256 * 1024


class MqttSession(Conversation):
    """Conversation with one client over one connection. It and its parts refer to each other; ``end`` removes the
    references, so that the session and the messages that it holds are freed at once."""

    __deletable__ = ("_connecting", "_subscribing", "_delivering", "_retained", "_publishing", "_stored")

    def __init__(self, connection_id: str, clock: Callable[[], int], *, limits: MqttLimits, hooks: Hooks) -> None:
        Conversation.__init__(self, connection_id, clock, limits=limits, hooks=hooks)
        self.send_interval_ms = 0
        self.receive_interval_ms = 0
        self._parser = PacketParser(min(limits.packet_bytes_max, CONNECT_BYTES_MAX))
        self._early_bytes = 0  # that came between CONNECT and CONNACK
        self._stored = StoredSession(self)
        self._publishing = Publishing(self, self._stored)
        self._retained = RetainedDelivery(self, self._stored)
        self._delivering = Delivering(self, self._stored, self._retained)
        self._subscribing = Subscribing(self, self._stored, self._retained, self._delivering)
        self._connecting = Connecting(self, self._stored, self._publishing, self._delivering, self._subscribing)

    @property
    def survives_errors(self) -> bool:
        """Return True: this class decides what a refusal means for its connection."""
        return True

    @property
    def can_pull(self) -> bool:
        return False

    @property
    def is_logged_in(self) -> bool:
        return self.is_connected

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of a packet that is not whole, and of whole packets that wait for CONNACK."""
        return self._early_bytes + self._parser.unfinished_bytes

    # ---- what the client says

    def receive(self, data: bytes) -> Sequence[Command]:
        """Return commands, as Session.receive does; the session's own commands come first."""
        commands: list[Command] = []
        is_stopped = False
        try:
            if data and not self.is_over:
                self._parser.feed(data)
                if self._connecting.is_waiting:
                    self._early_bytes += len(data)
            self._give(commands)
            is_stopped = self._understand(commands)
            self._give(commands)
        except MqttError as error:
            forget_frames(error)
            commands += self._stored.gathered()
            if not self.is_over:
                self.end_input()
                commands.append(ProtocolFailure(error))
        if not self.queued and self.is_connected and len(commands) < COMMANDS_MAX:
            self._retained.give(commands)
        is_full = is_stopped or len(commands) >= COMMANDS_MAX
        self.has_more = is_full or bool(self.queued) or self._retained.wants_turn
        return commands

    def _give(self, commands: list[Command]) -> None:
        """Append the session's own commands, up to the limit of this turn."""
        self.queued.extend(self._stored.gathered())
        while self.queued and len(commands) < COMMANDS_MAX:
            commands.append(self.queued.popleft())

    def _understand(self, commands: list[Command]) -> bool:
        """Parse packets; return whether parsing stopped before the last complete one. It stops at a number of packets
        and filters, because many packets, such as PINGREQ, give no command; within a packet with many filters; and if
        the session has commands itself, because they come first."""
        connecting, parser = self._connecting, self._parser
        now = taken = 0
        ends = parser.offset + RECEIVED_BYTES_MAX
        while not self.is_over and not connecting.is_waiting and len(commands) < COMMANDS_MAX and not self.queued:
            if self._early_bytes and self.is_connected:
                self._early_bytes = 0
            if taken >= COMMANDS_MAX or parser.offset >= ends:
                return True
            if self._subscribing.is_under_way:
                self._subscribing.go_on(commands)
                taken += COMMANDS_MAX
                continue
            packet = parser.next_packet()
            if packet is None:
                return parser.is_reading
            taken += len(packet.filters) if isinstance(packet, _OF_FILTERS) else 1
            now = now or self.clock()
            self._take(packet, commands, now)
        if len(commands) > COMMANDS_MAX:  # of one packet with very many filters
            self.queued.extendleft(reversed(commands[COMMANDS_MAX:]))
            del commands[COMMANDS_MAX:]
        return bool(self.queued)

    def _take(self, packet: Packet, commands: list[Command], now: int) -> None:
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
            self.say(packets.PINGRESP)
        elif isinstance(packet, packets.Subscribe):
            self._subscribing.subscribe(packet, commands)
        elif isinstance(packet, packets.Unsubscribe):
            self._subscribing.unsubscribe(packet, commands)
        elif isinstance(packet, packets.Disconnect):
            self._connecting.disconnect(packet, commands, now)
        else:
            raise MqttError(Reason.PROTOCOL_ERROR, "No authentication was begun")

    def end_input(self) -> None:
        """Parse nothing more."""
        self.is_over = True
        version, self._parser = self._parser.version, PacketParser(CONNECT_BYTES_MAX)
        self._parser.version = version
        self._early_bytes = 0

    def end(self) -> None:
        """End the session with its connection, once, and report the end to other parts of the broker."""
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
        """Return None: MQTT knows no half of a connection, and a client that disconnects without DISCONNECT is gone."""
        return None

    # ---- what the broker says

    def connected(self, command: Connect, session_id: str, user: str | None = None) -> None:
        """Continue after the login."""
        if self.has_ended:
            return
        self.receive_interval_ms = self._connecting.keep_alive_ms
        self._parser.packet_bytes_max = self.limits.packet_bytes_max
        self._connecting.connected(command)

    def receipt(self, receipt: int | Waiting) -> None:
        """Confirm a command that is durable: PUBACK for a packet id, else the receipt's own function."""
        if not isinstance(receipt, int):
            receipt.done()
        elif not self.has_ended:
            self._publishing.stored(receipt)

    def deliver(
        self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode
    ) -> Callable[[], None] | None:
        """Take a record of the session's queue, a retained message, or one of a subscription."""
        if self.has_ended:
            return None
        if subscription_id == STATE:
            self._stored.deliver(tag, message)
            return None
        if subscription_id == INBOX:
            return self._deliver_retained(tag, message)
        subscription = self._subscribing.of_id(subscription_id)
        if subscription is None:
            return None  # it is being closed, and has the message back then
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
        """Report an error to the part that waits for the command, or to the client if it ends the connection."""
        receipt = error.receipt
        if isinstance(receipt, Waiting):
            receipt.failed(error)
        elif self.has_ended:
            return
        elif isinstance(receipt, int):
            self._publishing.refuse(PacketType.PUBACK, receipt, error)
        elif error.is_fatal:
            self._connecting.tell_end(error, self._parser.version)
        elif error.kind in _OF_PUBLISH and self.version is not Version.V5:
            if self._publishing.refuse_without_word(error):
                self.hang_up(reason_of(error), error.message)
            else:
                self.last_refusal = error
        else:
            self.last_refusal = error

    def nothing(self, subscription_id: str) -> None:
        """Do nothing: no client of MQTT browses or pulls."""

    def drop_prepared(self) -> None:
        if not self.has_ended:
            self._delivering.drop_prepared()

    def tell_prefetch(self, subscription_id: str, prefetch: int) -> None:
        raise AssertionError("no MQTT client pulls")

    def close_consumer(self, subscription_id: str, error: ClientError) -> None:
        """End the connection: MQTT has no other way to report it."""
        self.hang_up(reason_of(error), error.message)

    def prepared(self, receipt: object, is_read_only: bool) -> None:
        raise AssertionError("no MQTT client prepares a transaction")

    def recovered(self, receipt: object, branches: Sequence[XaTransactionId]) -> None:
        raise AssertionError("no MQTT client asks for prepared transactions")

    def tell_brokers(self) -> None:
        """Do nothing: MQTT has no packet for it."""

    def heart_beat(self) -> None:
        """Do nothing: the client sends PINGREQ for a sign of life, and gets it."""


# Reasons for which a message of QoS 0, or one within a transaction, is refused.
_OF_PUBLISH: Final = frozenset((ErrorKind.SECURITY, ErrorKind.DESTINATION, ErrorKind.RESOURCE, ErrorKind.FORMAT))
