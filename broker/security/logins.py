"""Who connects: users of a file and of a directory, certificates, and those without a name.

A password is tried on a thread, never on the loop: its hash costs 40 ms, and a directory as long as it likes. Whoever
comes again with the same password, after a failover with all others at once, is known at once: what was right is
remembered, as a keyed digest whose key only this process has, until the file changes. Equal logins that come
together are tried once.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Final, Protocol

from tandemmq import log_events
from tandemmq.broker.core.access import LOGIN_SHOWN_MAX, Credentials, Known, Operation, refused_login
from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.security import users
from tandemmq.broker.security.file_changes import Watched
from tandemmq.broker.security.login_throttle import LoginThrottle
from tandemmq.broker.security.passwords import NOBODY, PASSWORD_BYTES_MAX
from tandemmq.broker.security.rights import Rights
from tandemmq.broker.security.users import User, Users
from tandemmq.store.records.message import Destination

log = logging.getLogger(__name__)

THREADS: Final = 2
#: Logins that wait for a thread; more are refused.
WAITING_MAX: Final = 1_000
REMEMBERED_MAX: Final = 10_000
#: A longer name is no user's.
NAME_CHARACTERS_MAX: Final = 1_024
#: So long a directory's word holds: who was removed there may come again meanwhile.
DIRECTORY_SECONDS: Final = 60.0
_KEY_BYTES: Final = 32


class DirectoryError(Exception):
    """The directory does not answer, or not as it should: no password was found wrong."""


class Directory(Protocol):
    """Somebody else who knows users (LDAP)."""

    def find(self, login: str, passcode: str) -> Principal | None:
        """Who that is, if the password is right. Blocks, on any thread. Raises DirectoryError."""


ANONYMOUS: Final = Principal("anonymous", frozenset({"anonymous"}))


@dataclass(frozen=True, slots=True)
class Anonymous:
    """The user for clients without a name, and for all clients where no users are set up."""

    is_local: bool = True
    is_remote: bool = False
    principal: Principal = ANONYMOUS

    def serves(self, credentials: Credentials) -> bool:
        return self.is_remote or (self.is_local and credentials.is_loopback)


@dataclass(eq=False, repr=False, kw_only=True)
class Logins:
    """`broker.core.access.Access`, on the loop's thread.

    ``look`` is to be called now and then, ``close`` at the end.
    """

    users_file: str | None = None
    directory: Directory | None = None
    anonymous: Anonymous = Anonymous()
    rights: Rights = field(default_factory=Rights)
    failed_login_delay_seconds: float = 1.0
    failed_logins_max: InitVar[int] = 10
    # Told the names of users who were taken out of the file.
    on_removed: Callable[[frozenset[str]], object] | None = field(default=None, init=False)
    # Told these, and the names of those whose password, groups or certificate are others.
    on_changed: Callable[[frozenset[str]], object] | None = field(default=None, init=False)
    # Why the file was refused when it was read last.
    problem: str | None = field(default=None, init=False)
    _users: Users = field(default_factory=lambda: Users({}), init=False)
    _file: Watched | None = field(default=None, init=False)
    _throttle: LoginThrottle = field(init=False)
    _key: bytes = field(default_factory=partial(secrets.token_bytes, _KEY_BYTES), init=False)
    _remembered: OrderedDict[bytes, tuple[Principal, float]] = field(default_factory=OrderedDict, init=False)
    _waiting: dict[bytes, list[tuple[Credentials, Known]]] = field(default_factory=dict, init=False)
    _epoch: int = field(default=0, init=False)
    _threads: ThreadPoolExecutor = field(
        default_factory=partial(ThreadPoolExecutor, THREADS, "tandemmq-login"), init=False
    )

    def __post_init__(self, failed_logins_max: int) -> None:
        """Raises UsersError when the file is wrong."""
        self._throttle = LoginThrottle(failed_logins_max)
        if self.users_file is not None:
            self._file = Watched([self.users_file])
            self._users = users.load(self.users_file)

    # ---- broker.core.access.Access

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        self.rights.check(principal, operation, destination)

    def is_granted(self, principal: Principal, operation: Operation, destination: Destination) -> bool:
        return self.rights.is_granted(principal, operation, destination)

    @property
    def has_rights(self) -> bool:
        return self.rights.has_rights

    def connect(self, credentials: Credentials, then: Known) -> None:
        login, passcode = credentials.login, credentials.passcode
        if not login and not passcode and credentials.certificate is not None:
            user = self._users.by_certificate.get(credentials.certificate)
            if user is not None:
                then(user.principal)
                return
        if (not login and not passcode) or (self.users_file is None and self.directory is None):
            if self.anonymous.serves(credentials):
                then(self.anonymous.principal)
            else:
                refused = "Clients without a name are not served from there."
                then(refused_login(login, refused, ErrorKind.SECURITY))
            return
        loop = asyncio.get_running_loop()
        login, passcode = login or "", passcode or ""
        if len(login) > NAME_CHARACTERS_MAX or len(passcode) > PASSWORD_BYTES_MAX:
            self._failed(credentials, then)
            return
        digest = self._digest(login, passcode)
        known = self._recall(digest, loop.time())
        if known is not None:
            then(known)
            return
        if self._throttle.holds(credentials.host, login, loop.time()):
            log.warning(
                "login %r from %s refused unread: too many have failed",
                login[:LOGIN_SHOWN_MAX],
                credentials.peer,
                extra=log_events.LOGIN_THROTTLED,
            )
            then(_busy("Too many logins of this name or address have failed.", "Try again in a minute."))
            return
        self._throttle.begun(credentials.host, login)
        if digest in self._waiting:
            self._waiting[digest].append((credentials, then))
            return
        if len(self._waiting) >= WAITING_MAX:
            self._throttle.ended(credentials.host, login)
            then(_busy("Too many logins at once.", f"{WAITING_MAX} are being looked into."))
            return
        self._waiting[digest] = [(credentials, then)]
        user = self._users.by_name.get(login)
        future = loop.run_in_executor(self._threads, partial(_find, user, self.directory, login, passcode))
        future.add_done_callback(partial(self._found, digest, user, self._epoch))

    def _digest(self, login: str, passcode: str) -> bytes:
        name, word = (part.encode("utf-8", "surrogatepass") for part in (login, passcode))
        return hmac.digest(self._key, b"%d:%b%b" % (len(name), name, word), "sha256")

    def _recall(self, digest: bytes, now: float) -> Principal | None:
        found = self._remembered.get(digest)
        if found is None:
            return None
        principal, until = found
        if now >= until:
            del self._remembered[digest]
            return None
        self._remembered.move_to_end(digest)
        return principal

    def _found(
        self, digest: bytes, user: User | None, epoch: int, future: asyncio.Future[tuple[Principal | None, bool]]
    ) -> None:
        loop = future.get_loop()
        waiting = self._waiting.pop(digest)
        for credentials, _ in waiting:
            self._throttle.ended(credentials.host, credentials.login or "")
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            if error is not None and not isinstance(error, DirectoryError):
                log.error("a login could not be looked into", exc_info=error)
            elif error is not None:
                log.error("the directory of users: %s", error, extra=log_events.DIRECTORY_FAILED)
            for _, then in waiting:
                then(_busy("Nobody can be logged in now.", "The directory of users does not answer; see the log."))
            return
        principal, is_directorys = future.result()
        if principal is not None and user is not None and self._users.by_name.get(user.name) != user:
            for credentials, then in waiting:  # by the file as it is now
                self.connect(credentials, then)
            return
        if principal is not None:
            # What the file said before it changed is not remembered.
            if epoch == self._epoch:
                self._remembered[digest] = principal, loop.time() + DIRECTORY_SECONDS if is_directorys else float("inf")
                if len(self._remembered) > REMEMBERED_MAX:
                    self._remembered.popitem(last=False)
            for _, then in waiting:
                then(principal)
            return
        for credentials, then in waiting:
            self._failed(credentials, then)

    def _failed(self, credentials: Credentials, then: Known) -> None:
        loop = asyncio.get_running_loop()
        log.warning(
            "login %r from %s failed",
            (credentials.login or "")[:LOGIN_SHOWN_MAX],
            credentials.peer,
            extra=log_events.LOGIN_FAILED,
        )
        self._throttle.failed(credentials.host, credentials.login or "", loop.time())
        loop.call_later(self.failed_login_delay_seconds, then, refused_login(credentials.login))

    # ---- what changes

    def look(self) -> None:
        """Read the file again if it changed. A file that is wrong changes nothing, and is logged."""
        if self._file is not None and self._file.has_changed():
            self.reload()

    def reload(self) -> None:
        """Read the file again, and forget all that was remembered. Who is connected stays, but for users who are not
        in it any more."""
        if self.users_file is None:
            return
        former = self._users.by_name
        try:
            self._users = users.load_again(self.users_file)
        except users.UsersError as error:
            self.problem = f"users stay as they were: {error}"
            log.error("%s", self.problem, extra=log_events.USERS_REFUSED)
            return
        self.problem = None
        self._epoch += 1
        self._remembered.clear()
        log.info("%s: %d users", self.users_file, len(self._users.by_name), extra=log_events.USERS_READ)
        changed = frozenset(name for name, user in former.items() if self._users.by_name.get(name) != user)
        if changed and self.on_changed is not None:
            self.on_changed(changed)
        removed = changed - self._users.by_name.keys()
        if removed and self.on_removed is not None:
            self.on_removed(removed)

    def close(self) -> None:
        """No login is answered any more; those under way are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _find(user: User | None, directory: Directory | None, login: str, passcode: str) -> tuple[Principal | None, bool]:
    """The user, and whether the directory knows it. On a thread."""
    if user is None and directory is not None:
        return directory.find(login, passcode), True
    # An unknown name takes as long as a known one.
    hash = NOBODY if user is None or user.hash is None else user.hash
    is_right = hash.matches(passcode)
    return (user.principal if is_right and user is not None and user.hash is not None else None), False


def _busy(message: str, detail: str) -> ClientError:
    return ClientError(message, detail, kind=ErrorKind.SECURITY)
