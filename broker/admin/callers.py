"""Callers of the admin server: their rights, by their groups, and their sessions in the console.

A random cookie identifies a session. Scripts cannot read the cookie (HttpOnly), and no page of another site sends it
(SameSite=Strict). Sessions are only in the memory of this broker. A change also requires a second secret of the session
in a header, which only a page of this site knows.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from tandemmq.broker.core.principal import Principal

if TYPE_CHECKING:
    from aiohttp import web

_COOKIE = "tandemmq-session"
CSRF_HEADER = "X-CSRF-Token"
#: Limit of the sessions of one broker. If there are more, the least recently used one ends.
SESSIONS_MAX = 1_000
IDLE_SECONDS_MAX = 30 * 60.0
AGE_SECONDS_MAX = 12 * 3600.0


class Role(IntEnum):
    """Role of a caller. Each role has the rights of those before it.

    ``VIEWER``: sees everything except messages. ``OPERATOR``: reads messages and changes destinations, where its rights
    as a client allow it. ``ADMIN``: everything.
    """

    NOBODY = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """Name of the role for operators and in the API."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups whose users have a role. Users with admin rights on all destinations have the role admin without a
    group."""

    viewers: Collection[str] = ()
    operators: Collection[str] = ()
    administrators: Collection[str] = ()

    def role_of(self, principal: Principal) -> Role:
        for role, groups in (
            (Role.ADMIN, self.administrators),
            (Role.OPERATOR, self.operators),
            (Role.VIEWER, self.viewers),
        ):
            if not principal.groups.isdisjoint(groups):
                return role
        return Role.NOBODY


NO_GROUPS = Groups()


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller. ``principal``: its rights on destinations."""

    name: str
    role: Role
    principal: Principal


#: Caller that sent the admin token.
TOKEN_HOLDER = Caller("admin token", Role.ADMIN, Principal("admin", may_everything=True))
#: Any caller of a broker without users; such a broker shows its status to all.
ANYBODY = Caller("anybody", Role.VIEWER, Principal("nobody"))
STRANGER = Caller("nobody", Role.NOBODY, Principal("nobody"))


@dataclass(slots=True)
class Session:
    """Session of a caller. ``csrf`` is the secret that a change must contain."""

    caller: Caller
    began: float
    seen: float
    csrf: str = field(default_factory=secrets.token_urlsafe)


def cookie_of(request: web.Request) -> str:
    """Return the name of the cookie. Browsers do not separate the ports of a host: two brokers on one host would log
    out each other's users."""
    port = request.host.rpartition(":")[2]
    return f"{_COOKIE}-{port}" if port.isdecimal() else _COOKIE


class Sessions:
    """Sessions of one broker. Runs on the loop. ``clock``: a monotonic clock, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_id: OrderedDict[str, Session] = OrderedDict()
        self._ends: Counter[str] = Counter()

    def begin(self, caller: Caller) -> tuple[str, Session]:
        """Begin a session. Return the cookie's value, and the session."""
        now = self._clock()
        id, session = secrets.token_urlsafe(32), Session(caller, now, now)
        self._by_id[id] = session
        if len(self._by_id) > SESSIONS_MAX:
            self._by_id.popitem(last=False)
        return id, session

    def of(self, request: web.Request) -> Session | None:
        """Return the session of a request, and mark it as used."""
        id = request.cookies.get(cookie_of(request))
        session = None if id is None else self._by_id.get(id)
        if id is None or session is None:
            return None
        now = self._clock()
        if now - session.seen > IDLE_SECONDS_MAX or now - session.began > AGE_SECONDS_MAX:
            del self._by_id[id]
            return None
        session.seen = now
        self._by_id.move_to_end(id)
        return session

    def end(self, request: web.Request) -> None:
        """End the session of a request, if it has one."""
        self._by_id.pop(request.cookies.get(cookie_of(request), ""), None)

    def end_of(self, names: Collection[str]) -> None:
        """End all sessions of callers with those names: their credentials are no longer valid."""
        self._ends.update(names)
        for id in [id for id, session in self._by_id.items() if session.caller.name in names]:
            del self._by_id[id]

    def principals(self) -> set[Principal]:
        """Return the principals of all users that are logged in."""
        callers = {session.caller for session in self._by_id.values()} - {TOKEN_HOLDER}
        return {caller.principal for caller in callers}

    def ends_of(self, name: str) -> int:
        """Return how often sessions of callers with that name were ended. An answer that takes long ends when this
        number changes."""
        return self._ends[name]


def may_change(session: Session, request: web.Request) -> bool:
    """Return whether the request contains the second secret of the session."""
    return same(request.headers.get(CSRF_HEADER, ""), session.csrf)


def same(shown: str, secret: str) -> bool:
    """Return whether the texts are equal, in a time that does not reveal ``secret``. ``shown`` may contain bytes that
    are not UTF-8."""
    return hmac.compare_digest(shown.encode(errors="surrogateescape"), secret.encode())
