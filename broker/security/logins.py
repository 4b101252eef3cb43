"""Logins: users of a file and of a directory, certificates, and anonymous clients.

A password is checked on a thread, never on the loop: its hash takes 40 ms, and a directory may take any time. Correct
passwords are cached until the file changes, as a keyed digest whose key only this process has. So reconnecting clients
are accepted without a check, also if all reconnect at once. Equal logins that arrive together are checked once. Waiting
logins are in lanes (login_lanes.py), so that password guessers delay only each other.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Final, Protocol

from tandemmq import log_events
from tandemmq.broker.core.access import LOGIN_SHOWN_MAX, Credentials, Known, Operation, refused_login
from tandemmq.broker.core.commands import ClientError, ErrorKind, Undecided
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.security import users
from tandemmq.broker.security.file_changes import Watched
from tandemmq.broker.security.identities import Identities, unknown_user
from tandemmq.broker.security.known_logins import KnownLogins
from tandemmq.broker.security.login_lanes import Lane, LoginLanes, Try
from tandemmq.broker.security.login_throttle import LoginThrottle, network
from tandemmq.broker.security.rights import Rights
from tandemmq.broker.security.users import PASSWORD_BYTES_MAX, UNKNOWN_USER, User, Users
from tandemmq.limited_log import LimitedLog
from tandemmq.store.records.message import Destination

log = logging.getLogger(__name__)

REMEMBERED_MAX: Final = 10_000
#: Maximum length of a user's name.
NAME_CHARACTERS_MAX: Final = 1_024
#: Validity of a directory's answer. For this time, a user who was removed from the directory may still log in.
DIRECTORY_SECONDS: Final = 60.0
#: Two pools of this many threads query the directory: one for known logins, one for all other logins. Users of the file
#: do not wait for these threads.
DIRECTORY_THREADS: Final = 4
#: A login without a result after this time is refused, but not counted as failed.
UNDECIDED_SECONDS_MAX: Final = 30.0
_KEY_BYTES: Final = 32


class DirectoryError(Exception):
    """The directory does not answer, or answers with an error. The password was not checked."""


class Directory(Protocol):
    """External source of users (LDAP)."""

    def find(self, login: str, passcode: str) -> Principal | None:
        """Return the user; None: the user does not exist, or the password is wrong. Blocks; any thread except the
        loop's. Raises DirectoryError."""

    def named(self, login: str) -> Principal | None:
        """Return the user without a check of the password; None: there is no such user. Otherwise like ``find``."""


ANONYMOUS: Final = Principal("anonymous", frozenset({"anonymous"}))


@dataclass(frozen=True, slots=True)
class Anonymous:
    """Principal of clients without a name, and of all clients if no users are configured. ``is_local``: such clients
    may connect from this machine. ``is_remote``: such clients may connect from any machine."""

    is_local: bool = True
    is_remote: bool = False
    principal: Principal = ANONYMOUS

    def serves(self, credentials: Credentials) -> bool:
        return self.is_remote or (self.is_local and credentials.is_loopback)


@dataclass(eq=False, repr=False, kw_only=True)
class Logins:
    """Implementation of `broker.core.access.Access`. All methods run on the loop.

    Call ``refresh`` at intervals, and ``close`` at the end.
    """

    users_file: str | None = None
    directory: Directory | None = None
    anonymous: Anonymous = Anonymous()
    rights: Rights = field(default_factory=Rights)
    failed_login_delay_seconds: float = 1.0
    failed_logins_max: InitVar[int] = 10
    # Path of the file of known logins (known_logins.py).
    known_file: InitVar[str | None] = None
    # Called with the names of users that were removed from the file.
    on_removed: Callable[[frozenset[str]], object] | None = field(default=None, init=False)
    # Called with the names of users that were removed, or whose password, groups or certificate changed.
    on_changed: Callable[[frozenset[str]], object] | None = field(default=None, init=False)
    # Reason why the last read of the file was refused.
    problem: str | None = field(default=None, init=False)
    _users: Users = field(default_factory=lambda: Users({}), init=False)
    _file: Watched | None = field(default=None, init=False)
    _throttle: LoginThrottle = field(init=False)
    _key: bytes = field(default_factory=partial(secrets.token_bytes, _KEY_BYTES), init=False)
    _remembered: OrderedDict[bytes, tuple[Principal, float]] = field(default_factory=OrderedDict, init=False)
    _waiting: dict[tuple[Lane, bytes], list[tuple[Credentials, Known]]] = field(default_factory=dict, init=False)
    _identities: Identities | None = field(default=None, init=False)
    _epoch: int = field(default=0, init=False)
    _lanes: LoginLanes = field(default_factory=LoginLanes, init=False)
    _directory_lanes: LoginLanes = field(default_factory=partial(LoginLanes, DIRECTORY_THREADS), init=False)
    _limited: LimitedLog = field(default_factory=lambda: LimitedLog(log), init=False)
    _known: KnownLogins = field(init=False)

    def __post_init__(self, failed_logins_max: int, known_file: str | None) -> None:
        """Raise UsersError if the file is invalid."""
        self._throttle = LoginThrottle(failed_logins_max)
        self._known = KnownLogins(known_file)
        if self.users_file is not None:
            self._file = Watched([self.users_file])
            self._users = users.load(self.users_file)
        if self.directory is not None:
            self._identities = Identities(self.directory)

    # ---- broker.core.access.Access

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        self.rights.check(principal, operation, destination)

    def may(self, principal: Principal, operation: Operation, destination: Destination) -> bool:
        return self.rights.may(principal, operation, destination)

    @property
    def has_rights(self) -> bool:
        return self.rights.has_rights

    def identify(self, user: str | None) -> Principal:
        anonymous = self.anonymous
        is_anonymous = user is None or user == anonymous.principal.name
        if is_anonymous or (self.users_file is None and self.directory is None):
            if not (anonymous.is_local or anonymous.is_remote):
                raise unknown_user(user)  # prove: a-user-needs-a-name "raise unknown_user(user)" -> "pass"
            return anonymous.principal
        assert user is not None, "an anonymous client has no user name"
        found = self._users.by_name.get(user)
        if found is not None:
            return found.principal
        if self._identities is None:
            # prove: removed-users-act-no-more "unknown_user(user)" -> "ClientError('?')"
            raise unknown_user(user)
        return self._identities.identify(user)

    def holds(self, principal: Principal) -> bool:
        if self._identities is None:
            return True
        user = self._users.by_name.get(principal.name)
        if user is not None:  # at its login, the user may have been found in the directory
            # prove: a-name-comes-into-the-file "user.principal.groups == principal.groups" -> "True"
            return user.principal.groups == principal.groups
        try:
            is_there = self._identities.identify(principal.name).groups == principal.groups
        except ClientError as error:
            # prove: a-silent-directory-ends-nothing "error.kind is not ErrorKind.SECURITY" -> "False"
            is_there = error.kind is not ErrorKind.SECURITY
        if not is_there:  # drop the cached answer, otherwise the next login would be accepted and ended at once
            self._remembered = OrderedDict(
                each for each in self._remembered.items() if each[1][0].name != principal.name
            )
        return is_there

    def connect(self, credentials: Credentials, then: Known) -> None:
        login, passcode = credentials.login, credentials.passcode
        if not login and not passcode and credentials.certificate is not None:
            user = self._users.by_certificate.get(credentials.certificate)
            if user is not None:
                then(user.principal)
                return
            # prove: external-is-never-anonymous "credentials.is_external" -> "False"
            if credentials.is_external and (self.users_file is not None or self.directory is not None):
                refused = "No user has the subject of the client's certificate."
                then(refused_login(login, refused, ErrorKind.SECURITY))
                return
        if (not login and not passcode) or (self.users_file is None and self.directory is None):
            if self.anonymous.serves(credentials):
                then(self.anonymous.principal)
            else:
                refused = "Anonymous clients are not permitted from this address."
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
            self._known.add(login, credentials.host)
            then(known)
            return
        is_known = self._known.knows(login, credentials.host)
        if self._throttle.holds(credentials.host, login, loop.time(), is_known=is_known):
            log.warning(
                "login %r from %s refused without a check: too many have failed",
                login[:LOGIN_SHOWN_MAX],
                credentials.peer,
                extra=log_events.LOGIN_THROTTLED,
            )
            refused = "Too many logins of this name or address have failed."
            self._answer_late(then, ClientError(refused, "Try again in a minute.", kind=ErrorKind.SECURITY))
            return
        lane = self._lane(credentials.host, login, loop.time())
        self._throttle.begun(credentials.host, login)
        for each in Lane:  # the same login may wait in another lane
            if each.value <= lane.value and (each, digest) in self._waiting:
                self._waiting[each, digest].append((credentials, then))
                return
        place = lane, digest
        waiting = self._waiting[place] = [(credentials, then)]
        user = self._users.by_name.get(login)
        work = partial(_find, user, self.directory, login, passcode)
        who = network(credentials.host) if lane is Lane.OTHERS else login
        timer = loop.call_later(UNDECIDED_SECONDS_MAX, self._undecided, place)
        found = partial(self._found, place, waiting, timer, user, self._epoch)
        # prove: the-directory-has-threads "self._directory_lanes" -> "self._lanes"
        lanes = self._lanes if user is not None or self.directory is None else self._directory_lanes
        lanes.put(lane, Try(who, work, found, lambda: any(each.is_wanted() for each, _ in waiting)))

    def _lane(self, host: str, login: str, now: float) -> Lane:
        if self._known.knows(login, host):  # prove: who-logged-in-has-a-lane
            return Lane.KNOWN
        is_user = login in self._users.by_name or self._known.knows_name(login)
        # prove: who-failed-waits-with-others " and not self._throttle.has_tried(host, login, now)"
        if is_user and not self._throttle.has_tried(host, login, now):
            return Lane.USERS
        return Lane.OTHERS

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
        self,
        place: tuple[Lane, bytes],
        waiting: list[tuple[Credentials, Known]],
        timer: asyncio.TimerHandle,
        user: User | None,
        epoch: int,
        future: asyncio.Future[tuple[Principal | None, bool]] | None,
    ) -> None:
        timer.cancel()
        error = None if future is None or future.cancelled() else future.exception()
        if error is not None and not isinstance(error, DirectoryError):
            log.error("a login could not be checked", exc_info=error)
        elif error is not None:
            text = f"the user directory: {error}"
            self._limited.warning("logins", "directory", text, log_events.DIRECTORY_FAILED, level=logging.ERROR)
        if self._waiting.get(place) is not waiting:
            return  # the clients got an answer before: the check took too long
        if future is None:
            self._give_up(place)
            return
        if future.cancelled() or error is not None:
            answer = _busy("No user can log in now.", "The user directory does not answer; see the log.")
            for _, then in self._end(place):
                _tell(then, answer)
            return
        self._end(place)
        principal, is_directorys = future.result()
        if self._users.by_name.get(waiting[0][0].login or "") != user:  # prove: a-changed-user-is-tried-again
            for credentials, then in waiting:  # check again with the present file
                self.connect(credentials, partial(_tell, then))
            return
        if principal is not None:
            # An answer from before the last change of the file is not cached.
            if epoch == self._epoch:
                now = future.get_loop().time()
                self._remembered[place[1]] = principal, now + DIRECTORY_SECONDS if is_directorys else float("inf")
                if len(self._remembered) > REMEMBERED_MAX:
                    self._remembered.popitem(last=False)
            if is_directorys and self._identities is not None:
                self._identities.cache(principal)
            for credentials, then in waiting:
                self._known.add(credentials.login or "", credentials.host)
                _tell(then, principal)
            return
        for credentials, then in waiting:
            self._failed(credentials, then)

    def _undecided(self, place: tuple[Lane, bytes]) -> None:
        message = f"The login was not decided within {UNDECIDED_SECONDS_MAX:g} seconds."
        answer = _busy(message, "Other logins or the user directory take too long. Try again.")
        for _, then in self._end(place):
            _tell(then, answer)

    def _give_up(self, place: tuple[Lane, bytes]) -> None:
        """Give up the logins that wait at ``place``. Logins of the lane USERS then wait in OTHERS; all other logins are
        refused later. These logins do not count as failed."""
        now = asyncio.get_running_loop().time()
        answer = _busy("Too many logins at once.", "Too many similar logins are being checked.")
        for credentials, then in self._end(place):
            self._throttle.given_up(credentials.host, credentials.login or "", now)
            if place[0] is Lane.USERS and credentials.is_wanted():
                self.connect(credentials, then)
            else:
                self._answer_late(then, answer)

    def _answer_late(self, then: Known, answer: ClientError) -> None:
        """Answer with the delay of a wrong password. Otherwise guessers would retry at once, and keep the loop busy."""
        asyncio.get_running_loop().call_later(self.failed_login_delay_seconds, then, answer)

    def _end(self, place: tuple[Lane, bytes]) -> list[tuple[Credentials, Known]]:
        """Remove and return the logins that waited at ``place``, and note the end of their checks."""
        waiting = self._waiting.pop(place)
        for credentials, _ in waiting:
            self._throttle.ended(credentials.host, credentials.login or "")
        return waiting

    def _failed(self, credentials: Credentials, then: Known) -> None:
        loop = asyncio.get_running_loop()
        log.warning(
            "login %r from %s failed",
            (credentials.login or "")[:LOGIN_SHOWN_MAX],
            credentials.peer,
            extra=log_events.LOGIN_FAILED,
        )
        self._throttle.failed(credentials.host, credentials.login or "", loop.time())
        self._answer_late(then, refused_login(credentials.login))

    # ---- changes of the file

    def refresh(self) -> None:
        """Read the file again if it changed. An invalid file is logged and changes nothing."""
        if self._file is not None and self._file.has_changed():
            self.reload()

    def reload(self) -> None:
        """Read the file again, and clear the cache. An invalid file is logged and changes nothing. Only clients of
        removed users are disconnected."""
        if self.users_file is None:
            return
        former = self._users.by_name
        try:
            self._users = users.load_again(self.users_file, self._users)
        except users.UsersError as error:
            former_problem, self.problem = self.problem, f"users are not changed: {error}"
            is_unreadable = isinstance(error.__cause__, OSError)
            if is_unreadable and self._file is not None:
                self._file.mark_changed()
            if not is_unreadable or self.problem != former_problem:
                log.error("%s", self.problem, extra=log_events.USERS_REFUSED)
            return
        self.problem = None
        self._epoch += 1
        self._remembered.clear()
        if self._identities is not None:
            self._identities.forget()
        log.info("%s: %d users", self.users_file, len(self._users.by_name), extra=log_events.USERS_READ)
        changed = frozenset(name for name, user in former.items() if self._users.by_name.get(name) != user)
        if changed and self.on_changed is not None:
            self.on_changed(changed)
        removed = changed - self._users.by_name.keys()
        if removed and self.on_removed is not None:
            self.on_removed(removed)

    def close(self) -> None:
        """Stop answering logins. Does not wait for checks in progress."""
        self._lanes.close()
        self._directory_lanes.close()
        self._known.close()
        if self._identities is not None:
            self._identities.close()


def _find(user: User | None, directory: Directory | None, login: str, passcode: str) -> tuple[Principal | None, bool]:
    """Check the password. Return the user (None: the login is wrong), and whether the directory checked it. Runs on a
    thread."""
    if user is None and directory is not None:
        return directory.find(login, passcode), True
    # The check of an unknown name takes as long as that of a known one.
    hash = UNKNOWN_USER if user is None or user.hash is None else user.hash
    is_right = hash.matches(passcode)
    return (user.principal if is_right and user is not None and user.hash is not None else None), False


def _tell(then: Known, answer: Principal | ClientError) -> None:
    """Call ``then``, and log its error: an error for one client must not affect the others."""
    try:
        then(answer)
    except Exception:
        log.exception("the answer to a login %s", ERROR_OF_BROKER)


def _busy(message: str, detail: str) -> ClientError:
    return Undecided(message, detail, kind=ErrorKind.SECURITY)
