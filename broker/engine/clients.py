"""The life of a client: its commands in order, and the end of all that it had. broker.engine.login determines its user.

While the broker waits for an answer about a client, or works for it in steps, the next commands of the client wait, and
no more is read from it. The states of that life are in broker.core.client; only this module changes them.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from tandemmq import log_events
from tandemmq.broker.core.charging import charged
from tandemmq.broker.core.client import Client, Connection, Event, State
from tandemmq.broker.core.commands import (
    ClientError,
    Command,
    Connect,
    Disconnect,
    ErrorKind,
    LogIn,
    ProtocolFailure,
    Subscribe,
    forget_frames,
)
from tandemmq.broker.core.containment import ERROR_OF_BROKER, hang_up, tell
from tandemmq.broker.core.delivery import QueueBase
from tandemmq.broker.core.memory import CONNECTION_BYTES, Kind
from tandemmq.broker.core.slices import Pace, Work, is_done
from tandemmq.broker.engine.fan_out import FanOut
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.ports import Callback
from tandemmq.limited_log import LimitedLog
from tandemmq.store.operations import Atomic

log = logging.getLogger(__name__)

# An error message may contain a text of the client, which may have any length.
_LOGGED_CHARACTERS_MAX = 500
#: Minimum time between two log lines about the same refusal for missing rights.
DENIED_AGAIN_MS: Final = 60_000
#: Maximum number of such refusals that are remembered; the one that was logged longest ago is forgotten first.
DENIED_REMEMBERED_MAX: Final = 1_000
#: Maximum number of log lines within DENIED_AGAIN_MS; further refusals are only counted.
DENIED_LINES_MAX: Final = 100

Answer = TypeVar("Answer")
# Carries out a command: at once, or as work, for which the client waits if it takes more than a step.
Handler = Callable[[Client, Any], Work[None] | None]
# Ends a part of a client's state, and adds the queues to be dispatched afterwards to the dictionary.
Ending = Callable[[Client, dict[QueueBase, None], Pace], Work[None] | None]


def _nothing() -> None:
    """Do nothing."""


class Clients(Part):
    """Begins and ends clients. ``handle`` carries out a command; ``writable`` is called with a connection that may get
    more messages again; ``endings`` end the parts of a client's state, in order; ``on_leave`` is called at once when a
    client leaves."""

    def __init__(
        self,
        shared: Shared,
        fan_out: FanOut,
        handle: Callable[[Connection, Command], None],
        writable: Callable[[Connection], None],
    ) -> None:
        super().__init__(shared)
        self.all: set[Client] = set()
        # Clients of which something is left, and the functions to call when that has ended.
        self.leavers: dict[Client, list[Callable[[], None]]] = {}
        self.endings: tuple[Ending, ...] = ()
        self.on_leave: Callable[[Client], None] = lambda client: None
        self._fan_out = fan_out
        self._handle = handle
        self._writable = writable
        self._denials = Denials()
        self._limited = LimitedLog(log)

    def opened(self, connection: Connection) -> Client:
        """Register a new connection."""
        client = connection.client = Client(connection)
        client.holder.on_space = partial(self._writable, connection)
        client.holder.add(Kind.STATE, CONNECTION_BYTES)
        self.all.add(client)
        return client

    # ---- its commands

    def carry_out(self, client: Client, command: Command, handler: Handler) -> None:
        """Have ``handler`` carry out a command that had to wait, and send its error to the client."""
        try:
            work = handler(client, command)
        except ClientError as error:
            self.refuse(client, command, error)
            return
        if work is not None:
            self.work_for(client, command, work)

    def work_for(self, client: Client, command: Command, work: Work[None]) -> None:
        """Carry out the steps of a command; ``client`` waits meanwhile."""
        try:
            if is_done(work):
                self.await_out(client)
                return
        except ClientError as error:
            self.refuse(client, command, error)
            return
        client.move(Event.WORK)
        self._start(charged(self._finish(client, command, work), client.holder))
        self._hold_back(client)

    def _finish(self, client: Client, command: Command, work: Work[None]) -> Work[None]:
        """Carry out the remaining steps for ``client``, which waits meanwhile, or leaves."""
        try:
            yield from work
        except ClientError as error:
            if client.is_open:
                self.refuse(client, command, error)
        except Exception:
            hang_up(client.connection)
        if client.move(Event.WORK_END) is State.READY:
            self._resume(client, partial(self.await_out, client))
        else:
            yield from self._leaving(client)

    def await_out(self, client: Client) -> None:
        """Hold the next command of a client back while a message that it sent is going out."""
        if client.connection in self._fan_out.origins and client.is_open:
            self.when_known(client, partial(self._fan_out.call_when_out, client.connection), lambda _: None)

    def when_known(
        self,
        client: Client,
        ask: Callable[[Callable[[Answer], None]], object],
        then: Callable[[Answer], None],
        *,
        is_read: bool = False,
    ) -> None:
        """Call ``ask``, which may take long. Commands of the client wait meanwhile, and nothing more is read from it;
        ``then`` gets the answer, unless the client left. ``is_read``: reading continues until the next command, so that
        the end of the connection is noticed."""
        client.move(Event.ASK)
        ask(partial(self._answered, client, then))
        if not is_read:
            self._hold_back(client)

    def _answered(self, client: Client, then: Callable[[Answer], None], answer: Answer) -> None:
        if client.move(Event.ANSWER) is State.READY:
            self._resume(client, partial(then, answer))

    def _hold_back(self, client: Client) -> None:
        """Stop reading from a client while its commands wait."""
        if not client.is_ready and client.is_there and not client.is_held:
            client.is_held = True
            client.stop_reading()

    def _resume(self, client: Client, then: Callable[[], None]) -> None:
        """Call ``then`` when the answer is there or the work is done, and carry out the commands that waited."""
        waiting, client.waiting = client.waiting, []
        try:
            then()
            if client.is_ready and client.is_held:  # otherwise there is more to wait for
                client.is_held = False
                client.resume_reading()
            for each in waiting:
                self._handle(client.connection, each)
        except Exception:
            hang_up(client.connection)

    def wait(self, connection: Connection, command: Command) -> None:
        """Handle a ``command`` that cannot be carried out now: it waits, or comes too late. If the protocol keeps its
        socket after a disconnect (OpenWire), the client may connect again, or disconnect."""
        client: Client | None = connection.client
        if client is not None and client.is_open:
            client.waiting.append(command)
            if not isinstance(command, Disconnect):  # nothing follows it: reading continues, so that the end is noticed
                self._hold_back(client)
        elif not connection.session.survives_errors:
            return
        elif client is not None and client.is_there and (client.waiting or isinstance(command, Connect)):
            client.waiting.append(command)  # until all that it had has ended
            self._hold_back(client)
        elif isinstance(command, Disconnect):
            connection.await_hang_up()
        elif isinstance(command, Connect) and client is None:
            self.opened(connection)
            self._handle(connection, command)

    def refuse(self, client: Client, command: Command, error: ClientError) -> None:
        """Send the error of ``command`` to its client, and end the client if the error is fatal."""
        forget_frames(error)
        if error.receipt is None:
            error.receipt = getattr(command, "receipt", None)
        if isinstance(command, Subscribe):
            error.refused_id = command.id
        is_login = isinstance(command, Connect | LogIn)
        if error.kind is ErrorKind.SECURITY and not is_login:  # logins have separate log lines
            self._denials.note(client.connection, error.message, self._clock())
        session = client.session
        tell(client.connection, session.fail, error)
        is_fatal = error.is_fatal and (not session.survives_errors or is_login or isinstance(command, ProtocolFailure))
        is_end = is_fatal or (self._settings.stomp_strict_errors and not session.survives_errors)
        # A frame that is too long: its client may have sent it without waiting, and may not read the answer.
        if is_end or (isinstance(command, ProtocolFailure) and error.kind is ErrorKind.RESOURCE):
            kind = f"{type(command).__name__} {error.kind.name} {client.principal.name}"
            done = "was disconnected" if is_end else "was refused"
            text = f"{client.connection!r} {done}: {error.message[:_LOGGED_CHARACTERS_MAX]}"
            self._limited.warning(type(session).__name__, kind, text, level=logging.INFO)
        if is_end:
            self.hang_up(client)

    # ---- the end

    def disconnect(self, client: Client, command: Disconnect) -> None:
        """End a client cleanly: it gets the receipt when all before it is durable."""
        if command.is_awaited:
            client.connection.await_login()
        # An empty operation: it comes back when all before it is durable.
        end = Atomic((), None, Callback(client, lambda _: self._disconnected(client, command)))
        self._leave(client, Event.DISCONNECT, partial(self._append, end))

    def _disconnected(self, client: Client, command: Disconnect) -> None:
        client.send_receipt(command.receipt)
        was_there = client.is_there
        client.move(Event.RECEIPT)
        if was_there:
            self._finish_disconnect(client, is_closed=not command.is_awaited)

    def _finish_disconnect(self, client: Client, *, is_closed: bool) -> None:
        """End a client that has its receipt. If the connection is kept, the commands after the disconnect begin a new
        client."""
        connection = client.connection
        connection.client = None
        waiting, client.waiting = client.waiting, []
        if is_closed:
            connection.close()
            return
        if client.is_held:
            client.resume_reading()
        for each in waiting:
            self._handle(connection, each)

    def closed(self, client: Client) -> None:
        """End a client whose connection is over: roll back its transactions, release its unacknowledged messages."""
        self._leave(client, Event.CLOSE)

    def hang_up(self, client: Client, *, after_flush: bool = True) -> None:
        """End a client and close its connection; with ``after_flush``, once all output to it is written."""
        self.closed(client)
        client.connection.close(after_flush)

    def _leave(self, client: Client, event: Event, then: Callable[[], None] = _nothing) -> None:
        """End a client: nothing goes to it from now on; its subscriptions and transactions end in slices, after the
        work that was begun for it, and then ``then`` is called. If the client has left already, only its state
        changes."""
        was_open = client.is_open
        state = client.move(event)
        client.waiting.clear()
        if not was_open:
            if state is State.GONE:
                client.connection.client = None
            return
        self.all.discard(client)
        try:
            self.on_leave(client)
        except Exception:  # the rest must end nevertheless
            log.exception("%r: its end %s", client.connection, ERROR_OF_BROKER)
        for each in client.subscriptions.values():
            each.end()
        self.leavers[client] = [then]
        if state is not State.LOST_AT_WORK:  # otherwise this follows the end of its work
            self._start(charged(self._leaving(client), client.holder))

    def _leaving(self, client: Client) -> Work[None]:
        pace = Pace()
        left: dict[QueueBase, None] = {}
        for end in self.endings:
            try:
                work = end(client, left, pace)
                if work is not None:
                    yield from work
            except Exception:  # the rest must end nevertheless
                log.exception("%r: its end %s", client.connection, ERROR_OF_BROKER)
        # No reference cycle is left: a client is freed at once, without the collector.
        client.holder.on_space = _nothing
        if client.move(Event.END) is State.GONE:
            client.connection.client = None
        for then in self.leavers.pop(client):
            try:
                then()
            except Exception:  # the others wait for it, too
                log.exception("%r: a command that waited for its end %s", client.connection, ERROR_OF_BROKER)

    def when_left(self, client: Client, then: Callable[[None], None]) -> None:
        """Call ``then`` when all that belonged to ``client``, which is leaving, has ended."""
        self.leavers[client].append(partial(then, None))


class Denials:
    """Logs refusals because of missing rights: the first at once, and then once a minute the count of the same one."""

    def __init__(self) -> None:
        self._logged: OrderedDict[str, list[int]] = OrderedDict()  # sentence -> [time of its last line, count since]
        self._lines_since = 0
        self._lines = 0
        self._unlogged = 0

    def note(self, peer: object, sentence: str, now: int) -> None:
        """Log or count that ``peer`` was refused by ``sentence``, which names user, operation and destination.
        ``now``: milliseconds since 1970."""
        known = self._logged.get(sentence)
        if known is not None and now - known[0] < DENIED_AGAIN_MS:
            known[1] += 1
            return
        if now - self._lines_since >= DENIED_AGAIN_MS:
            if self._unlogged:
                log.warning("denied: %d more refusals were not logged", self._unlogged, extra=log_events.DENIED)
            self._lines_since, self._lines, self._unlogged = now, 0, 0
        if self._lines >= DENIED_LINES_MAX:
            self._unlogged += 1
            return
        self._lines += 1
        times = f", {known[1]} times since the last line" if known is not None and known[1] else ""
        log.warning("denied: %r: %s%s", peer, sentence[:_LOGGED_CHARACTERS_MAX], times, extra=log_events.DENIED)
        self._logged[sentence] = [now, 0]
        self._logged.move_to_end(sentence)
        if len(self._logged) > DENIED_REMEMBERED_MAX:
            self._logged.popitem(last=False)
