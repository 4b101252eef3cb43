"""Who a client is, and what it may do. Pure: the interface that the broker uses, and the one that allows everything.

Every client may subscribe to the advisory topics that tell of destinations: a Java client subscribes to those of
temporary ones on every connection. The topics that tell of the consumers and producers of a destination are for users
who may read that destination; the topics that show connections or messages need a right of their own. Which advisories
of a topic a client then gets is decided for each of them (broker.engine.advisory_rights). Temporary destinations are
for everybody, too: who knows the name of one was given it as a reply's address, and that only its owner may consume
from it is no matter of rights either (the engine sees to it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol

from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.names import ADVISORY_TOPICS, is_wildcard
from tandemmq.broker.core.principal import ANONYMOUS, Principal
from tandemmq.store.records.message import Destination, DestinationKind

#: Advisory topics that tell of a destination's users and state, by the words behind which its kind and name stand.
_USE_ADVISORIES: Final = ("Consumer", "Producer", "SlowConsumer", "FastProducer")
_FOR_EVERYBODY: Final = frozenset(
    f"{ADVISORY_TOPICS}{word}" for word in ("Queue", "Topic", "TempQueue", "TempTopic", "MasterBroker")
)
_EVERYTHING: Final = (Destination(DestinationKind.QUEUE, ">"), Destination(DestinationKind.TOPIC, ">"))
#: Characters of a wrong name that an error repeats.
LOGIN_SHOWN_MAX: Final = 255


class Operation(Enum):
    """What is done with a destination; the values are the words of ActiveMQ's refusals (AuthorizationBroker).

    A pattern may be read if some destination that it matches may be read (READ). For every other operation, and for
    READ_ALL, one grant must cover all destinations that the pattern matches.
    """

    READ = "read from"
    READ_ALL = "read all of"
    WRITE = "write to"
    CREATE = "create"
    REMOVE = "remove"
    NETWORK = "know all consumers of"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client shows. ``peer`` is the other end of its connection, HOST:PORT; ``certificate`` the subject of its
    certificate, which TLS has verified; ``is_wanted`` whether it still waits for the answer."""

    peer: str
    login: str | None = None
    passcode: str | None = None
    certificate: str | None = None
    is_wanted: Callable[[], bool] = field(default=lambda: True, compare=False)

    def __repr__(self) -> str:
        return f"Credentials({self.peer!r}, {self.login!r})"  # a passcode is never shown, in no traceback either

    @property
    def host(self) -> str:
        """The peer's address without the port."""
        host = self.peer.rpartition(":")[0]
        return host[1:-1] if host.startswith("[") else host

    @property
    def is_loopback(self) -> bool:
        """Whether the client runs on this machine."""
        try:
            address = ip_address(self.host.partition("%")[0])
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback


Known = Callable[["Principal | ClientError"], None]


class Access(Protocol):
    """Who may connect, and who may do what. All on the loop's thread."""

    def connect(self, credentials: Credentials, then: Known) -> None:
        """Log the client in, and call ``then`` with the result, exactly once: at once when it is known, else in a later
        turn of the loop. A refusal is a ClientError that is fatal: of kind LOGIN, the name or the passcode is wrong; of
        kind SECURITY, clients like this one are not served, or not now. Until then the client has no identity, and what
        else it says has to wait; when it hung up meanwhile, the answer is of no use and does no harm."""

    def identify(self, user: str | None) -> Principal:
        """Return whom a name means now, with the groups of now: for what the broker does later for that user. None: a
        client whose name was not proved. Raises ClientError, not fatal: of kind SECURITY, there is no such user any
        more; of kind TIMEOUT, it is being found out, so ask again soon; of kind RESOURCE, it cannot be found out now.
        """

    def holds(self, principal: Principal) -> bool:
        """Whether the user still exists, with the groups that it had at its login. A thread asks the directory of the
        user, once a minute at most; until the directory answers, the result is True. For a user of the users file it
        always is: the broker acts on changes when it reads that file."""

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        """Raises ClientError of kind SECURITY, not fatal, when ``principal`` may not. Of a composite or a pattern each
        part, and each match, is to be asked for by itself. Costs one dictionary look-up."""

    def may(self, principal: Principal, operation: Operation, destination: Destination) -> bool:
        """As ``check``, without an error, which costs more than the answer."""

    @property
    def has_rights(self) -> bool:
        """Whether anything has to be granted."""

    def look(self) -> None:
        """Read again what changed on disk; to be called now and then."""

    def reload(self) -> None:
        """Read again what is on disk."""

    def close(self) -> None:
        """No login is answered any more."""


class OpenAccess:
    """Everybody may everything: security was not set up. From other machines only when ``is_everywhere``."""

    def __init__(self, *, is_everywhere: bool = False) -> None:
        self._is_everywhere = is_everywhere

    def connect(self, credentials: Credentials, then: Known) -> None:
        if self._is_everywhere or credentials.is_loopback:
            then(Principal(credentials.login or ANONYMOUS, is_proved=False))
        else:
            then(refused_login(credentials.login, REMOTE_DETAIL, ErrorKind.SECURITY))

    def identify(self, user: str | None) -> Principal:
        return Principal(user or ANONYMOUS, is_proved=False)

    def holds(self, principal: Principal) -> bool:
        return True

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        pass

    def may(self, principal: Principal, operation: Operation, destination: Destination) -> bool:
        try:
            self.check(principal, operation, destination)
        except ClientError:
            return False
        return True

    has_rights = False
    problem: str | None = None

    def look(self) -> None:
        """Nothing changes."""

    def reload(self) -> None:
        """Nothing is read."""

    def close(self) -> None:
        """Nothing is open."""


REMOTE_DETAIL: Final = (
    "No users are set up, and without them clients of this machine alone are served: set security.users_file, or "
    'security.allow_anonymous = "true".'
)


def refused_login(login: str | None, detail: str = "", kind: ErrorKind = ErrorKind.LOGIN) -> ClientError:
    """The text does not say whether the name or the passcode was wrong (SimpleAuthenticationBroker's words)."""
    shown = (login or "")[:LOGIN_SHOWN_MAX]
    return ClientError(f"User name [{shown}] or password is invalid.", detail, kind=kind)


def refused_operation(principal: Principal, operation: Operation, destination: Destination) -> ClientError:
    """The words of AuthorizationBroker."""
    text = f"User {principal.name} is not authorized to {operation.value}: {destination}"
    return refusal(text, kind=ErrorKind.SECURITY)


class Decides(Protocol):
    """The part of Access that answers."""

    def may(self, principal: Principal, operation: Operation, destination: Destination) -> bool: ...


def is_admin(access: Decides, principal: Principal) -> bool:
    """Whether ``principal`` has the right ``admin`` on all queues and topics: nothing is hidden from such a user. Where
    there are no rights, every user has it."""
    return all(access.may(principal, Operation.CREATE, everything) for everything in _EVERYTHING)


def is_for_everybody(operation: Operation, destination: Destination) -> bool:
    """Temporary destinations need no right, nor do advisories about destinations. All patterns of advisory topics are
    allowed: rights are asked for each topic that they match."""
    kind, name = destination
    if operation is Operation.NETWORK:
        return False
    if kind is DestinationKind.TEMP_QUEUE or kind is DestinationKind.TEMP_TOPIC:
        return True
    if kind is not DestinationKind.TOPIC or not name.startswith(ADVISORY_TOPICS):
        return False
    if operation is Operation.READ:
        return name in _FOR_EVERYBODY or is_wildcard(name)
    return operation is Operation.CREATE  # by the first who listens


def used(destination: Destination) -> Destination | None:
    """Of whose consumers, producers or state that advisory topic tells; None of every other destination."""
    kind, name = destination
    if kind is not DestinationKind.TOPIC or not name.startswith(ADVISORY_TOPICS):
        return None
    what, _, rest = name[len(ADVISORY_TOPICS) :].partition(".")
    word, _, of = rest.partition(".")
    if what not in _USE_ADVISORIES or not of:
        return None
    of_kind = {"Queue": DestinationKind.QUEUE, "Topic": DestinationKind.TOPIC}.get(word)
    return None if of_kind is None else Destination(of_kind, of)
