"""The life of a client: its identity, its commands in order, and the end of all that it had.

While the broker waits for an answer about a client, or works for it in steps, the next commands of the client wait, and
no more is read from it. The states of that life are in broker.core.client; only this module changes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from tandemmq.broker.core import names
from tandemmq.broker.core.access import Credentials, Operation
from tandemmq.broker.core.charging import charged
from tandemmq.broker.core.client import NOBODY, Client, Connection, Event, State
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
from tandemmq.broker.core.principal import ANONYMOUS, Principal
from tandemmq.broker.core.slices import Pace, Work, is_done
from tandemmq.broker.core.topics.shared import CLIENT_ID
from tandemmq.broker.engine.advisories import Advising
from tandemmq.broker.engine.client_ids import ClientIds
from tandemmq.broker.engine.connection_ids import ConnectionIds
from tandemmq.broker.engine.denials import Denials
from tandemmq.broker.engine.fan_out import FanOut
from tandemmq.broker.engine.ports import Then
from tandemmq.broker.engine.refusals import may
from tandemmq.broker.engine.shared import Part, Shared
from tandemmq.limited_log import LimitedLog
from tandemmq.store.operations import AddConnection, Atomic
from tandemmq.store.records.message_ids import is_of_numbered

log = logging.getLogger(__name__)

# A message may repeat a text of the client, of any length.
_LOGGED_CHARACTERS_MAX = 500

Answer = TypeVar("Answer")
# Carries out a command: at once, or as work, for which the client waits if it takes more than a step.
Handler = Callable[[Client, Any], Work[None] | None]
# Ends something with a client: puts the queues that are to be dispatched afterwards into the dictionary.
Ending = Callable[[Client, dict[QueueBase, None], Pace], Work[None] | None]


def _nothing() -> None:
    """Do nothing."""


def _address_of(client: Client) -> str:
    """Return the address of a client without the port."""
    return client.connection.peer.rpartition(":")[0]


def _credentials(client: Client, command: Connect | LogIn) -> Credentials:
    connection = client.connection
    return Credentials(connection.peer, command.login, command.passcode, connection.certificate, lambda: client.is_open)


class Clients(Part):
    """Begins and ends clients. ``handle`` carries out a command; ``writable`` is called with a connection that may be
    given more again; ``endings`` end what a client has, in order; ``on_leave`` is called at once when a client
    leaves."""

    def __init__(
        self,
        shared: Shared,
        fan_out: FanOut,
        advising: Advising,
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
        self._advising = advising
        self._handle = handle
        self._writable = writable
        self.client_ids = ClientIds(shared)
        self._of_user: dict[str, set[Client]] = {}  # where ``user_connections_max`` is set
        self._client_ids: dict[str, Client] = {}
        self._connection_ids: dict[str, Client] = {}
        self._connection_owners = ConnectionIds(shared.store.connections())
        self._denials = Denials()
        self._limited = LimitedLog(log)

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
            self._go_on(client, partial(self.await_out, client))
        else:
            yield from self._leaving(client)

    def await_out(self, client: Client) -> None:
        """Hold the next command of a client back while a message that it sent is going out."""
        if client.connection in self._fan_out.origins and client.is_open:
            self.when_known(client, partial(self._fan_out.tell_when_out, client.connection), lambda _: None)

    def when_known(
        self,
        client: Client,
        ask: Callable[[Callable[[Answer], None]], object],
        then: Callable[[Answer], None],
        *,
        is_read: bool = False,
    ) -> None:
        """Call ``ask``, which may take its time. Commands of the client wait meanwhile, and nothing more is read from
        it; ``then`` gets the answer, unless the client left. ``is_read``: reading continues until the next command, so
        that the end of the connection is noticed."""
        client.move(Event.ASK)
        ask(partial(self._answered, client, then))
        if not is_read:
            self._hold_back(client)

    def _answered(self, client: Client, then: Callable[[Answer], None], answer: Answer) -> None:
        if client.move(Event.ANSWER) is State.READY:
            self._go_on(client, partial(then, answer))

    def _hold_back(self, client: Client) -> None:
        """Stop reading from a client while its commands wait."""
        if not client.is_ready and client.is_there and not client.is_held:
            client.is_held = True
            client.stop_reading()

    def _go_on(self, client: Client, then: Callable[[], None]) -> None:
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
        if error.kind is ErrorKind.SECURITY and not is_login:  # logins have log lines of their own
            self._denials.note(client.connection, error.message, self._clock())
        session = client.session
        tell(client.connection, session.fail, error)
        is_fatal = error.is_fatal and (not session.survives_errors or is_login or isinstance(command, ProtocolFailure))
        is_end = is_fatal or (self._settings.stomp_strict_errors and not session.survives_errors)
        # A frame that is too long: its client may have sent it without waiting, and may not read the answer.
        if is_end or (isinstance(command, ProtocolFailure) and error.kind is ErrorKind.RESOURCE):
            kind = f"{type(command).__name__} {error.kind.name} {client.principal.name}"
            done = "hung up on" if is_end else "was refused"
            text = f"{client.connection!r} {done}: {error.message[:_LOGGED_CHARACTERS_MAX]}"
            self._limited.warning(type(session).__name__, kind, text, level=logging.INFO)
        if is_end:
            self.hang_up(client)

    # ---- the beginning

    def opened(self, connection: Connection) -> Client:
        """Register a new connection."""
        client = connection.client = Client(connection)
        client.holder.on_space = partial(self._writable, connection)
        client.holder.add(Kind.STATE, CONNECTION_BYTES)
        self.all.add(client)
        return client

    def connect(self, client: Client, command: Connect) -> None:
        """Check the credentials of a client."""
        if command.is_logged_in:
            assert client.principal is not NOBODY, "LogIn precedes a Connect that relies on it"
            self._admit(client, command, client.principal)
            return
        admit = partial(self._admit_or_refuse, client, command)
        self.when_known(client, partial(self._access.connect, _credentials(client, command)), admit, is_read=True)

    def log_in(self, client: Client, command: LogIn) -> None:
        """Check the credentials of a client that connects later."""
        then = partial(self._logged_in, client, command)
        self.when_known(client, partial(self._access.connect, _credentials(client, command)), then, is_read=True)

    def _logged_in(self, client: Client, command: LogIn, answer: Principal | ClientError) -> None:
        if isinstance(answer, ClientError):
            self.refuse(client, command, answer)
            return
        client.principal = answer
        client.send_receipt(command.receipt)

    def _admit_or_refuse(self, client: Client, command: Connect, answer: Principal | ClientError) -> None:
        try:
            if isinstance(answer, ClientError):
                raise answer
            self._admit(client, command, answer)
        except ClientError as error:
            self.refuse(client, command, error)

    def _admit(self, client: Client, command: Connect, principal: Principal) -> None:
        """Admit ``principal``. The user owns its connection id for good: the answer waits until that is stored."""
        id, user = command.connection_id, principal.owner
        if id is not None:
            self._check_connection_id(client, id, principal)
        if id is None or user is None or self._connection_owners.take(id, user, _address_of(client)):
            self._enter(principal, client, command)
            return
        store = partial(self._store_owner, client, id, user)
        self.when_known(client, store, lambda _: self.carry_out(client, command, partial(self._enter, principal)))

    def _store_owner(self, client: Client, id: str, user: str, then: Callable[[None], None]) -> None:
        self._append(AddConnection(id, user, Then(client, lambda _: then(None))))

    def enter(self, client: Client, command: Connect) -> None:
        """Continue to connect a client whose user is known."""
        self._enter(client.principal, client, command)

    def _enter(self, principal: Principal, client: Client, command: Connect) -> None:
        """Look up the owner of the client id. A session itself reads the user of its own client, so it is looked up
        here only if another user may have to give way."""
        client_id, sessions = command.client_id, self.client_ids.sessions
        if client_id is not None:
            names.check_length("the client id", client_id, ErrorKind.CLIENT_ID)
        other = None if client_id is None else self._client_ids.get(client_id)
        is_read_later = command.state is not None and (other is None or other.principal.name == principal.name)
        if client_id is None or sessions is None or is_read_later or client.is_stand_in:
            self._begin(principal, None, client, command)
            return
        self.when_known(
            client,
            partial(sessions.find_user, client_id),
            lambda user: self.carry_out(client, command, partial(self._begin, principal, user)),
        )

    def _begin(
        self, principal: Principal, session_user: str | ClientError | None, client: Client, command: Connect
    ) -> None:
        """Begin the connection. ``session_user``: result of ``Sessions.find_user``."""
        if isinstance(session_user, ClientError):
            raise session_user
        former = None if command.connection_id is None else self._connection_ids.get(command.connection_id)
        if former is not None:
            # The client came back before the loss of its old socket was noticed here (openwire.md 16.3).
            self.hang_up(former, after_flush=False)
        if command.client_id is not None:
            if command.client_id == CLIENT_ID:
                raise ClientError(f"Client id {CLIENT_ID} is the broker's own", kind=ErrorKind.CLIENT_ID)
            if not (client.is_stand_in or principal.may_everything):
                client.is_guest = self.client_ids.check(principal, command, session_user)
            other = self._client_ids.get(command.client_id)
            if other is not None and self._gives_way(other, principal, session_user, client, command):
                self._take_over(other, principal, client)
            elif other is not None and other.is_open:
                where = f" from {other.connection.peer}" if other.principal.name == principal.name else ""
                raise ClientError(
                    f"Client id {command.client_id!r} is connected already{where}",
                    "A client id belongs to one connection at a time.",
                    kind=ErrorKind.CLIENT_ID,
                )
            former = other or former
        if former is not None and former in self.leavers:
            # All that the former client had must end before a client begins under the same name.
            begin = partial(self._begin, principal, session_user)
            self.when_known(client, partial(self._when_left, former), lambda _: self.carry_out(client, command, begin))
            return
        self._count_for(principal, client)
        if command.client_id is not None:
            self._client_ids[command.client_id] = client
            client.id = command.client_id
        if command.connection_id is not None:
            self._connection_ids[command.connection_id] = client
            client.connection_id = command.connection_id
        client.principal = principal
        if command.state is not None:
            assert names.is_session_state(command.state), "a session's state is a queue of the broker's own"
            client.private = command.state
            command.has_state = self._destinations.exists(command.state)
            command.durable_names = self._destinations.durable_names(command.client_id or "")
        command.principal = principal
        command.may_read = partial(may, self._access, principal, Operation.READ)
        client.user_id = principal.name if self._settings.populate_jmsx_user_id else None
        self._advising.connected(client, command.login)
        user = None if principal.name == ANONYMOUS else principal.name
        tell(client.connection, client.session.connected, command, client.connection.id, user)

    def _gives_way(
        self, other: Client, principal: Principal, session_user: str | None, client: Client, command: Connect
    ) -> bool:
        """Return whether ``other`` leaves its client id to ``client``, which connects as ``principal``."""
        if client.is_stand_in:
            return False
        if other.is_stand_in:
            return True
        if other.principal.name == principal.name:
            return command.steals_client_id
        id, owns = command.client_id or "", self.client_ids.is_owner
        # prove: an-owner-gets-its-client-id "owns(principal, id, session_user) and" -> "False and"
        return owns(principal, id, session_user) and not owns(other.principal, id, session_user)

    def _count_for(self, principal: Principal, client: Client) -> None:
        """Count one more connection of the user, until it leaves. ClientError if there are too many."""
        most, owner = self._settings.user_connections_max, principal.owner
        if most is None or owner is None or client.is_stand_in:
            return
        others = self._of_user.get(owner, ())
        if len(others) >= most:  # prove: connections-of-a-user
            raise ClientError(
                f"User {owner} has {most} connections",
                f"user_connections_max is {most}: close some.",
                kind=ErrorKind.RESOURCE,
            )
        self._of_user.setdefault(owner, set()).add(client)

    def _take_over(self, former: Client, principal: Principal, by: Client) -> None:
        """End ``former``, with the reason: ``by``, of ``principal``, connects with the same client id."""
        if former.is_open:
            where = f" from {by.connection.peer}" if former.principal.name == principal.name else ""
            error = ClientError(
                f"Client id {former.id!r} connected again{where}",
                "A client id belongs to one connection at a time, and the new one replaced this one.",
                kind=ErrorKind.TAKEN_OVER,
            )
            tell(former.connection, former.session.fail, error)
            self.hang_up(former)

    def _check_connection_id(self, client: Client, id: str, principal: Principal) -> None:
        """Check the owner of a connection id: its first user, also while away, because message ids begin with it."""
        names.check_length("the id of a connection", id, ErrorKind.CLIENT_ID)
        former = self._connection_ids.get(id)
        is_anothers = former is not None and former.principal.name != principal.name
        if not is_anothers and principal.owner is not None:
            is_anothers = self._connection_owners.is_refused(id, principal.owner, _address_of(client))
        if is_anothers or is_of_numbered(id):
            raise ClientError(
                f"Connection {id} belongs to another user, or to a program of other users elsewhere",
                "Only its own user takes over a connection. A program adds users from the address of its others only.",
                kind=ErrorKind.SECURITY,
            )

    # ---- the end

    def disconnect(self, client: Client, command: Disconnect) -> None:
        """End a client in order: it gets the receipt when all before it is durable."""
        if command.is_awaited:
            client.connection.await_login()
        # An empty operation: it comes back when all before it is durable.
        end = Atomic((), None, Then(client, lambda _: self._disconnected(client, command)))
        self._leave(client, Event.DISCONNECT, partial(self._append, end))

    def _disconnected(self, client: Client, command: Disconnect) -> None:
        client.send_receipt(command.receipt)
        was_there = client.is_there
        client.move(Event.RECEIPT)
        if was_there:
            self._part(client, is_closed=not command.is_awaited)

    def _part(self, client: Client, *, is_closed: bool) -> None:
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
        """End a client and close its connection, ``after_flush`` once what was sent to it is written."""
        self.closed(client)
        client.connection.close(after_flush)

    def _leave(self, client: Client, event: Event, then: Callable[[], None] = _nothing) -> None:
        """End a client: nothing goes to it from now on; what it had open ends in slices, after the work that was begun
        for it, and then ``then`` is called. Of a client that left already only the state changes."""
        was_open = client.is_open
        state = client.move(event)
        client.waiting.clear()
        if not was_open:
            if state is State.GONE:
                client.connection.client = None
            return
        self.all.discard(client)
        owner = client.principal.owner
        if owner is not None and owner in self._of_user:
            self._of_user[owner].discard(client)
            if not self._of_user[owner]:
                del self._of_user[owner]
        try:
            self.on_leave(client)
        except Exception:  # the rest of what it had must end all the same
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
            except Exception:  # the rest of what it had must end all the same
                log.exception("%r: its end %s", client.connection, ERROR_OF_BROKER)
        if client.id is not None and self._client_ids.get(client.id) is client:
            del self._client_ids[client.id]
        if client.connection_id is not None and self._connection_ids.get(client.connection_id) is client:
            del self._connection_ids[client.connection_id]
        # No reference cycle is left: a client is freed at once, without the collector.
        client.holder.on_space = _nothing
        if client.move(Event.END) is State.GONE:
            client.connection.client = None
        for then in self.leavers.pop(client):
            try:
                then()
            except Exception:  # the others wait for it, too
                log.exception("%r: what waited for its end %s", client.connection, ERROR_OF_BROKER)

    def _when_left(self, client: Client, then: Callable[[None], None]) -> None:
        """Call ``then`` when all that belonged to ``client``, which is leaving, has ended."""
        self.leavers[client].append(partial(then, None))
