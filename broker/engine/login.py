"""Login: the user of a client, and the connection id and client id that it connects with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from tandemmq.broker.core import names
from tandemmq.broker.core.access import Credentials, Operation
from tandemmq.broker.core.client import NOBODY, Client
from tandemmq.broker.core.commands import ClientError, Connect, ErrorKind, LogIn, ShareClientId
from tandemmq.broker.core.containment import tell
from tandemmq.broker.core.principal import ANONYMOUS, Principal
from tandemmq.broker.core.topics.shared import CLIENT_ID
from tandemmq.broker.engine.advisories import Advising
from tandemmq.broker.engine.clients import Clients
from tandemmq.broker.engine.id_owners import ClientIds, ConnectionIds
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.ports import Callback
from tandemmq.store.operations import AddConnection
from tandemmq.store.records.message_ids import is_of_numbered


class Sessions(Protocol):
    """The sessions of MQTT clients."""

    def find_user(self, client_id: str, then: Callable[[str | ClientError | None], None]) -> None:
        """Call ``then``, exactly once, with the user of the session that is kept for a client id; None: there is no
        session, or its user is not known; ClientError: the session could not be read. ``then`` is called at once if
        nothing has to be read."""


class Login(Part):
    """Connects clients. ``sessions`` None: this broker keeps no sessions."""

    def __init__(self, shared: Shared, clients: Clients, advising: Advising) -> None:
        super().__init__(shared)
        self.sessions: Sessions | None = None
        self._clients = clients
        self._advising = advising
        self._owners = ClientIds(shared)
        self._of_user: dict[str, set[Client]] = {}  # only if ``user_connections_max`` is set
        self._client_ids: dict[str, Client] = {}
        # Users whose connections share a client id, with the number of these connections, without guests. None: users
        # who are not proved.
        self._sharers: dict[str, Counter[str | None]] = {}
        self._connection_ids: dict[str, Client] = {}
        self._connection_owners = ConnectionIds(shared.store.connections())

    def connect(self, client: Client, command: Connect) -> None:
        """Check the credentials of a client."""
        if command.is_logged_in:
            assert client.principal is not NOBODY, "LogIn precedes a Connect that relies on it"
            self._admit(client, command, client.principal)
            return
        self._check(client, command, partial(self._admit_or_refuse, client, command))

    def log_in(self, client: Client, command: LogIn) -> None:
        """Check the credentials of a client that connects later."""
        self._check(client, command, partial(self._logged_in, client, command))

    def _check(self, client: Client, command: Connect | LogIn, then: Callable[[Principal | ClientError], None]) -> None:
        peer, certificate = client.connection.peer, client.connection.certificate
        is_external = isinstance(command, LogIn) and command.is_external
        if isinstance(command, LogIn) and not is_external:
            certificate = None
        credentials = Credentials(
            peer, command.login, command.passcode, certificate, lambda: client.is_open, is_external
        )
        self._clients.when_known(client, partial(self._access.connect, credentials), then, is_read=True)

    def _logged_in(self, client: Client, command: LogIn, answer: Principal | ClientError) -> None:
        if isinstance(answer, ClientError):
            self._clients.refuse(client, command, answer)
            return
        client.principal = answer
        client.send_receipt(command.receipt)

    def _admit_or_refuse(self, client: Client, command: Connect, answer: Principal | ClientError) -> None:
        try:
            if isinstance(answer, ClientError):
                raise answer
            self._admit(client, command, answer)
        except ClientError as error:
            self._clients.refuse(client, command, error)

    def _admit(self, client: Client, command: Connect, principal: Principal) -> None:
        """Admit ``principal``. The user becomes the permanent owner of the connection id; the answer waits until this
        is stored."""
        id, user = command.connection_id, principal.owner
        if id is not None:
            self._check_connection_id(client, id, principal)
        if id is None or user is None or self._connection_owners.take(id, user, _address_of(client)):
            self._enter(principal, client, command)
            return
        store = partial(self._store_owner, client, id, user)
        self._clients.when_known(
            client, store, lambda _: self._clients.carry_out(client, command, partial(self._enter, principal))
        )

    def _store_owner(self, client: Client, id: str, user: str, then: Callable[[None], None]) -> None:
        self._append(AddConnection(id, user, Callback(client, lambda _: then(None))))

    def enter(self, client: Client, command: Connect) -> None:
        """Continue to connect a client whose user is known."""
        self._enter(client.principal, client, command)

    def _enter(self, principal: Principal, client: Client, command: Connect) -> None:
        """Look up the user of the session for the client id. If the client has a session, the session reads this user
        later; then the look-up is done here only if another user is connected with the client id."""
        client_id, sessions = command.client_id, self.sessions
        if client_id is not None:
            names.check_length("the client id", client_id, ErrorKind.CLIENT_ID)
        other = None if client_id is None else self._client_ids.get(client_id)
        is_read_later = command.state is not None and (other is None or other.principal.name == principal.name)
        if client_id is None or sessions is None or is_read_later or client.is_stand_in:
            self._begin(principal, None, client, command)
            return
        self._clients.when_known(
            client,
            partial(sessions.find_user, client_id),
            lambda user: self._clients.carry_out(client, command, partial(self._begin, principal, user)),
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
            self._clients.hang_up(former, after_flush=False)
        if command.client_id is not None:
            _check_not_reserved(command.client_id)
            if not (client.is_stand_in or principal.may_everything):
                client.is_guest = self._owners.check(
                    principal,
                    command.client_id,
                    session_user,
                    has_session=command.state is not None,
                    is_assigned=command.is_client_id_assigned,
                )
                sharers = self._sharers.get(command.client_id, ())
                # prove: a-shared-client-id-is-in-use ", sharers" -> ", ()"
                self._check_unused(client, command.client_id, principal, session_user, sharers)
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
        if former is not None and former in self._clients.leavers:
            # All work of the former client must end before a client begins with the same id.
            begin = partial(self._begin, principal, session_user)
            self._clients.when_known(
                client,
                partial(self._clients.when_left, former),
                lambda _: self._clients.carry_out(client, command, begin),
            )
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
        command.may_read = partial(self._access.may, principal, Operation.READ)
        client.user_id = principal.name if self._settings.populate_jmsx_user_id else None
        self._advising.connected(client, command.login)
        user = None if principal.name == ANONYMOUS else principal.name
        tell(client.connection, client.session.connected, command, client.connection.id, user)

    def share_client_id(self, client: Client, command: ShareClientId) -> None:
        """Give a client its client id, if its user may use this id."""
        client_id, sessions = command.client_id, self.sessions
        if client.id is not None:
            assert client.id == client_id, "a session has one client id"
            client.send_receipt(command.receipt)
            return
        names.check_length("the client id", client_id, ErrorKind.CLIENT_ID)
        if sessions is None:
            self._share(None, client, command)
            return
        self._clients.when_known(
            client,
            partial(sessions.find_user, client_id),
            lambda user: self._clients.carry_out(client, command, partial(self._share, user)),
        )

    def _share(self, session_user: str | ClientError | None, client: Client, command: ShareClientId) -> None:
        if isinstance(session_user, ClientError):
            raise session_user
        client_id, principal = command.client_id, client.principal
        _check_not_reserved(client_id)
        if not principal.may_everything:
            # prove: a-shared-client-id-is-its-owners "self._owners.check(principal, client_id, session_user)" -> "0"
            client.is_guest = self._owners.check(principal, client_id, session_user)
            other = self._client_ids.get(client_id)
            if other is not None and other.is_open and not (other.is_stand_in or other.is_guest):
                # prove: a-client-id-in-use-is-not-shared "[other.principal.owner]" -> "[]"
                self._check_unused(client, client_id, principal, session_user, [other.principal.owner])
        client.id = client_id
        client.shares_id = True
        if not client.is_guest:
            self._sharers.setdefault(client_id, Counter())[principal.owner] += 1
        client.send_receipt(command.receipt)

    def _check_unused(
        self,
        client: Client,
        client_id: str,
        principal: Principal,
        session_user: str | None,
        users: Iterable[str | None],
    ) -> None:
        """Raise ClientError if one of ``users`` is not ``principal``. ``users``: those who are connected with the
        client id and are not guests. An owner of the client id may use it nevertheless, because the others can make no
        state under it. A guest may use it, too, because a guest makes no state."""
        if client.is_guest or self._owners.is_owner(principal, client_id, session_user):
            return
        if any(each != principal.owner for each in users):
            raise ClientError(
                f"Client id {client_id!r} is connected already",
                "A client id belongs to one user at a time.",
                kind=ErrorKind.CLIENT_ID,
            )

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
        id, owns = command.client_id or "", self._owners.is_owner
        # prove: an-owner-gets-its-client-id "owns(principal, id, session_user) and" -> "False and"
        return owns(principal, id, session_user) and not owns(other.principal, id, session_user)

    def _count_for(self, principal: Principal, client: Client) -> None:
        """Count one more connection of the user, until the client leaves. ClientError if there are too many."""
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
            self._clients.hang_up(former)

    def _check_connection_id(self, client: Client, id: str, principal: Principal) -> None:
        """Check that ``principal`` may use a connection id. It belongs to its first user, even if that user is not
        connected, because message ids begin with it."""
        names.check_length("the id of a connection", id, ErrorKind.CLIENT_ID)
        former = self._connection_ids.get(id)
        is_anothers = former is not None and former.principal.name != principal.name
        if not is_anothers and principal.owner is not None:
            is_anothers = self._connection_owners.is_refused(id, principal.owner, _address_of(client))
        if is_anothers or is_of_numbered(id):
            raise ClientError(
                f"Connection {id} belongs to another user, or to a program of other users at another address",
                "Only its own user can take over a connection. A program can get a new user only from an "
                "address of its other users.",
                kind=ErrorKind.SECURITY,
            )

    # ---- the end

    def left(self, client: Client) -> None:
        """Stop counting the connection of a client that leaves: for its user, and for its client id if it shares
        that."""
        owner = client.principal.owner
        if client.shares_id and client.id is not None and not client.is_guest:
            sharers = self._sharers[client.id]
            sharers[owner] -= 1
            if not sharers[owner]:
                del sharers[owner]
            if not sharers:
                del self._sharers[client.id]
        if owner is not None and owner in self._of_user:
            self._of_user[owner].discard(client)
            if not self._of_user[owner]:
                del self._of_user[owner]

    def ended(self, client: Client) -> None:
        """Free the ids of a client when all that it had has ended."""
        if client.id is not None and self._client_ids.get(client.id) is client:
            del self._client_ids[client.id]
        if client.connection_id is not None and self._connection_ids.get(client.connection_id) is client:
            del self._connection_ids[client.connection_id]


def _check_not_reserved(client_id: str) -> None:
    # A client id with a colon could produce the key of a shared subscription (``subscription_key``).
    # prove: no-client-id-reaches-shared-ones "or client_id" -> "and client_id"
    if client_id == CLIENT_ID or client_id.startswith(f"{CLIENT_ID}:"):
        raise ClientError(f"Client id {client_id!r} is reserved for the broker", kind=ErrorKind.CLIENT_ID)


def _address_of(client: Client) -> str:
    """Return the address of a client without the port."""
    return client.connection.peer.rpartition(":")[0]
