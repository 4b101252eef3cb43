"""Connection of one AMQP client: bytes in, commands out; the broker's replies in, bytes out. Pure.

    SASL header, mechanisms, init -> LogIn -> outcome     AMQP header, open -> Connect -> open     begin, attach, ...

    opening   login and open             channel   a session: windows, links, deliveries
    incoming  message from the client    outgoing  message to the client

Promises: ``receive`` never raises. After a fatal failure or a close, nothing is parsed. Frames that a client sends
before the answer to its login or open (Qpid JMS and Proton do) wait for that answer. Frames on a channel that the
client has ended wait for the answer to the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any, Final

from tandemmq.broker.core.commands import (
    AckMode,
    ClientError,
    Command,
    Connect,
    Disconnect,
    ErrorKind,
    Hold,
    ProtocolFailure,
    Subscribe,
    Undeliverable,
    forget_frames,
)
from tandemmq.broker.protocols.amqp import frames, schema
from tandemmq.broker.protocols.amqp.attached_links import HANDLE_MAX, Link, LinkEnds
from tandemmq.broker.protocols.amqp.channel import Channel, ChannelConnected
from tandemmq.broker.protocols.amqp.codec import read_performative
from tandemmq.broker.protocols.amqp.deliveries_in import Sent
from tandemmq.broker.protocols.amqp.endpoint import WINDOW
from tandemmq.broker.protocols.amqp.errors import (
    FRAME_SIZE_TOO_SMALL,
    FRAMING_ERROR,
    ILLEGAL_STATE,
    NOT_ALLOWED,
    RESOURCE_LIMIT,
    AmqpError,
    ConnectionFailure,
    Scope,
)
from tandemmq.broker.protocols.amqp.frames import OF_SASL, Frame, FrameCutter
from tandemmq.broker.protocols.amqp.links import Callbacks, OutLink, acknowledged
from tandemmq.broker.protocols.amqp.opening import (
    CHANNEL_MAX,
    SASL_OK,
    SASL_SYS,
    SASL_SYS_TEMP,
    AmqpLimits,
    LoginRefused,
    answer_to,
    check_open,
    connect_of,
    login_of,
    mechanisms_for,
    reason_of,
    refusal,
    sasl_code_of,
    wrong_header,
)
from tandemmq.broker.protocols.amqp.outgoing import TakesLong, as_sent, encode
from tandemmq.broker.protocols.amqp.schema import Disposition, Error, Transfer
from tandemmq.broker.protocols.amqp.transactions import Transactions
from tandemmq.broker.protocols.output import roomy, uncounted
from tandemmq.broker.protocols.session import COMMANDS_MAX, RECEIVED_BYTES_MAX
from tandemmq.store.records.message import Message
from tandemmq.store.records.message_ids import broker_producer
from tandemmq.store.records.transactions import XaTransactionId

# Limit of one connection: links in all sessions.
LINKS_MAX: Final = 4_096
# Limit of bytes that wait for the answer to a login, to an open, or to an end whose channel is used again.
WAITING_BYTES_MAX: Final = 64 * 1024
# Limits of one turn: received frames, written frames of waiting deliveries, examined deliveries.
FRAMES_MAX: Final = 256
SENT_FRAMES_MAX: Final = 256
SCANNED_MAX: Final = 4_096
# Memory of a session, and of a link, in addition to that which the engine counts.
SESSION_BYTES: Final = 2_000
LINK_BYTES: Final = 1_500
CHARACTER_BYTES: Final = 4  # of the name of a link


class State(Enum):
    """State of the connection."""

    SASL_HEADER = auto()
    INIT = auto()
    LOGGING_IN = auto()  # the engine checks the credentials
    AMQP_HEADER = auto()
    OPEN = auto()
    CONNECTING = auto()  # the engine has the open
    CONNECTED = auto()
    OVER = auto()


_INIT: Final = State.INIT
_CONNECTED: Final = State.CONNECTED
_WAITS: Final = (State.LOGGING_IN, State.CONNECTING, State.OVER)
_HEADERS: Final = (State.SASL_HEADER, State.AMQP_HEADER)


class AmqpSession(ChannelConnected):
    """State of one connection (a ``Session`` of the transport). ``clock`` returns milliseconds since 1970. ``secret``
    returns random text, so that no client can guess the name of a temporary destination."""

    def __init__(
        self, connection_id: str, clock: Callable[[], int], *, limits: AmqpLimits, secret: Callable[[], str]
    ) -> None:
        super().__init__()
        self._connection_id = connection_id
        self._secret = secret
        self._clock = clock
        self.limits = limits
        self.now = 0
        self.has_more = False
        self.is_connected = False
        self.send_interval_ms = 0
        self.receive_interval_ms = 0
        self.message_bytes_max = limits.message_bytes_max
        self.unsettled_max = limits.unsettled_max
        self.partial_bytes = 0
        self.transactions = Transactions(self._memory_refused)
        self.container_id = ""
        self.has_client_id = False
        self.by_name: dict[tuple[str, bool], tuple[LinkEnds, Link]] = {}
        self.links = 0
        self._name_characters = 0
        self._state = self._ended_in = State.SASL_HEADER
        self._is_opened = False  # the broker's open was written
        self._is_closed = False  # the broker's close was written
        self._cutter = FrameCutter()
        self._certificate: str | None = None
        self._has_sasl = True
        self._login: str | None = None
        self._channels: dict[int, Channel] = {}
        self._ending: set[int] = set()  # channels that the client has ended, and this side has not
        self._is_blocked = False  # the next frame is for one of them
        self._out_links: dict[str, tuple[OutLink, Channel]] = {}
        self._enqueued: deque[Command] = deque()
        self._written: deque[OutLink] = deque()  # links to which presettled deliveries were written
        self._next_turn: deque[Callable[[], None]] = deque()  # functions that write waiting frames
        self._may_send = SENT_FRAMES_MAX  # in this turn
        # Channel and remaining work of a frame that takes several turns.
        self._deferred: tuple[int, Callable[[list[Command]], None]] | None = None
        self._held_bytes = 0  # memory that the engine counts for sessions and links
        self._last_id = 0
        self._message_id_prefix = f"{broker_producer(connection_id)}:"
        self._sequence = 0
        # The next message to deliver, and its pieces, which were encoded on a thread.
        self._prepared: tuple[Message, tuple[list[bytes], int] | Undeliverable] | None = None

    @property
    def survives_errors(self) -> bool:
        """Return True: this class decides whether a refusal ends its connection."""
        return True

    @property
    def can_pull(self) -> bool:
        """Return True: only the client grants credit to a subscription."""
        return True

    @property
    def is_logged_in(self) -> bool:
        return self.is_connected

    @property
    def _is_parsing(self) -> bool:
        return self._state is not State.OVER

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of an incomplete frame, of incomplete deliveries, and of frames that wait for an answer."""
        return self._cutter.pending_bytes + self.partial_bytes

    def set_certificate(self, certificate: str) -> None:
        """See ``Session.set_certificate``: the client may choose SASL EXTERNAL."""
        self._certificate = certificate

    # ---- input

    def receive(self, data: bytes) -> Sequence[Command]:
        """See ``Session.receive``. The session's own commands come first."""
        commands: list[Command] = []
        if not self._is_parsing:
            self.has_more = False
            return commands
        self.now = self._clock()
        self._may_send = SENT_FRAMES_MAX
        for _ in range(len(self._next_turn)):
            if not self._may_send or not self.has_room():
                break
            self._next_turn.popleft()()
        while self._written and len(commands) < COMMANDS_MAX:
            self._acknowledge_written(commands)
        while self._enqueued and len(commands) < COMMANDS_MAX:
            commands.append(self._enqueued.popleft())
        is_stopped = False
        try:
            if data:
                self._cutter.feed(data)
            is_stopped = self._parse(commands)
            is_waiting = self._is_blocked or self._state in _WAITS
            if is_waiting and self._cutter.pending_bytes > WAITING_BYTES_MAX:
                text = f"more than {WAITING_BYTES_MAX} bytes came before the answer to the login, the open or an end"
                raise AmqpError(RESOURCE_LIMIT, text)
        except AmqpError as error:
            failure = ConnectionFailure(error)
            if isinstance(error, LoginRefused):
                code = error.code
                failure.receipt = Callbacks(lambda: None, lambda _: self._refuse_login(code))
            forget_frames(failure)
            commands.append(ProtocolFailure(failure))
            self.end()
        self.has_more = self._is_parsing and (
            is_stopped or bool(self._enqueued) or bool(self._written) or (bool(self._next_turn) and self.has_room())
        )
        return commands

    def _parse(self, commands: list[Command]) -> bool:
        """Handle headers and frames. Return True if the rest must wait for the next turn."""
        taken = scanned = 0
        self._is_blocked = False
        for _ in range(FRAMES_MAX):
            is_connected = self._state is _CONNECTED
            if not is_connected and self._state in _WAITS:
                return False
            if len(commands) >= COMMANDS_MAX or taken >= RECEIVED_BYTES_MAX or scanned >= SCANNED_MAX:
                return True
            if self._deferred is not None:
                scanned += self._take_deferred(commands)
                continue
            if not is_connected and self._state in _HEADERS:
                header = self._cutter.header()
                if header is None:
                    return False
                self._take_header(header)
                continue
            frame = self._cutter.next_frame()
            if frame is None:
                return False
            taken += frame.size
            if self._ending and frame.channel in self._ending:
                self._cutter.put_back(frame)  # for the next session on this channel
                self._is_blocked = True
                return False
            count = len(commands)
            scanned += self._take_frame(frame, commands)
            if len(commands) > count and isinstance(commands[-1], Subscribe) and commands[-1].selector is not None:
                return True  # compiling the selector takes time
        return True

    def _take_header(self, header: bytes) -> None:
        is_first = self._state is State.SASL_HEADER
        if is_first and header == frames.AMQP and self.limits.allows_no_sasl:
            self._has_sasl = False
        expected = frames.SASL if is_first and self._has_sasl else frames.AMQP
        if header != expected:
            raise AmqpError(FRAMING_ERROR, wrong_header(header))
        self.write(expected)
        if expected == frames.SASL:
            self.write_performative(0, schema.SaslMechanisms(mechanisms_for(self._certificate)), type=OF_SASL)
            self._state = State.INIT
        else:
            self._state = State.OPEN

    def _take_frame(self, frame: Frame, commands: list[Command]) -> int:
        """Handle a frame; return the number of examined deliveries."""
        is_init = self._state is _INIT
        if (frame.type == OF_SASL) is not is_init:
            raise AmqpError(FRAMING_ERROR, f"a frame of type {frame.type} comes at the wrong time")
        if not frame.body:
            if is_init:
                raise AmqpError(FRAMING_ERROR, "a frame of SASL is empty")
            return 0
        if self._state is _CONNECTED:
            channel = self._channels.get(frame.channel)
            if channel is not None and not channel.is_ending:
                before = channel.scanned
                try:
                    if channel.take_usual(frame.body, commands):
                        return channel.scanned - before
                except AmqpError as error:
                    self._fail_channel(channel, error, commands)
                    return channel.scanned - before
        performative, payload_at = read_performative(frame.body)
        if self._state is _CONNECTED:
            return self._take_connected(frame.channel, performative, frame.body[payload_at:], commands)
        if is_init:
            if not isinstance(performative, schema.SaslInit):
                raise AmqpError(FRAMING_ERROR, f"{type(performative).__name__} comes before the SASL init")
            self._begin_login(performative, commands)
        else:
            if not isinstance(performative, schema.Open):
                raise AmqpError(ILLEGAL_STATE, f"{type(performative).__name__} comes before the open")
            self._open(performative, commands)
        return 0

    # ---- login and open

    def _begin_login(self, init: schema.SaslInit, commands: list[Command]) -> None:
        command = login_of(init, self._certificate, Callbacks(self._logged_in, self._not_logged_in))
        self._login = command.login
        self._state = State.LOGGING_IN
        commands.append(command)

    def _logged_in(self) -> None:
        if self._state is not State.LOGGING_IN:
            return
        self.write_performative(0, schema.SaslOutcome(SASL_OK), type=OF_SASL)
        self._state = State.AMQP_HEADER
        self._request_turn()

    def _not_logged_in(self, error: ClientError) -> None:
        self._refuse_login(sasl_code_of(error))

    def _refuse_login(self, code: int) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.write_performative(0, schema.SaslOutcome(code), type=OF_SASL)

    def _request_turn(self) -> None:
        """Request a turn if frames may wait."""
        if self._cutter.pending_bytes:
            self.has_more = True
            self.wake()

    def _open(self, opened: schema.Open, commands: list[Command]) -> None:
        check_open(opened)
        idle = opened.idle_time_out or 0
        self.frame_bytes_max = min(opened.max_frame_size, self.limits.frame_bytes_max)
        self.send_interval_ms = idle // 2
        self.receive_interval_ms = self.limits.idle_ms // 2
        done = Callbacks(lambda: None, self._not_opened)
        command = connect_of(opened, self.limits, self._login, done, is_logged_in=self._has_sasl)
        self.container_id, self.has_client_id = opened.container_id, command.client_id is not None
        self._state = State.CONNECTING
        commands.append(command)

    def connected(self, command: Connect, session_id: str, user: str | None = None) -> None:
        """Answer the open."""
        if self._state is not State.CONNECTING:
            return
        self._state = State.CONNECTED
        self.is_connected = True
        self._cutter.frame_bytes_max = self.limits.frame_bytes_max
        self._write_open(answer_to(command, self.limits, self.frame_bytes_max))
        self._request_turn()

    def _write_open(self, opened: schema.Open) -> None:
        self._is_opened = True
        self.write_performative(0, opened)

    def _not_opened(self, error: ClientError) -> None:
        self._close_with(reason_of(error))

    def _close_with(self, error: Error) -> None:
        """Write the close, once, and after an open."""
        if self._is_closed:
            return
        if not self._is_opened:
            self._write_open(refusal(self.limits))
        self.write_performative(0, schema.Close(error))
        self._is_closed = True

    def _close(self, commands: list[Command]) -> None:
        """End the connection: the close follows the answers to all earlier frames."""
        while self._written:
            self._acknowledge_written(commands)
        self.end()
        commands.append(Disconnect(Callbacks(self._write_close, lambda error: None)))

    def _write_close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.write_performative(0, schema.Close())

    # ---- sessions

    def _take_connected(
        self, number: int, performative: schema.Composite, payload: bytes, commands: list[Command]
    ) -> int:
        channel = self._channels.get(number)
        kind = type(performative)
        if channel is None or (kind is not Transfer and kind is not Disposition):  # nearly all frames are of these two
            if kind is schema.Close:
                self._close(commands)
                return 0
            if kind is schema.Open:
                raise AmqpError(ILLEGAL_STATE, "a connection is opened once")
            if number > CHANNEL_MAX:
                raise AmqpError(FRAMING_ERROR, f"the channel {number} is above channel-max")
            if isinstance(performative, schema.Begin):
                if channel is not None:
                    raise AmqpError(NOT_ALLOWED, f"the channel {number} has a session already")
                self._begin(number, performative, commands)
                return 0
            if channel is None:
                raise AmqpError(NOT_ALLOWED, f"there is no session on the channel {number}")
            if kind is schema.End:
                self._end_channel(channel, commands)
                return 0
        if channel.is_ending:
            return 0
        before = channel.scanned
        try:
            channel.handle(performative, payload, commands)
        except AmqpError as error:
            self._fail_channel(channel, error, commands)
        return channel.scanned - before

    def _take_deferred(self, commands: list[Command]) -> int:
        """Continue a frame that makes many commands; return the number of examined deliveries."""
        assert self._deferred is not None, "no frame has remaining work"
        number, step = self._deferred
        self._deferred = None
        channel = self._channels.get(number)
        if channel is None or channel.is_ending:
            return 0
        before = channel.scanned
        try:
            step(commands)
        except AmqpError as error:
            self._fail_channel(channel, error, commands)
        return channel.scanned - before

    def _fail_channel(self, channel: Channel, error: AmqpError, commands: list[Command]) -> None:
        if error.scope is Scope.CONNECTION:
            raise error
        channel.fail(error, commands)

    def _begin(self, number: int, begin: schema.Begin, commands: list[Command]) -> None:
        channel = self._channels[number] = Channel(self, number, begin)
        self._count_state(commands)
        answer = schema.Begin(
            remote_channel=channel.number,
            next_outgoing_id=0,
            incoming_window=WINDOW,
            outgoing_window=WINDOW,
            handle_max=HANDLE_MAX,
        )
        self.write_performative(number, answer)

    def _end_channel(self, channel: Channel, commands: list[Command]) -> None:
        del self._channels[channel.number]
        if not channel.is_ending:  # otherwise this side ended it first
            self._ending.add(channel.number)
            channel.end(commands, partial(self._write_end, channel.number))

    def _write_end(self, number: int) -> None:
        self._ending.discard(number)
        self.write_performative(number, schema.End())
        self._request_turn()

    # ---- interface of the sessions (channel.ChannelConnected)

    def next_id(self) -> str:
        self._last_id += 1
        return str(self._last_id)

    def next_message_id(self) -> str:
        self._sequence += 1
        return f"{self._message_id_prefix}{self._sequence}"

    def next_temporary(self) -> str:
        return f"{self._connection_id}-{self._secret()}:{self.next_id()}"

    def add_out_link(self, link: OutLink, channel: Channel) -> None:
        self._out_links[link.id] = link, channel

    def remove_out_link(self, link: OutLink) -> None:
        self._out_links.pop(link.id, None)

    def enqueue(self, command: Command) -> None:
        self._enqueued.append(command)
        if self._state is not State.OVER:
            self.has_more = True
            self.wake()

    def acknowledge_later(self, link: OutLink) -> None:
        if not self._written or self._written[-1] is not link:
            self._written.append(link)
        self.has_more = True
        self.wake()

    def defer(self, channel: int, step: Callable[[list[Command]], None]) -> None:
        self._deferred = channel, step

    def call_next_turn(self, step: Callable[[], None]) -> None:
        if step not in self._next_turn:
            self._next_turn.append(step)
        if self.has_room():
            self.has_more = True
            self.wake()

    def may_send(self) -> bool:
        if not self._may_send or not self.has_room():
            return False
        self._may_send -= 1
        return True

    def _acknowledge_written(self, commands: list[Command]) -> None:
        link = self._written.popleft()
        if link.written:  # it may be in the list several times
            commands.append(acknowledged(link))

    def count_links(self, count: int, name_characters: int, commands: list[Command]) -> None:
        if count > 0 and self.links + count > LINKS_MAX:
            raise AmqpError(RESOURCE_LIMIT, f"a connection has {LINKS_MAX} links at most", Scope.LINK)
        self.links += count
        self._name_characters += name_characters
        if count > 0:
            self._count_state(commands)

    def _count_state(self, commands: list[Command]) -> None:
        """Count the memory of sessions and links. The engine counts its peak."""
        names = self._name_characters * CHARACTER_BYTES
        needed = len(self._channels) * SESSION_BYTES + self.links * LINK_BYTES + names
        if needed > self._held_bytes:
            receipt = Callbacks(lambda: None, self._memory_refused)
            commands.append(Hold(needed - self._held_bytes, receipt))
            self._held_bytes = needed

    def _memory_refused(self, error: ClientError) -> None:
        self.enqueue(ProtocolFailure(ConnectionFailure(AmqpError(RESOURCE_LIMIT, error.message))))

    def too_long(self, frame_bytes: int) -> None:
        text = f"an answer has {frame_bytes} bytes, and the client takes frames of {self.frame_bytes_max}"
        self.enqueue(ProtocolFailure(ConnectionFailure(AmqpError(FRAME_SIZE_TOO_SMALL, text))))

    # ---- replies of the broker

    def receipt(self, receipt: Any) -> None:
        """Confirm a command: accept a message of the client, or call the receipt's function."""
        if type(receipt) is Sent:
            receipt.deliveries.stored(receipt)
        else:
            receipt.done()

    def deliver(
        self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode
    ) -> Callable[[], None] | None:
        """Write the transfers of a message. If the client has detached the link, write nothing: the next command ends
        the subscription."""
        entry = self._out_links.get(subscription_id)
        if entry is None:
            return None
        link, channel = entry
        if self._prepared is None:
            encoded = as_sent(message, redeliveries)
            if encoded is not None:
                channel.deliveries_out.deliver(link, tag, [encoded], 0)
                return None
        if self._prepared is not None and self._prepared[0] is message:
            made = self._prepared[1]
            self._prepared = None
            if isinstance(made, Undeliverable):
                channel.deliveries_out.skip(link, tag)
                raise made
            pieces, message_format = made
        else:
            try:
                pieces, message_format = encode(
                    message, redeliveries, self._clock(), self.message_bytes_max, is_quick=True
                )
            except TakesLong:
                return partial(self._prepare, message, redeliveries)
            except Undeliverable:
                channel.deliveries_out.skip(link, tag)
                raise
        channel.deliveries_out.deliver(link, tag, pieces, message_format)
        return None

    def _prepare(self, message: Message, redeliveries: int) -> None:
        """Encode a long message for the next ``deliver``. Called on a thread."""
        try:
            made = encode(message, redeliveries, self._clock(), self.message_bytes_max, is_quick=False)
        except Undeliverable as reason:
            self._prepared = message, reason
        else:
            self._prepared = message, made

    def drop_prepared(self) -> None:
        self._prepared = None

    def nothing(self, subscription_id: str) -> None:
        """Answer a drain."""
        entry = self._out_links.get(subscription_id)
        if entry is not None:
            entry[1].deliveries_out.end_drain(entry[0])

    def tell_prefetch(self, subscription_id: str, prefetch: int) -> None:
        """Do nothing: the client grants the credit."""

    def close_consumer(self, subscription_id: str, error: ClientError) -> None:
        """Detach the link."""
        entry = self._out_links.get(subscription_id)
        if entry is not None:
            entry[1].ends.consumer_closed(entry[0], error)

    def prepared(self, receipt: Any, is_read_only: bool) -> None:
        raise AssertionError("no AMQP client prepares a transaction")

    def recovered(self, receipt: Any, branches: Sequence[XaTransactionId]) -> None:
        raise AssertionError("no AMQP client asks for prepared transactions")

    def fail(self, error: ClientError) -> None:
        """Report an error: the outcome of a message, the answer to a command, or the end of the connection."""
        receipt = error.receipt
        if type(receipt) is Sent:
            receipt.deliveries.not_stored(receipt, error)
        elif isinstance(receipt, Callbacks):
            receipt.failed(error)
        elif self._state is State.CONNECTED and receipt is None and not error.is_fatal:
            pass  # an outcome or credit came after the end of its subscription, which the detach has reported
        elif self._reached in _HEADERS:
            if not self._is_closed:
                self._is_closed = True
                self.write(frames.SASL if self._reached is State.SASL_HEADER else frames.AMQP)
        elif self._reached in (State.INIT, State.LOGGING_IN):
            self._refuse_login(SASL_SYS_TEMP if error.kind is ErrorKind.TIMEOUT else SASL_SYS)
        else:
            self._close_with(reason_of(error))

    def tell_brokers(self) -> None:
        """Do nothing: AMQP names the other brokers only in the open."""

    def heart_beat(self) -> None:
        """Write an empty frame."""
        self.write(frames.EMPTY)

    def peer_disconnect(self) -> Command | None:
        """Return None: the end of the input ends the connection."""
        return None

    @property
    def _reached(self) -> State:
        """State of the connection; after its end, the last state before."""
        return self._ended_in if self._state is State.OVER else self._state

    def end(self) -> None:
        """Stop parsing and delivering. Answers to earlier frames are still written."""
        if self._state is not State.OVER:
            self._ended_in = self._state
        self._state = State.OVER
        self._channels.clear()
        self._out_links.clear()
        self.by_name.clear()
        self.has_more = False
        self._cutter = FrameCutter()
        self.partial_bytes = 0
        self._enqueued.clear()
        self._written.clear()
        self._next_turn.clear()
        self._deferred = None
        self.waiting_bytes = 0
        self.report_waiting()
        self.set_output(roomy, uncounted)
