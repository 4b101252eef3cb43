"""Rights of clients: the interface to login and rights that the broker uses, the implementation that allows everything,
and the rights on the broker's own queues. Pure.

Every client may subscribe to the advisory topics about destinations: a Java client subscribes to those for temporary
destinations on every connection. The topics about the consumers and producers of a destination are for users who may
read that destination. The topics that show connections or messages need a separate right. Which advisories of a
topic a client then receives is decided for each advisory (broker.core.advisor). Every client may also use
temporary destinations: a client that knows the name of one received it as a reply address. Only the owner may consume
from it; the engine enforces that, not the rights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol

from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.names import ADVISORY_TOPICS, is_private, is_wildcard
from tandemmq.broker.core.principal import ANONYMOUS, Principal
from tandemmq.store.records.message import Destination, DestinationKind

#: Advisory topics about the users and the state of a destination; kind and name of the destination follow these words.
_USE_ADVISORIES: Final = ("Consumer", "Producer", "SlowConsumer", "FastProducer")
_FOR_EVERYBODY: Final = frozenset(
    f"{ADVISORY_TOPICS}{word}" for word in ("Queue", "Topic", "TempQueue", "TempTopic", "MasterBroker")
)
_EVERYTHING: Final = (Destination(DestinationKind.QUEUE, ">"), Destination(DestinationKind.TOPIC, ">"))
#: Characters of a wrong name that an error repeats.
LOGIN_SHOWN_MAX: Final = 255


class Operation(Enum):
    """Operation on a destination. The values are the words of ActiveMQ's refusals (AuthorizationBroker).

    A pattern may be read if at least one destination that it matches may be read (READ). For every other operation, and
    for READ_ALL, one grant must cover all destinations that the pattern matches.
    """

    READ = "read from"
    READ_ALL = "read all of"
    WRITE = "write to"
    CREATE = "create"
    REMOVE = "remove"
    NETWORK = "know all consumers of"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials that a client presents. ``peer``: address of the client, HOST:PORT. ``certificate``: subject of its
    certificate, which TLS has verified. ``is_wanted`` returns whether the client still waits for the result.
    ``is_external``: the client requests the identity in its certificate (SASL EXTERNAL), never an anonymous one."""

    peer: str
    login: str | None = None
    passcode: str | None = None
    certificate: str | None = None
    is_wanted: Callable[[], bool] = field(default=lambda: True, compare=False)
    is_external: bool = False

    def __repr__(self) -> str:
        return f"Credentials({self.peer!r}, {self.login!r})"  # a passcode is never shown, not even in a traceback

    @property
    def host(self) -> str:
        """The peer's address without the port."""
        host = self.peer.rpartition(":")[0]
        return host[1:-1] if host.startswith("[") else host

    @property
    def is_loopback(self) -> bool:
        """True if the client runs on this machine."""
        try:
            address = ip_address(self.host.partition("%")[0])
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback


Known = Callable[["Principal | ClientError"], None]


class Access(Protocol):
    """Decide which clients may connect, and the operations of each. All methods run on the loop's thread."""

    def connect(self, credentials: Credentials, then: Known) -> None:
        """Log the client in, and call ``then`` with the result, exactly once: at once when the result is known, else in
        a later turn of the loop. A refusal is a fatal ClientError. Kind LOGIN: the name or the passcode is wrong. Kind
        SECURITY: clients like this one are not served, or not now. Until then the client has no identity, and its
        further commands wait. If the client disconnects meanwhile, the result is unused and harmless."""

    def identify(self, user: str | None) -> Principal:
        """Return the principal of ``user`` with its present groups, for later actions of the broker on behalf of that
        user. ``user`` None: a client whose name was not proved. Raises ClientError, not fatal. Kind SECURITY: the user
        no longer exists. Kind TIMEOUT: the look-up is in progress, so call again soon. Kind RESOURCE: the look-up is
        not possible now.
        """

    def holds(self, principal: Principal) -> bool:
        """Return whether the user still exists, with the groups that it had at its login. A thread queries the
        directory of the user, at most once a minute; until the directory answers, the result is True. It is always True
        for a user of the users file: the broker acts on changes when it reads that file."""

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        """Raise ClientError of kind SECURITY, not fatal, when ``principal`` lacks the right. Call it separately for
        each part of a composite and each match of a pattern. Costs one dictionary look-up."""

    def may(self, principal: Principal, operation: Operation, destination: Destination) -> bool:
        """Return whether ``check`` would pass, without the cost of an error."""

    @property
    def has_rights(self) -> bool:
        """True if operations need rights."""

    def refresh(self) -> None:
        """Read again the files that changed on disk. Call this periodically."""

    def reload(self) -> None:
        """Read all files again."""

    def close(self) -> None:
        """Stop answering logins."""


class OpenAccess:
    """Allow everything: security is not configured. Clients of other machines are served only with
    ``is_everywhere``."""

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

    def refresh(self) -> None:
        """Do nothing: no file can change."""

    def reload(self) -> None:
        """Do nothing: there is no file."""

    def close(self) -> None:
        """Do nothing: nothing is open."""


REMOTE_DETAIL: Final = (
    "No users are configured, so only clients on this machine are served: set security.users_file, or "
    'security.allow_anonymous = "true".'
)


def refused_login(login: str | None, detail: str = "", kind: ErrorKind = ErrorKind.LOGIN) -> ClientError:
    """Make the error of a failed login. Its text does not reveal whether the name or the passcode was wrong (text of
    SimpleAuthenticationBroker)."""
    shown = (login or "")[:LOGIN_SHOWN_MAX]
    return ClientError(f"User name [{shown}] or password is invalid.", detail, kind=kind)


def refused_operation(principal: Principal, operation: Operation, destination: Destination) -> ClientError:
    """Make the error of an operation without the right (text of AuthorizationBroker)."""
    text = f"User {principal.name} is not authorized to {operation.value}: {destination}"
    return refusal(text, kind=ErrorKind.SECURITY)


class RightsCheck(Protocol):
    """The part of Access that decides about rights."""

    def may(self, principal: Principal, operation: Operation, destination: Destination) -> bool: ...


def is_admin(access: RightsCheck, principal: Principal) -> bool:
    """Return whether ``principal`` has the right ``admin`` on all queues and topics: nothing is hidden from such a
    user. Without configured rights every user has it."""
    return all(access.may(principal, Operation.CREATE, everything) for everything in _EVERYTHING)


def is_for_everybody(operation: Operation, destination: Destination) -> bool:
    """Return whether the operation needs no right: on temporary destinations, and on advisories about destinations. All
    patterns of advisory topics are allowed: rights are checked for each topic that they match."""
    kind, name = destination
    if operation is Operation.NETWORK:
        return False
    if kind is DestinationKind.TEMP_QUEUE or kind is DestinationKind.TEMP_TOPIC:
        return True
    if kind is not DestinationKind.TOPIC or not name.startswith(ADVISORY_TOPICS):
        return False
    if operation is Operation.READ:
        return name in _FOR_EVERYBODY or is_wildcard(name)
    return operation is Operation.CREATE  # the first listener creates it


def reported_destination(destination: Destination) -> Destination | None:
    """Return the destination whose consumers, producers or state this advisory topic reports; None for other
    destinations."""
    kind, name = destination
    if kind is not DestinationKind.TOPIC or not name.startswith(ADVISORY_TOPICS):
        return None
    what, _, rest = name[len(ADVISORY_TOPICS) :].partition(".")
    word, _, of = rest.partition(".")
    if what not in _USE_ADVISORIES or not of:
        return None
    of_kind = {"Queue": DestinationKind.QUEUE, "Topic": DestinationKind.TOPIC}.get(word)
    return None if of_kind is None else Destination(of_kind, of)


class PrivateAccess:
    """Applies the rights of ``access``, and reserves the broker's own queues for principals with ``may_everything``.
    The session that owns such a queue (``Client.private``) may also use it; its engine checks that. ``of_settings``:
    principals that are not users, but for which the broker acts, such as bridges."""

    def __init__(self, access: Access, of_settings: Iterable[Principal] = ()) -> None:
        self._access = access
        self.connect = access.connect
        self._of_settings: dict[str | None, Principal] = {each.name: each for each in of_settings}

    def identify(self, user: str | None) -> Principal:
        """Return Access.identify of ``user``. A user takes precedence over a principal of the settings with the same
        name."""
        own = self._of_settings.get(user)
        try:
            found = self._access.identify(user)
        except ClientError as error:
            # prove: users-before-bridges " or error.kind is not ErrorKind.SECURITY"
            if own is None or error.kind is not ErrorKind.SECURITY:
                raise
            return own  # prove: bridges-act-later
        # Without users every name means the anonymous user.
        # prove: bridges-are-not-anonymous "found.name == user" -> "True"
        return found if own is None or found.name == user else own

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        if is_private(destination) and not principal.may_everything:
            raise refused_private(destination)
        self._access.check(principal, operation, destination)

    def may(self, principal: Principal, operation: Operation, destination: Destination) -> bool:
        if is_private(destination) and not principal.may_everything:
            return False
        return self._access.may(principal, operation, destination)

    @property
    def has_rights(self) -> bool:
        return self._access.has_rights


def refused_private(destination: Destination) -> ClientError:
    """Make the error for a client that names one of the broker's own queues."""
    return refusal(
        f"{destination} is reserved for the broker",
        "The broker stores its own state there. To reach MQTT clients, send to topics.",
        ErrorKind.SECURITY,
    )
