"""Common part of a session: the client's identity, its limits, and the ways to it and to the broker. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from tandemmq.broker.core.commands import ClientError, Command, ProtocolFailure
from tandemmq.broker.core.principal import ANONYMOUS, Principal
from tandemmq.broker.protocols.mqtt import packets
from tandemmq.broker.protocols.mqtt.packets import PacketType, Version, Will
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tandemmq.broker.protocols.mqtt.reason_codes import MqttError, Reason
from tandemmq.broker.protocols.output import Output
from tandemmq.store.records.message import Destination, Message
from tandemmq.store.records.message_ids import broker_producer

#: No number is greater.
NEWEST: Final = (1 << 63) - 1
_UNKNOWN: Final = Principal(ANONYMOUS, is_proved=False)
_REASON_CHARACTERS_MAX: Final = 500
# A packet that takes no more than this takes a reason string, too; of a character UTF-8 has four bytes at most.
_REASON_PACKET_BYTES_MAX: Final = 64 + 4 * _REASON_CHARACTERS_MAX
_PUBACK: Final = packets.SHORT_HEADS[PacketType.PUBACK]
# Packet ids of messages of QoS 1 that were sent and not acknowledged, by topic filter and id of the message.
SentIds = dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class MqttLimits:
    """Limits set by the operator (settings of [mqtt] and of the connector). ``session_expiry_max`` None: as clients
    request."""

    packet_bytes_max: int
    receive_maximum: int = 1_024
    topic_alias_maximum: int = 16
    session_expiry_max: int | None = None
    default_keep_alive: int = 0  # seconds, of a client that promises none
    prefetch: int | None = None
    takes_dollar_topics: bool = False
    closes_on_refused_publish: bool = True  # of MQTT 3, which has no other answer; else it is acknowledged
    steals_client_id: bool = True  # from another connection of the same user, which the specification demands


class Waiting:
    """Receipt of a command: ``done`` is called when it holds, ``failed`` when it was refused."""

    __slots__ = ("done", "failed")

    def __init__(self, done: Callable[[], None], failed: Callable[[ClientError], None]) -> None:
        self.done = done
        self.failed = failed


class Conversation(Output):
    """Identity of the client (by CONNECT and the login), and the ways to it and to the broker.

    ``connection_id`` starts the ids of its messages; ``clock`` gives the milliseconds since 1970. ``outgoing_max``: so
    many messages of QoS 1 and 2 may be on their way to the client (its Receive Maximum); ``packet_bytes_max``: the
    longest packet that it takes, 0: any.
    """

    def __init__(self, connection_id: str, clock: Callable[[], int], *, limits: MqttLimits, hooks: Hooks) -> None:
        Output.__init__(self)
        self.clock = clock
        self.limits = limits
        self.hooks = hooks
        self.message_id_prefix = f"{broker_producer(connection_id)}:"
        self.inbox_name = f"{connection_id}:mqtt"
        self.version = Version.V3_1_1
        self.client_id = ""
        self.principal = _UNKNOWN
        self.may_read: Callable[[Destination], bool] = _nothing_yet
        self.outgoing_max = 1
        self.packet_bytes_max = 0
        self.tells_problems = True
        self.is_connected = False  # CONNACK was sent
        self.is_over = False  # nothing more is parsed
        self.has_ended = False  # the connection is gone
        self.has_more = False
        self.queued: deque[Command] = deque()
        self.last_refusal: ClientError | None = None  # of a command in a transaction
        self._sequence = 0
        self._transactions = 0

    # ---- to the broker

    def later(self, *commands: Command) -> None:
        """Request that the commands are carried out soon, in this order; for replies of the broker, which come while
        commands are carried out. Without any: the session wants a turn."""
        if not self.has_ended:
            self.queued.extend(commands)
            self.has_more = True
            self.wake()

    def next_message_id(self) -> str:
        self._sequence = sequence = self._sequence + 1
        return f"{self.message_id_prefix}{sequence}"

    def next_transaction(self) -> str:
        self._transactions += 1
        return str(self._transactions)

    def end_input(self) -> None:
        """Parse nothing more."""
        self.is_over = True

    def hang_up(self, reason: Reason, text: str) -> None:
        """End the connection, and send the reason to the client."""
        if not self.is_over:
            self.end_input()
            self.later(ProtocolFailure(MqttError(reason, text)))

    # ---- to the client

    def say(self, packet: bytes) -> None:
        """Write a packet. One that is too long for the client (MQTT-3.1.2-24) is not written; the connection ends."""
        if self.packet_bytes_max and len(packet) > self.packet_bytes_max:
            self.hang_up(Reason.PACKET_TOO_LARGE, "An answer is longer than the client's Maximum Packet Size")
            return
        self._write(packet)

    def write(self, part: bytes) -> None:
        """Write a packet that is not too long, or part of one."""
        self._write(part)

    def answer(self, type: PacketType, packet_id: int, reason: Reason = Reason.SUCCESS, text: str = "") -> None:
        """Write PUBACK, PUBREC, PUBREL or PUBCOMP."""
        properties = self.why(text) if text else NONE
        self.say(packets.acknowledgement(self.version, type, packet_id, reason, properties))

    def confirm(self, packet_id: int) -> None:
        """Write PUBACK without a reason and properties."""
        packet = _PUBACK + packet_id.to_bytes(2, "big")
        if self.packet_bytes_max:
            self.say(packet)
        else:
            self._out.append(packet)
            self.pending_bytes += len(packet)

    def why(self, text: str) -> Properties:
        """Return ``text`` for a person, if the client wants it and has room for it (MQTT-3.4.2-2)."""
        if not self.tells_problems or 0 < self.packet_bytes_max < _REASON_PACKET_BYTES_MAX:
            return NONE
        return Properties(reason_string=text[:_REASON_CHARACTERS_MAX].replace("\0", " "))


def nothing() -> None:
    """Do nothing: no part of the session waits for the command."""


def ignore(error: ClientError) -> None:
    """Do nothing about the error: no client waits for it."""


def _nothing_yet(destination: Destination) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Left:
    """End of a connection that had been accepted. ``will``: to be published after its delay; None: there is none, or
    its client left in order; ``will_bytes``: memory reserved by ``may_have_will``. ``state``: the queue of its session,
    if that is stored; ``expiry``: its seconds to live from now on; ``is_noted``: its record has the time of the end.
    ``sent``: of a session that is stored, for the next connection."""

    client_id: str
    principal: Principal
    will: Will | None
    state: Destination | None
    expiry: int
    is_noted: bool = False
    sent: SentIds = field(default_factory=dict)
    will_bytes: int = 0


class Hooks(Protocol):
    """Hooks, called on the loop. None of them raises."""

    @property
    def is_loaded(self) -> bool:
        """True if ``retained`` has all messages that were confirmed as retained. False while the messages of a former
        term are read, and for a moment after each one."""

    def when_loaded(self, then: Callable[[], None]) -> None:
        """Call ``then``, once, when ``is_loaded``."""

    def retained(self, topic_filter: str, after: str = "", until: int = NEWEST) -> Iterator[Message | None]:
        """Return the retained messages of the topics that match, as they were published, in the order of their topics,
        from those after ``after`` on. None is newer than ``until``, a number that ``newest`` was.
        ``Message.original_destination`` is the topic's. Messages that are not persistent are of $SYS: they have no
        place in that order, and are made for this call. None: time for a pause; other turns of the loop may come before
        the next one."""

    @property
    def newest(self) -> int:
        """Number that is less than those of all messages that are retained from now on, also with another master."""

    def may_retain(self, topic: Destination, size: int) -> int:
        """Return the number of a retained message of so many bytes (``retained.number_of``); 0: it has no room
        (settings ``mqtt.retained_messages_max`` and ``retained_bytes_max``). Called for each one before it is sent; an
        empty one (0) has room."""

    def may_have_will(self, principal: Principal, size: int) -> bool:
        """Return whether so many bytes of memory may be taken for a will of ``principal``; then they are, until
        ``left`` or ``give_will_back``, or until the will that is left is published. The wills of one user have no more
        than the bound of the memory (``Memory.held_max``)."""

    def give_will_back(self, principal: Principal, size: int) -> None:
        """Give back the memory of a will: the connection ended before it was accepted."""

    def publish_refused(self, client_id: str, reason: str) -> None:
        """Report that a message of a client of MQTT 3 was refused, and not for want of rights. The client gets no
        reason."""

    def came(self, client_id: str, *, is_resumed: bool) -> None:
        """Report that a client was accepted. ``is_resumed``: with the session that it had."""

    def left(self, left: Left) -> None: ...

    def sent(self, client_id: str) -> SentIds | None:
        """Return the packet ids that the last connection of that client id left, as far as they are remembered; None:
        no such connection is known, so a former master may have sent messages. Called once, when the session goes
        on."""
