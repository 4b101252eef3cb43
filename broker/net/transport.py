"""Connection of a client: it passes bytes between the socket and a session, and commands from the session to the
engine.

There is one write to the socket for each connection and turn of the loop, for any length of output. A silent or slow
peer costs other clients at most the limits in :class:`TransportLimits`; a fast peer gets at most its share of each turn
(``broker.net.turns``). The engine gets ``opened`` once and ``closed`` once, and no call after that. The module does not
depend on protocols and queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, cast

from tandemmq import log_events
from tandemmq.broker.core.commands import ClientError, Command, ErrorKind, Send
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.memory import SHARE, TLS_BUFFERS, TLS_BYTES, Holder, Kind, Memory
from tandemmq.broker.core.slices import CLOCK
from tandemmq.broker.net.early_input import EarlyInput
from tandemmq.broker.net.turns import (
    FRESH,
    FRESH_BYTES_MAX,
    LONG_READ_BYTES,
    OVERLONG_SECONDS,
    READ_SECONDS,
    SENDERS,
    SLICE_SECONDS,
    SPENT,
    STRANGERS,
    Turns,
)
from tandemmq.broker.net.unfinished_input import COUNTED_BYTES_MIN, FRAME_SECONDS_MAX, UnfinishedInput
from tandemmq.broker.net.unread_output import UnreadOutput
from tandemmq.broker.protocols.output import asleep
from tandemmq.broker.protocols.session import Session
from tandemmq.limited_log import LimitedLog

log = logging.getLogger(__name__)


class TransportLimits(NamedTuple):
    """Limits of one connection."""

    # Time until CONNECT (ActiveMQ's connectAttemptTimeout).
    connect_seconds_max: float = 30.0
    # Time from the WireFormatInfo of OpenWire to the login. It is long: a client library may hold connections that it
    # does not use yet, and a failover transport has backup connections.
    login_seconds_max: float = 600.0
    # Longest silence of a peer with heart-beats, as a multiple of its interval (2 in RabbitMQ and Artemis).
    heart_beat_grace: float = 2.0
    # Minimum of the time beyond one interval: very short intervals cannot be kept exactly.
    heart_beat_grace_seconds_min: float = 1.0
    # Above ``high`` bytes of waiting output, the engine stops delivering; below ``low`` it continues.
    write_bytes_high: int = 256 * 1024
    write_bytes_low: int = 64 * 1024
    # Limits for a peer that does not read: bytes of receipts and errors since deliveries stopped, and time.
    unread_bytes_max: int = 64 * 1024 * 1024
    unread_seconds_max: float = 60.0
    # Time for the peer to read the last bytes and to disconnect, after this side closed.
    close_seconds_max: float = 5.0
    # Time for a peer that sent a disconnect to close the socket (ActiveMQConnection's closeTimeout).
    hang_up_seconds_max: float = 15.0
    # Interval of the checks of time limits for a connection without heart-beats.
    check_seconds: float = 10.0


DEFAULT_LIMITS: Final = TransportLimits()
# Output of at least this length is written in its pieces, which are not copied: other connections may write the same
# pieces.
LONG_BYTES_MIN: Final = 512 * 1024
# Bytes that are written in one turn of the loop, plus the output of one connection. The kernel takes 1 to 5 ms for
# them.
FLUSH_BYTES_MAX: Final = 1 << 20
# Connections with more output than this are written after connections with less.
SHORT_BYTES_MAX: Final = 64 * 1024
# Limit of the store operations of one connection between two reports of the store, because commands of others wait
# behind them. While one batch is being written, the next is collected. So a connection that never pauses has twice as
# many operations in progress.
OPERATIONS_PER_REPORT_MAX: Final = 500
# A heart-beat is sent after this part of its interval, so that it arrives in time also over a slow network.
BEAT_PART: Final = 0.8
# Connections that continue to read after a report, in one iteration of the loop: each read may take 0.08 ms.
RESUMED_MAX: Final = 64
# Bytes that are read and dropped after the connection was closed. If a peer sends more, reading is paused until the
# time for its close is over.
DROPPED_BYTES_MAX: Final = 4 << 20
EARLY_DROPPED_BYTES_MAX: Final = 64 * 1024  # without a login
# Larger than any read or output.
_UNBOUNDED: Final = 1 << 62
# Bits of ``_states``: reasons why a connection is not read.
_CONGESTION: Final = 1
_STOPPED: Final = 2
_UNFINISHED: Final = 4
_UNREAD: Final = 8
_ENDED: Final = 16
_NOT_TO_READ: Final = _CONGESTION | _STOPPED | _UNFINISHED | _UNREAD | _ENDED
# Other rare states, in the order of the bits: input is left, or may be read in a later turn only; the session requested
# a turn; reading of the socket is paused; the peer does not read; the command for the end of the input is not carried
# out yet; the heart-beats have not begun; the last read was long; UnfinishedInput counts an incomplete frame; unwritten
# output is counted; the connection must close when it may write; it has ended; deliveries wait in the session; they
# have so many bytes that nothing more is delivered; the client has no login yet.
_LEFT: Final = 32
_WOKEN: Final = 64
_RESTING: Final = 128
_BEHIND: Final = 256
_DISCONNECT: Final = 512
_NEW: Final = 1024
_LONG_READ: Final = 2048
_PARTIAL: Final = 4096
_COUNTED: Final = 8192
_MUST_CLOSE: Final = 16384
_OVER: Final = 32768
_WAITING: Final = 65536
_FULL: Final = 131072
_EARLY: Final = 262144


class Store(Protocol):
    """Part of the engine's store that a connection uses."""

    # Number of operations that the store got so far from all connections.
    handed_over: int

    @property
    def is_congested(self) -> bool: ...

    def may_speak(self) -> bool:
        """Return whether this broker may write to its clients. Called once in a turn (``Store.may_speak``)."""

    def take_reports(self) -> bool:
        """Take the operations that have become durable; return whether there were any (``Store.take_reports``)."""

    def check_fence_soon(self) -> None:
        """Request a fence check soon. Called when the broker may not write."""


class Engine(Protocol):
    """Part of the engine that a connection uses. Runs on the loop."""

    @property
    def store(self) -> Store: ...

    @property
    def memory(self) -> Memory: ...

    # True if the engine has unprocessed reports of the store. Then, or if the store is congested, connections stop
    # reading until ``Outbox.resume_reading`` is called.
    is_behind: bool

    @property
    def reports(self) -> int:
        """Number of the store's reports of durable operations. ``Outbox.resume_reading`` is called after each
        report."""

    def opened(self, connection: Connection) -> None: ...

    def handle(self, connection: Connection, command: Command) -> None:
        """Carry out one command. An error of the peer is reported to the session; it is not raised."""

    def writable(self, connection: Connection) -> None:
        """Continue deliveries: ``is_writable`` is true again."""

    def closed(self, connection: Connection) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class Outbox:
    """Connections of one server that have output to write, and connections whose reading is paused."""

    _loop: asyncio.AbstractEventLoop
    _engine: Engine
    # Connections with output. Call ``call`` before the first is added (``Connection.touch``).
    dirty: list[Connection] = field(default_factory=list, init=False)
    # Connections with much output, of those in ``dirty``. ``Connection.flush`` adds them.
    long: deque[Connection] = field(default_factory=deque, init=False)
    _is_called: bool = field(default=False, init=False)
    _paused: dict[Connection, None] = field(default_factory=dict, init=False)
    # Paused connections that may read again since the last report.
    _resumed: dict[Connection, None] = field(default_factory=dict, init=False)
    limited: LimitedLog = field(init=False)

    def __post_init__(self) -> None:
        self.limited = LimitedLog(log)

    def call(self) -> None:
        """Flush the connections of ``dirty`` at the end of this turn."""
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon(self.flush)

    def flush(self, *, is_between: bool = False) -> None:
        """Write the output of all touched connections, at most FLUSH_BYTES_MAX in a turn of the loop: first connections
        with little output, then at least one with much. A connection that is touched meanwhile is flushed in the next
        turn. ``is_between``: only little, between two steps of a turn; a later call, which is scheduled, writes the
        rest.

        While the broker does not know whether it is still the master, nothing is written.
        """
        if not self._engine.store.may_speak():  # prove: outbox-asks-before-words
            if not is_between:
                self._engine.store.check_fence_soon()
                self._loop.call_later(_WITHHELD_SECONDS, self.flush)
            return
        dirty = self.dirty
        self.dirty = []
        now = self._loop.time()
        left = SHORT_BYTES_MAX if is_between else FLUSH_BYTES_MAX
        rest = iter(dirty)
        for connection in rest:
            left -= connection.flush(now, SHORT_BYTES_MAX)
            if left <= 0:
                self.dirty = [*rest, *self.dirty]
                break
        if is_between:
            return
        self._is_called = False
        long = self.long
        while long:
            left -= long.popleft().flush(now)
            if left <= 0:
                break
        if long or self.dirty:
            self.call()

    def take_reports(self) -> None:
        """Write the output for messages that became durable meanwhile, between two steps of a turn."""
        if self._engine.store.take_reports() and self.dirty:
            self.flush(is_between=True)

    def hold(self, connection: Connection) -> None:
        """Note that ``connection`` stopped reading."""
        self._paused[connection] = None

    def forget(self, connection: Connection) -> None:
        self._paused.pop(connection, None)
        self._resumed.pop(connection, None)

    def resume_reading(self) -> None:
        """Let all connections read again, RESUMED_MAX of them in each iteration of the loop, until the store is
        congested again. Called when the store has reported durable operations, or when the engine has processed the
        reports."""
        if self._paused:
            is_scheduled = bool(self._resumed)
            self._resumed.update(self._paused)
            self._paused = {}
            if not is_scheduled:
                self._resume_some()

    def _resume_some(self) -> None:
        for connection in list(islice(self._resumed, RESUMED_MAX)):
            del self._resumed[connection]
            connection.end_congestion()
        if self._resumed:
            self._loop.call_soon(self._resume_more)

    def _resume_more(self) -> None:
        if self._engine.store.is_congested or self._engine.is_behind:
            # Another call of ``resume_reading`` follows.
            self._paused.update(self._resumed)
            self._resumed = {}
        self._resume_some()


@dataclass(slots=True, eq=False, repr=False)
class Connection:
    """Accepted connection: protocol object of the loop. It is not derived from ``asyncio.Protocol``, because a compiled
    class cannot have an interpreted base.

    ``client`` belongs to the engine. ``holder`` counts the memory of the connection. ``subject`` returns the name in a
    peer's certificate (``getpeercert()``). ``close`` and ``abort`` may be called at any time and more than once.
    """

    id: str
    session: Session
    _engine: Engine
    _outbox: Outbox
    _turns: Turns
    _unfinished: UnfinishedInput
    _early: EarlyInput
    _loop: asyncio.AbstractEventLoop
    _on_lost: Callable[[Connection], None]
    _limits: TransportLimits = DEFAULT_LIMITS
    _subject: Callable[[Any], str | None] = lambda certificate: None
    client: object | None = field(default=None, init=False)
    holder: Holder = field(init=False)
    _unread: UnreadOutput = field(init=False)
    peer: str = field(default="?", init=False)
    certificate: str | None = field(default=None, init=False)
    is_held: bool = field(default=False, init=False)
    _turn_number: int = field(default=0, init=False)
    _turn_until: float = field(default=0.0, init=False)  # until then it may be read in this turn, by the clock of Turns
    _share_report: int = field(default=0, init=False)
    _share_used: int = field(default=0, init=False)
    # The rare states as bits, so that one test shows that there are none.
    _states: int = field(default=_NEW | _EARLY, init=False)
    # Received bytes that the session does not have yet. None: there are none.
    _rest: deque[bytes] | None = field(default=None, init=False)
    _is_queued: bool = field(default=False, init=False)  # waits for its turn in Turns
    # Waiting bytes that the session has. It keeps them in memory until all are parsed.
    _fed_bytes: int = field(default=0, init=False)
    _has_spent: bool = field(default=False, init=False)  # _LEFT is set, and it had a slice or sent much
    _is_sender: bool = field(default=False, init=False)  # sent messages when its last turn ended
    _dropped_bytes: int = field(default=0, init=False)  # received after the end
    _is_parsing: bool = field(default=False, init=False)  # in its turn; stays true if it closes in its turn
    _transport: asyncio.Transport | None = field(default=None, init=False)
    _disconnect: Command | None = field(default=None, init=False)  # carried out after the received input
    has_hung_up: bool = field(default=False, init=False)
    _is_dirty: bool = field(default=False, init=False)
    _is_close_reported: bool = field(default=False, init=False)
    _last_received: float = field(default=0.0, init=False)
    _last_sent: float = field(default=0.0, init=False)
    _login_until: float = field(default=0.0, init=False)
    _tls_read_max: int = field(default=_UNBOUNDED, init=False)  # longest read with TLS so far
    _read_bytes_max: int = field(default=LONG_READ_BYTES - 1, init=False)  # longer reads are noted
    _uncounted: int = field(default=0, init=False)  # bytes written since the last check of the socket's buffer
    _uncounted_max: int = field(default=0, init=False)  # ``_write`` handles output of at least this length
    _unread_bytes: int = field(default=0, init=False)
    _unread_since: float = field(default=0.0, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _close_timer: asyncio.TimerHandle | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.holder = Holder(self._engine.memory)
        self._unread = UnreadOutput(self.holder)
        self._set_session(self.session)
        self._uncounted_max = min(COUNTED_BYTES_MIN, self._limits.write_bytes_high)

    def __repr__(self) -> str:
        return f"<Connection {self.id} from {self.peer}>"

    # ---- called by the engine

    @property
    def is_closing(self) -> bool:
        """True after ``close`` or the loss of the connection: nothing more is read from it."""
        return self._states & _OVER != 0

    @property
    def is_logged_in(self) -> bool:
        return self.session.is_logged_in

    @property
    def is_writable(self) -> bool:
        """True if more messages may be delivered. If it is false, a call of ``Engine.writable`` or ``closed``
        follows."""
        return (
            not self._states & (_BEHIND | _FULL)
            and not self.is_held
            and not self.holder.is_held_back
            and self.session.pending_bytes < self._limits.write_bytes_high
        )

    def _has_room(self) -> bool:
        """See Session.set_output."""
        return not self._states & _BEHIND and self.session.pending_bytes < self._limits.write_bytes_high

    def _count_waiting(self, count: int) -> None:
        """Count the deliveries that wait in the session, and deliver nothing more while they have many bytes."""
        self._unread.waiting = count
        self.note_output()
        states = self._states & ~(_WAITING | _FULL) | (_WAITING if count else 0)
        if count >= self._limits.write_bytes_high or (self._states & _FULL and count >= self._limits.write_bytes_low):
            states |= _FULL
        was_full = self._states & _FULL
        self._states = states
        if was_full and not states & _FULL:
            self._loop.call_soon(self._resume_deliveries)  # the engine may be the caller

    def _resume_deliveries(self) -> None:
        if not self._states & _OVER and (self.is_writable or self.is_held):
            self._engine.writable(self)

    def touch(self) -> None:
        """Write the session's output at the end of this turn of the loop."""
        if not self._is_dirty:
            self._is_dirty = True
            outbox = self._outbox
            if not outbox.dirty:
                outbox.call()
            outbox.dirty.append(self)

    def close(self, after_flush: bool = True) -> None:
        """Write the waiting output and disconnect, or disconnect at once. The engine gets ``closed`` in a later
        turn."""
        if not after_flush:
            self.abort()
            return
        if self._states & _OVER:
            return
        if not self._engine.store.may_speak():  # prove: last-words-ask-too
            self._states |= _MUST_CLOSE
            self.touch()
            return
        self._states &= ~_MUST_CLOSE
        self._write(self._loop.time())
        transport = self._transport
        if self._states & _OVER or transport is None:
            return
        self._stop()
        # Close only the sending side. If the socket were closed while bytes of the peer are unread, the kernel would
        # send a reset, which may destroy the last output. The peer's close or the timer ends the connection.
        if transport.can_write_eof() and not self.has_hung_up:
            transport.write_eof()
            if self._states & _RESTING:
                transport.resume_reading()
        else:
            transport.close()
        if self._close_timer is not None:  # the timer of await_hang_up would keep this connection in memory
            self._close_timer.cancel()
        self._close_timer = self._loop.call_later(self._limits.close_seconds_max, transport.abort)
        self._loop.call_soon(self._report_closed)

    def await_login(self) -> None:
        """Begin the time limit for a new login on this socket, after the client logged out."""
        self._login_until = self._loop.time() + self._limits.login_seconds_max

    def await_hang_up(self) -> None:
        """Begin the time limit for the peer to close the socket. After ``hang_up_seconds_max``, this side aborts the
        connection."""
        if not self._states & _OVER and self._close_timer is None:
            self._close_timer = self._loop.call_later(self._limits.hang_up_seconds_max, self.abort)

    def abort(self) -> None:
        """Close the connection at once. Unwritten output is lost."""
        if not self._states & _OVER:
            self._stop()
            self._loop.call_soon(self._report_closed)
        if self._transport is not None:
            self._transport.abort()

    def abandon(self) -> None:
        """Close the connection at once like ``abort``, but without a call of the engine, whose term has ended."""
        self._is_close_reported = True
        self.abort()

    @property
    def is_flushed(self) -> bool:
        """True after ``close`` if all output was passed to the kernel, or is lost. False while output is withheld
        because the broker does not know whether it is the master."""
        if self._transport is None:
            return True
        return not self._states & _MUST_CLOSE and self._transport.get_write_buffer_size() == 0

    @property
    def descriptor(self) -> int:
        """File descriptor of the socket; -1: there is none, or it is closed."""
        transport = self._transport
        transport_socket = None if transport is None else transport.get_extra_info("socket")
        return -1 if transport_socket is None else int(transport_socket.fileno())

    def set_protocol(self, session: Session, limits: TransportLimits) -> None:
        """Set the session and the limits of a connection whose protocol was not known when it was accepted (WebSocket).
        Call it before ``connection_made``."""
        self._limits = limits
        self._uncounted_max = min(COUNTED_BYTES_MIN, limits.write_bytes_high)
        self._set_session(session)

    def _set_session(self, session: Session) -> None:
        self.session = session
        session.set_wake(self.wake)
        session.set_output(self._has_room, self._count_waiting)

    # ---- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(self._limits.write_bytes_high, self._limits.write_bytes_low)
        self.certificate = self._subject(transport.get_extra_info("peercert"))
        if self.certificate is not None:
            self.session.set_certificate(self.certificate)
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple) and len(address) >= 2:
            host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
            self.peer = f"{host}:{address[1]}"
        self._last_received = self._last_sent = self._loop.time()
        self._timer = self._loop.call_later(self._limits.connect_seconds_max, self._check_times)
        self._engine.opened(self)
        if transport.get_extra_info("ssl_object") is not None:
            self.holder.add(Kind.STATE, TLS_BYTES)
            self._tls_read_max = self._read_bytes_max = 0
        if self.session.pending_bytes:  # in some protocols the server sends first
            self.touch()

    def data_received(self, data: bytes) -> None:
        turns, holder = self._turns, self.holder
        now = turns.clock()
        if not turns.ends:
            turns.begin_turn(now)
        self._last_received = turns.began
        length = len(data)
        if length > self._read_bytes_max:
            self._note_long_read(length, now)
        if self._states and not self._is_ready_for(data):
            return
        is_beyond_share = holder.busy > SHARE and turns.waiting > 0 and holder.is_beyond_share(now)
        if now < turns.ends and not is_beyond_share:
            self._parse(data, now, turns.ends)
        else:
            self._keep(data)
            self._has_spent = is_beyond_share or length > FRESH_BYTES_MAX
            self._settle()

    def _note_long_read(self, length: int, now: float) -> None:
        """Count the buffers of TLS, and begin the time in which the connection may be read in this turn. ``now``: time
        of the clock."""
        if self._states & _OVER:
            return
        if length > self._tls_read_max:
            self.holder.add(Kind.STATE, TLS_BUFFERS * (length - self._tls_read_max))
            self._tls_read_max = length
            self._read_bytes_max = min(length, LONG_READ_BYTES - 1)
        if length < LONG_READ_BYTES:
            return
        if self._turn_number != self._turns.number:
            self._turn_number = self._turns.number
            self._turn_until = now + READ_SECONDS
        self._states |= _LONG_READ

    def _is_ready_for(self, data: bytes) -> bool:
        """Return whether ``data`` may be parsed at once. If not, it is kept for later, or dropped because the
        connection has ended."""
        states = self._states
        if states & _OVER:
            self._dropped_bytes += len(data)
            limit = EARLY_DROPPED_BYTES_MAX if states & _EARLY else DROPPED_BYTES_MAX
            if self._dropped_bytes > limit and self._transport is not None:
                self._transport.pause_reading()
            return False
        if states & _NEW and data.startswith(_TLS_HELLO) and not self.session.is_connected:
            self.log_fault("TLS", f"{self} begins TLS, which this connector does not support: disconnected")
            self.abort()
            return False
        if states & (_LEFT | _NOT_TO_READ):
            # The loop had read these bytes before reading was paused.
            if not states & _LEFT:
                self._has_spent = len(data) > FRESH_BYTES_MAX
            self._keep(data)
            self._settle()
            return False
        self._states = states & ~_WOKEN
        return True

    def log_fault(
        self, kind: str, text: str, extra: Mapping[str, object] | None = None, *, level: int = logging.WARNING
    ) -> None:
        """Log a fault that any client can cause: once a minute for each ``kind``."""
        self._outbox.limited.warning(type(self.session).__name__, kind, text, extra, level=level)

    def wake(self) -> None:
        """Request a turn for the session (see Session.set_wake). During its turn this is not necessary, because the
        connection then checks whether the session has more."""
        if not self._is_parsing and not self._states & _OVER:
            self._states |= _WOKEN
            self._settle()

    def _keep(self, data: bytes) -> None:
        """Store ``data`` for a later turn."""
        if self._rest is None:
            self._rest = deque()
        self._rest.append(data)
        self._states |= _LEFT
        self.holder.add(Kind.INPUT, len(data))

    def resume(self, until: float) -> None:
        """Process more received bytes. Called by Turns."""
        self._is_queued = False
        states = self._states
        if self._states & _OVER or states & _NOT_TO_READ or not states & (_LEFT | _WOKEN):
            return
        self._states = states & ~(_WOKEN | _LONG_READ)
        now = self._turns.clock()
        self._turn_number, self._turn_until = self._turns.number, now + READ_SECONDS
        try:
            self._parse(b"", now, until)
        except Exception:
            log.exception("%s: disconnected: its input %s", self, ERROR_OF_BROKER)
            self.abort()

    def _parse(self, data: bytes, began: float, until: float) -> None:
        """Parse ``data`` after the waiting input, and carry out its commands: until the clock shows ``until``, and for
        at most SLICE_SECONDS. Then wait for the next turn. ``began``: present time of the clock."""
        self._is_parsing = True
        engine, session, holder = self._engine, self.session, self.holder
        store = engine.store
        handed_over = store.handed_over
        slice_ends = began + SLICE_SECONDS
        fed = data
        while True:
            apart = CLOCK.apart
            commands = session.receive(data)
            for command in commands:
                engine.handle(self, command)
                if self._states & _OVER:
                    return
            ended = self._turns.clock()
            took = ended - began
            holder.busy += took - CLOCK.apart + apart
            if took >= OVERLONG_SECONDS:  # the condition in ``took``, tested here to avoid a call for each piece
                self._turns.took(took, self, commands)
            has_more = session.has_more
            if not has_more and not self._states:  # most pieces: no input is left
                break
            has_more = has_more or self._rest is not None
            if not has_more or ended >= until or ended >= slice_ends or self._states & _NOT_TO_READ:
                break
            began = ended
            data = b""
            if not session.has_more:
                data = fed = self._next_of_rest()
        if session.pending_bytes and not self._is_dirty:
            self.touch()  # the session itself has answered
        # If its share of store operations is used, it waits for the next report, which its own operations cause.
        handed_over = store.handed_over - handed_over
        self._share_used = used = self._share_used + handed_over
        if (
            (used > OPERATIONS_PER_REPORT_MAX and self._is_share_used(handed_over))
            or store.is_congested
            or engine.is_behind
        ):
            self._hold()
        if has_more or self._states or session.unfinished_bytes >= COUNTED_BYTES_MIN:
            if commands:
                self._is_sender = any(isinstance(command, Send) for command in commands)
            self._end_turn(has_more, len(fed), ended)
        self._is_parsing = False

    def _is_share_used(self, count: int) -> bool:
        """Return whether the connection's share of store operations (OPERATIONS_PER_REPORT_MAX) is used. If there was a
        report since the share began, a new share begins, which includes the last ``count`` operations. So twice the
        share is possible between two reports, but not again before the next two."""
        reports = self._engine.reports
        if self._share_report != reports:
            self._share_report = reports
            self._share_used = count
        return self._share_used > OPERATIONS_PER_REPORT_MAX

    def _hold(self) -> None:
        """Stop reading until ``end_congestion``."""
        if not self._states & _CONGESTION:
            self._states |= _CONGESTION
            self._outbox.hold(self)

    def _next_of_rest(self) -> bytes:
        """Remove and return the first waiting piece."""
        rest = self._rest
        assert rest is not None, "pieces are waiting"
        data = rest.popleft()
        self.holder.add(Kind.INPUT, -len(data))
        if not rest:
            self._rest = None
        return data

    def _end_turn(self, has_more: bool, fed_bytes: int, ended: float) -> None:
        """End a turn that leaves input (``has_more``) or that ends in a rare state. ``fed_bytes``: bytes that the
        session got in this turn; 0: none. ``ended``: time of the clock at the end."""
        self._note_input(fed_bytes)
        if self._states & _EARLY:
            self._note_login()
        if self._states & _BEHIND and self.holder.is_held_back:
            self._states |= _UNREAD
        if self._disconnect is not None and not has_more:
            self._handle_disconnect()
            has_more = self.session.has_more
        # Without a login, a connection is read once in a turn. Otherwise the number of reads in a poll of the loop
        # would grow with the number of such connections.
        has_read_enough = (
            fed_bytes > 0 if self._states & _EARLY else (self._states & _LONG_READ != 0 and ended >= self._turn_until)
        )
        self._has_spent = has_more or has_read_enough
        self._states = self._states & ~(_LEFT | _LONG_READ) | (_LEFT if self._has_spent else 0)
        self._settle()

    def _note_input(self, count: int) -> None:
        """Count the session's input in memory: all ``count`` bytes that it got last while some of them are not parsed
        (0: no new bytes); otherwise the bytes of an incomplete frame."""
        if self._states & _OVER:
            return
        session = self.session
        if session.has_more or self._fed_bytes:
            count = (count or self._fed_bytes) if session.has_more else 0
            self.holder.add(Kind.INPUT, count - self._fed_bytes)
            self._fed_bytes = count
        if session.has_more:
            return
        if session.unfinished_bytes >= COUNTED_BYTES_MIN:
            self._states |= _PARTIAL
            self._unfinished.note(self, session.unfinished_bytes)
        elif self._states & _PARTIAL:
            self._states &= ~_PARTIAL
            self._unfinished.forget(self)

    def _settle(self) -> None:
        """Wait for a turn if input is left; otherwise read from the socket, unless reading is paused for another
        reason."""
        self.note_early()
        states = self._states
        is_free = not states & _NOT_TO_READ
        if is_free and states & (_LEFT | _WOKEN) and not self._is_queued:
            self._is_queued = True
            self._turns.wait(self, self.line())
        is_to_rest = not is_free or states & _LEFT != 0
        if is_to_rest is (states & _RESTING != 0) or self._states & _OVER or self._transport is None:
            return
        self._states = states ^ _RESTING
        if is_to_rest:
            self._transport.pause_reading()
        else:
            self._last_received = self._loop.time()
            self._transport.resume_reading()

    def note_early(self) -> None:
        """Count the input that waits, if the client has no login."""
        if self._states & _EARLY:
            self._early.note(self, self.holder.by_kind[Kind.INPUT])

    def line(self) -> int:
        """Return the line of Turns in which it waits."""
        if self._states & _EARLY:
            return STRANGERS
        if not self._has_spent:
            return FRESH
        return SENDERS if self._is_sender else SPENT

    def eof_received(self) -> bool:
        """Note the end of the peer's input. Return False to let the loop close the connection."""
        disconnect = None if self._states & _OVER else self.session.peer_disconnect()
        if disconnect is None:
            return False
        self._disconnect = disconnect
        self._states |= _DISCONNECT
        self.has_hung_up = True
        self.await_hang_up()
        if not self._states & (_LEFT | _WOKEN):
            self._handle_disconnect()
        return True

    def _handle_disconnect(self) -> None:
        """Carry out the peer's disconnect, after all its input was carried out."""
        disconnect, self._disconnect = self._disconnect, None
        self._states &= ~_DISCONNECT
        if disconnect is not None:
            self._engine.handle(self, disconnect)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._states & _OVER:
            self.has_hung_up = True
        self._stop()
        self._transport = None
        self._unread.waiting = 0
        self._unread.note(0, is_behind=False)
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._report_closed()
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._states |= _BEHIND
        self._unread_bytes = 0
        self._unread_since = self._loop.time()
        self.note_output()

    def resume_writing(self) -> None:
        self._states &= ~_BEHIND
        self.note_output()
        if not self._states & _OVER:
            self._states = self._states & ~_UNREAD | (_WOKEN if self._states & _WAITING else 0)
            self._settle()
            self._engine.writable(self)

    def note_output(self) -> None:
        """Count the output that is not passed to the kernel yet."""
        if self._transport is not None:
            self._unread.note(self._transport.get_write_buffer_size(), is_behind=self._states & _BEHIND != 0)
            is_counted = self.holder.by_kind[Kind.OUTPUT] > 0
            self._states = self._states & ~_COUNTED | (_COUNTED if is_counted else 0)

    # ---- called by the server and its outbox

    def flush(self, now: float, bytes_max: int = _UNBOUNDED) -> int:
        """Write the session's output, and return its number of bytes. If there are more than ``bytes_max``, join the
        connections with much output instead. An internal error closes the connection. ``now``: the loop's time."""
        session, transport = self.session, self._transport
        count = session.pending_bytes
        if count > bytes_max:
            self._outbox.long.append(self)
            return 0
        self._is_dirty = False
        try:
            uncounted = self._uncounted + count
            if count and uncounted < self._uncounted_max and not self._states and transport is not None:
                self._uncounted = uncounted
                self._last_sent = now
                transport.write(session.take())
                return count
            if self._states & _MUST_CLOSE:
                self.close()
                return 0
            if self._states & _OVER or not count:
                return 0
            if self._states & _EARLY:
                self._note_login()
            self._write(now)
            if count >= self._limits.write_bytes_high:
                # The session had no room for deliveries that wait in it, and is_writable was false, because of the
                # output that is written now. Or the engine has more for this connection.
                if self._states & _WAITING:
                    self.wake()
                self._resume_deliveries()
        except Exception:
            log.exception("%s: disconnected: its output %s", self, ERROR_OF_BROKER)
            self.abort()
            return 0
        return count

    def _write(self, now: float) -> None:
        """Write the session's output, and count the part that is not passed to the kernel yet."""
        session, transport = self.session, self._transport
        count = session.pending_bytes
        if not count or transport is None:
            return
        self._last_sent = now
        was_behind = self._states & _BEHIND
        is_uncounted = False
        self._uncounted += count
        if self._uncounted >= COUNTED_BYTES_MIN:
            self._uncounted = 0
            is_uncounted = transport.get_write_buffer_size() > 0
        if count < LONG_BYTES_MIN:
            transport.write(session.take())
            if was_behind:
                self._unread.skip(count)
        else:
            self._write_parts(transport, session.take_parts())
        if is_uncounted or self._states & _COUNTED:
            self.note_output()
        if was_behind:
            self._unread_bytes += count
            if self._unread_bytes > self._limits.unread_bytes_max:
                log.warning(
                    "%s does not read: disconnected with %d bytes unread",
                    self,
                    self._unread_bytes,
                    extra=log_events.CLIENT_DOES_NOT_READ,
                )
                self.abort()

    def _write_parts(self, transport: asyncio.Transport, parts: Sequence[bytes | memoryview]) -> None:
        if transport.get_extra_info("sslcontext") is not None:  # with TLS, each connection has its own encrypted copy
            transport.writelines(parts)
            return
        self._unread.write(parts, transport.get_write_buffer_size())
        transport.writelines(parts)
        self.note_output()

    def stop_reading(self) -> None:
        """Stop reading until ``resume_reading`` or ``close``."""
        self._states |= _STOPPED
        self._settle()

    def resume_reading(self) -> None:
        self._states &= ~_STOPPED
        self._settle()

    def end_reading(self) -> None:
        """Stop reading for good; ``resume_reading`` has no effect any more."""
        self._states |= _ENDED
        self._settle()

    def hold_input(self, is_held: bool) -> None:
        """Stop or resume reading. Called by UnfinishedInput."""
        states = self._states & ~_UNFINISHED | (_UNFINISHED if is_held else 0)
        if states != self._states:
            self._states = states
            self._settle()

    def end_input(self) -> None:
        """Close the connection because of its incomplete frame. Called by UnfinishedInput."""
        self.log_fault("rest of a frame", f"{self}: disconnected: other clients waited for the rest of its frame")
        self._fail(
            "Incomplete frames use all of their memory", f"The frame was not complete within {FRAME_SECONDS_MAX:g} s."
        )

    def end_early(self) -> None:
        """Close the connection, whose client has no login, because of its waiting input. Called by EarlyInput."""
        self.log_fault("input before the login", f"{self}: disconnected: much input of clients without a login waits")
        self._loop.call_soon(self.abort)  # the caller may be in the middle of a turn

    def end_congestion(self) -> None:
        """Resume reading after congestion. Called by Outbox.resume_reading."""
        self._states &= ~_CONGESTION
        self._settle()

    # ---- time limits

    def _note_login(self) -> None:
        """Note whether the session has begun, and whether the client has logged in."""
        if self._states & _NEW and self.session.is_connected:
            self._start_heart_beats()
        if self.session.is_logged_in:
            self._states &= ~_EARLY
            self._early.note(self, 0)

    def _start_heart_beats(self) -> None:
        self._states &= ~_NEW
        self._login_until = self._loop.time() + self._limits.login_seconds_max
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._until_check(self._loop.time()), self._check_times)

    def _until_check(self, now: float) -> float:
        """Return the seconds until the next check: a little before the next heart-beat is due, and at most half of the
        peer's interval, so that a silent peer is noticed in time."""
        session = self.session
        seconds = [self._limits.check_seconds]
        if session.receive_interval_ms:
            seconds.append(max(session.receive_interval_ms / 2000, self._limits.heart_beat_grace_seconds_min / 4))
        if session.send_interval_ms:
            seconds.append(self._last_sent + session.send_interval_ms * BEAT_PART / 1000 - now)
        return max(min(seconds), _CHECK_SECONDS_MIN)

    def _check_times(self) -> None:
        """Check all time limits. A connection has only this timer, so that messages do not set or cancel timers."""
        limits = self._limits
        session = self.session
        now = self._loop.time()
        silence = now - self._last_received
        if not session.is_connected:
            detail = f"It must come within {limits.connect_seconds_max:g} seconds."
            self._fail("No CONNECT came", detail, ErrorKind.TIMEOUT)
            return
        if not session.is_logged_in and now >= self._login_until:
            self.log_fault("no login", f"{self} began a session but did not log in: disconnected", level=logging.INFO)
            detail = f"It must come within {limits.login_seconds_max:g} seconds of the greeting."
            self._fail("No login was received", detail, ErrorKind.TIMEOUT)
            return
        if self._states & _BEHIND and now - self._unread_since > limits.unread_seconds_max:
            log.warning(
                "%s does not read: disconnected after %.0f seconds",
                self,
                now - self._unread_since,
                extra=log_events.CLIENT_DOES_NOT_READ,
            )
            self.abort()
            return
        interval = session.receive_interval_ms / 1000
        allowed = interval + max(interval * (limits.heart_beat_grace - 1), limits.heart_beat_grace_seconds_min)
        if interval and not self._states & _RESTING and silence > allowed:
            log.info("%s was silent for %.1f seconds: disconnected", self, silence)
            self._fail(
                f"No heart-beat for {silence:.1f} seconds",
                f"The client promised one every {session.receive_interval_ms} ms.",
                ErrorKind.TIMEOUT,
            )
            return
        # A timer may fire early by its resolution.
        due = self._last_sent + session.send_interval_ms * BEAT_PART / 1000 - _CHECK_SECONDS_MIN
        if session.send_interval_ms and now >= due and not self._states & _BEHIND:
            is_all = session.pending_bytes == 0
            session.heart_beat()
            if is_all:
                self._write(now)  # heart-beats are sent also while other output is withheld
            else:
                self.touch()
        if self._states & _COUNTED or self._uncounted:
            self.note_output()
        self._timer = self._loop.call_later(self._until_check(now), self._check_times)

    def _fail(self, message: str, detail: str, kind: ErrorKind = ErrorKind.GENERAL) -> None:
        self.session.fail(ClientError(message, detail, kind=kind))
        self.close()

    # ---- the end

    def _stop(self) -> None:
        self._states |= _OVER
        self._outbox.forget(self)
        self._unfinished.forget(self)
        self._rest = None
        self._states &= ~_LEFT
        self.session.set_wake(asleep)
        self.session.end()
        self.holder.add(Kind.INPUT, -self.holder.by_kind[Kind.INPUT])
        self._early.note(self, 0)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _report_closed(self) -> None:
        if not self._is_close_reported:
            self._is_close_reported = True
            self._engine.closed(self)


# First bytes of a TLS handshake: type and version of its first record (RFC 8446, 5.1).
_TLS_HELLO: Final = b"\x16\x03"
# Interval of the checks whether withheld output may be sent. A fence check takes less than a millisecond on a healthy
# volume.
_WITHHELD_SECONDS: Final = 0.005
# Minimum interval of the timer.
_CHECK_SECONDS_MIN: Final = 0.02
