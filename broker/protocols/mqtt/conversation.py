"""Common part of a session: the client's identity, its limits, and the output to the client and to the broker. Pure."""

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

#: Upper bound of the numbers of retained messages.
NEWEST: Final = (1 << 63) - 1
_UNKNOWN: Final = Principal(ANONYMOUS, is_proved=False)
_REASON_CHARACTERS_MAX: Final = 500
# A client with at least this Maximum Packet Size can receive a reason string. A character has at most four bytes in
# UTF-8.
_REASON_PACKET_BYTES_MAX: Final = 64 + 4 * _REASON_CHARACTERS_MAX
_PUBACK: Final = packets.SHORT_HEADS[PacketType.PUBACK]
# Packet ids of messages of QoS 1 that were sent and not acknowledged, by topic filter and message id.
SentIds = dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class MqttLimits:
    """Settings of the operator ([mqtt] and the connector). ``session_expiry_max``: seconds; None: no limit."""

    packet_bytes_max: int
    receive_maximum: int = 1_024
    topic_alias_maximum: int = 16
    session_expiry_max: int | None = None
    default_keep_alive: int = 0  # seconds, for a client with Keep Alive 0
    prefetch: int | None = None
    takes_dollar_topics: bool = False
    closes_on_refused_publish: bool = True  # MQTT 3 has no error answer; if false, it is acknowledged
    steals_client_id: bool = True  # closes the same user's other connection with that id


class Receipt:
    """Receipt of a command. ``done`` is called when the command is carried out and durable; ``failed`` is called if it
    was refused."""

    __slots__ = ("done", "failed")

    def __init__(self, done: Callable[[], None], failed: Callable[[ClientError], None]) -> None:
        self.done = done
        self.failed = failed


class Conversation(Output):
    """Identity of the client (from CONNECT and the login), and the output to the client and to the broker.

    ``connection_id``: prefix of the ids of the client's messages. ``clock`` returns milliseconds since 1970.
    ``outgoing_max``: limit of the unacknowledged messages of QoS 1 and 2 to the client (its Receive Maximum).
    ``packet_bytes_max``: the client's Maximum Packet Size; 0: no limit.
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
        self.is_over = False  # no further input is parsed
        self.has_ended = False  # the connection has ended
        self.has_more = False
        self.queued: deque[Command] = deque()
        self.last_refusal: ClientError | None = None  # of a command in a transaction
        self._sequence = 0
        self._transactions = 0

    # ---- to the broker

    def later(self, *commands: Command) -> None:
        """Request that the commands are carried out soon, in this order. For calls by the broker, which happen while
        other commands are carried out. Without commands: request a turn for the session."""
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
        """Parse no further input."""
        self.is_over = True

    def hang_up(self, reason: Reason, text: str) -> None:
        """End the connection, and send the reason to the client."""
        if not self.is_over:
            self.end_input()
            self.later(ProtocolFailure(MqttError(reason, text)))

    # ---- to the client

    def send(self, packet: bytes) -> None:
        """Write a packet. If it is longer than the client's Maximum Packet Size (MQTT-3.1.2-24), end the connection
        instead."""
        if self.packet_bytes_max and len(packet) > self.packet_bytes_max:
            self.hang_up(Reason.PACKET_TOO_LARGE, "An answer is longer than the client's Maximum Packet Size")
            return
        self._write(packet)

    def write(self, part: bytes) -> None:
        """Write a packet or a part of one. The caller has checked its length."""
        self._write(part)

    def answer(self, type: PacketType, packet_id: int, reason: Reason = Reason.SUCCESS, text: str = "") -> None:
        """Write PUBACK, PUBREC, PUBREL or PUBCOMP."""
        properties = self.why(text) if text else NONE
        self.send(packets.acknowledgement(self.version, type, packet_id, reason, properties))

    def confirm(self, packet_id: int) -> None:
        """Write PUBACK without a reason and properties."""
        packet = _PUBACK + packet_id.to_bytes(2, "big")
        if self.packet_bytes_max:
            self.send(packet)
        else:
            self._out.append(packet)
            self.pending_bytes += len(packet)

    def why(self, text: str) -> Properties:
        """Return ``text`` as Reason String, if the client wants it and its Maximum Packet Size permits it
        (MQTT-3.4.2-2)."""
        if not self.tells_problems or 0 < self.packet_bytes_max < _REASON_PACKET_BYTES_MAX:
            return NONE
        return Properties(reason_string=text[:_REASON_CHARACTERS_MAX].replace("\0", " "))


def nothing() -> None:
    """Do nothing: a receipt that no part of the session waits for."""


def ignore(error: ClientError) -> None:
    """Do nothing: a refusal that no part of the session waits for."""


def _nothing_yet(destination: Destination) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ConnectionEnd:
    """End of a connection that had been accepted. ``will``: the will to publish after its delay; None: there is none,
    or the client sent DISCONNECT. ``will_bytes``: memory reserved by ``may_have_will``. ``state``: the queue of the
    stored session; None: it is not stored. ``expiry``: seconds that the session lives from now on. ``is_noted``: the
    session's record has the time of the end. ``sent``: packet ids of a stored session, for its next connection."""

    client_id: str
    principal: Principal
    will: Will | None
    state: Destination | None
    expiry: int
    is_noted: bool = False
    sent: SentIds = field(default_factory=dict)
    will_bytes: int = 0


class Hooks(Protocol):
    """Interface of a session to the state that MQTT clients share (broker.mqtt.clients). Called on the loop. No method
    raises."""

    @property
    def is_loaded(self) -> bool:
        """True if ``retained`` returns all messages whose publishers got a confirmation. False while the messages of a
        former term are read, and until a newly published retained message is delivered to the broker's own queue."""

    def when_loaded(self, then: Callable[[], None]) -> None:
        """Call ``then`` once, when ``is_loaded`` is true."""

    def retained(self, topic_filter: str, after: str = "", until: int = NEWEST) -> Iterator[Message | None]:
        """Return the retained messages of the matching topics, as they were published, in the order of their topics,
        beginning after the topic ``after``. Messages newer than ``until`` (a former value of ``newest``) are left out.
        ``Message.original_destination`` is the topic. Messages of $SYS are not persistent: they come first, and are
        made for this call. The iterator yields None when a long search should pause; the caller may continue in a later
        turn of the loop."""

    @property
    def newest(self) -> int:
        """Number that is less than the numbers of all messages that are retained from now on, also by a later
        master."""

    def may_retain(self, topic: Destination, size: int) -> int:
        """Return the number for a new retained message of ``size`` bytes (``broker.mqtt.retained_messages.number_of``);
        0: a limit is reached (settings ``mqtt.retained_messages_max`` and ``retained_bytes_max``). Call it for each
        message before it is sent. A message of size 0, which removes the retained one, is always permitted."""

    def may_have_will(self, principal: Principal, size: int) -> bool:
        """Reserve ``size`` bytes of memory for a will of ``principal``; return False if the wills of its user would
        exceed their limit (``Memory.held_max``). The memory is reserved until ``release_will``, or until the will
        that ``left`` passed is published or dropped."""

    def release_will(self, principal: Principal, size: int) -> None:
        """Free the memory of a will whose connection ended before it was accepted."""

    def publish_refused(self, client_id: str, reason: str) -> None:
        """Report that a message of an MQTT 3 client was refused. The client gets no reason. Refusals for lack of rights
        are logged elsewhere and are not reported here."""

    def client_connected(self, client_id: str, *, is_resumed: bool) -> None:
        """Report that a client was accepted. ``is_resumed``: it continues its stored session."""

    def client_left(self, end: ConnectionEnd) -> None:
        """Report the end of an accepted connection."""

    def take_sent_ids(self, client_id: str) -> SentIds | None:
        """Remove and return the packet ids (``ConnectionEnd.sent``) of the last connection of that client id; None:
        they are not known, so a former master may have sent messages. Called once, when a session is resumed."""
