"""Sessions of the console, by cookie, in the memory of this broker.

A random cookie identifies a session. Scripts cannot read it (HttpOnly), and the browser does not send it for pages of
other sites (SameSite=Strict). A change also requires a second secret of the session in a header (CSRF token), which
only a page of this site can read.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from aiohttp import web

from tandemmq.broker.admin.roles import TOKEN_HOLDER, Caller
from tandemmq.broker.core.principal import Principal

_COOKIE = "tandemmq-session"
CSRF_HEADER = "X-CSRF-Token"
#: Limit of the sessions of one broker. Beyond it, the least recently used session ends.
SESSIONS_MAX = 1_000
IDLE_SECONDS_MAX = 30 * 60.0
AGE_SECONDS_MAX = 12 * 3600.0


@dataclass(slots=True)
class Session:
    """Session of a caller. ``csrf``: the secret that a request for a change must contain."""

    caller: Caller
    began: float
    seen: float
    csrf: str = field(default_factory=secrets.token_urlsafe)


def cookie_of(request: web.Request) -> str:
    """Return the name of the cookie, which contains the port. Browsers share cookies between the ports of a host: with
    one name, two brokers on one host would log out each other's users."""
    port = request.host.rpartition(":")[2]
    return f"{_COOKIE}-{port}" if port.isdecimal() else _COOKIE


class Sessions:
    """Sessions of one broker. On the loop. ``clock``: a monotonic clock, in seconds."""

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
        """End all sessions of callers with these names, because their logins are no longer valid."""
        self._ends.update(names)
        for id in [id for id, session in self._by_id.items() if session.caller.name in names]:
            del self._by_id[id]

    def principals(self) -> set[Principal]:
        """Return the principals of all users that are logged in."""
        callers = {session.caller for session in self._by_id.values()} - {TOKEN_HOLDER}
        return {caller.principal for caller in callers}

    def ends_of(self, name: str) -> int:
        """Return how often ``end_of`` was called for that name. A long answer compares this number to notice that its
        login is no longer valid."""
        return self._ends[name]


def may_change(session: Session, request: web.Request) -> bool:
    """Return whether the request contains the session's CSRF token."""
    return same(request.headers.get(CSRF_HEADER, ""), session.csrf)


def same(shown: str, secret: str) -> bool:
    """Return whether the texts are equal. The time of the comparison does not reveal ``secret``. ``shown`` may contain
    bytes that are not UTF-8, as surrogate escapes."""
    return hmac.compare_digest(shown.encode(errors="surrogateescape"), secret.encode())
