"""Access to the admin server: which caller may request which page.

Every client may read the health pages and the files of the console. If users are configured, the other pages require
the role viewer; on the pages in ``SHORT`` every other client gets only values without names. A change there requires
the broker's token, which is in a file that only its user can read, or a user of the broker with the role admin. Answers
of ``/api/`` depend on the caller's role (``callers``). A page of a foreign site has no access: it is recognised by its
own name (Origin), or by the address used to reach this server (Host), if it made its own name point to this server (DNS
rebinding).
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import cast
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from tandemmq.broker.admin.answers import answer
from tandemmq.broker.admin.callers import (
    ANYBODY,
    NO_GROUPS,
    STRANGER,
    TOKEN_HOLDER,
    Caller,
    Groups,
    Role,
    Sessions,
    may_change,
    same,
)
from tandemmq.broker.admin.connections import AdminConnection
from tandemmq.broker.admin.places import State
from tandemmq.broker.admin.token import new_token, read_token, write_token
from tandemmq.broker.core.access import Access, Credentials, is_admin
from tandemmq.broker.core.commands import ClientError, Undecided
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.net.origins import KnownHosts
from tandemmq.broker.security.file_changes import Watched
from tandemmq.broker.security.tls import subject
from tandemmq.disk import NotRegular

log = logging.getLogger(__name__)

_CALLER = "caller"
_LOGIN_SECONDS_MAX = 10.0
#: Seconds after which a client should repeat a login that was not decided.
_RETRY_SECONDS = 10
READING = frozenset(("GET", "HEAD"))
_API = "/api/"
#: Load balancers may use any host name for health pages.
_FOR_EVERY_HOST = "/health"
#: Public pages, for which no login is checked: health must not wait for a directory of users.
_OPEN = (_FOR_EVERY_HOST, "/console")
#: Pages with a short answer for clients without a login and for users without a role. A wrong login is refused there,
#: too.
SHORT = frozenset(("/status", "/metrics", "/replication"))


def caller_of(request: web.Request) -> Caller:
    """Return the caller of a request below /api/ that the guard let through."""
    caller: Caller = request[_CALLER]
    return caller


def sees_names(request: web.Request) -> bool:
    """Return whether a page may show names of destinations, clients, hosts and files: security is not configured, or
    the caller is a viewer."""
    caller: Caller | None = request.get(_CALLER)
    return caller is None or caller.role >= Role.VIEWER


def has_login(request: web.Request) -> bool:
    """Return whether a request that the guard permitted had a login that was checked."""
    caller: Caller | None = request.get(_CALLER)
    return caller is not None and caller is not ANYBODY and caller.role > Role.NOBODY


class Guard:
    """Checks each request to the admin server. ``hosts``: host names of this server, beside addresses, ``localhost``,
    names without a dot and the names of this machine. ``access``: checks users; None if security is not configured.
    ``groups``: the groups of users that have a role."""

    def __init__(
        self, token_file: str, hosts: Collection[str], access: Access | None, groups: Groups = NO_GROUPS
    ) -> None:
        self.token_file = token_file
        self.sessions = Sessions()
        self._hosts = KnownHosts(hosts)
        self._access = access
        self._groups = groups
        self._token = ""
        self._is_kept = False
        self._watched = Watched([token_file])
        self._problem = ""  # why the last read of the file failed

    def start(self) -> None:
        """Read the token from the file, or write a new one. If the file cannot be written, only users can make
        changes."""
        try:
            self._token = self._kept() or write_token(self.token_file)
            self._is_kept = True
        except OSError as error:
            self._token = new_token()
            log.warning("the admin token cannot be stored: %s", error)

    def refresh(self) -> None:
        """Read a changed token from the file, and end the sessions of users that the user directory no longer has, or
        whose groups changed. A missing or invalid token changes nothing. Call it once a second."""
        if self._access is not None:
            self.sessions.end_of([each.name for each in self.sessions.principals() if not self._access.holds(each)])
        if not self._is_kept:  # for example because the volume was full
            with suppress(OSError):
                self._token = write_token(self.token_file)
                self._is_kept = True
        if not self._watched.has_changed():
            return
        try:
            token = read_token(self.token_file)
        except OSError as error:
            self._watched.mark_changed()
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("the admin token is not changed: %s", error)
            return
        self._problem = ""
        if token is not None and token != self._token:
            self._token = token
            self.sessions.end_of([TOKEN_HOLDER.name])
            log.info("%s: the admin token was read again", self.token_file)

    def _kept(self) -> str | None:
        try:
            return read_token(self.token_file)
        except NotRegular as error:
            log.warning("%s: a new admin token replaces it", error)
            return None

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check a request, and call ``handler`` if it is permitted (middleware)."""
        refusal = self._foreign(request)
        if refusal is not None:
            return answer({"error": refusal}, 403)
        is_reading = request.method in READING
        if request.path.startswith(_API):
            request[_CALLER] = await self._caller(request)
        elif not is_reading:
            request[_CALLER] = caller = await self._caller(request)
            if caller.role < Role.ADMIN:
                return self.unknown(
                    request, "the admin token is needed, or a user with admin rights on all queues and topics"
                )
        elif self._access is not None:
            request[_CALLER] = STRANGER
            if request.path != "/" and not request.path.startswith(_OPEN):
                request[_CALLER] = caller = await self._caller(request)
                is_wrong = caller is STRANGER and "Authorization" in request.headers
                may_ask = caller.role >= Role.VIEWER or (request.path in SHORT and not is_wrong)
                if not may_ask:  # prove: pages-are-for-viewers "not may_ask" -> "False"
                    if caller is not STRANGER:
                        return answer({"error": f"{caller.name} has no role; the role viewer is required"}, 403)
                    return self.unknown(request, "log in as a user with the role viewer, or send the admin token")
        return await handler(request)

    def unknown(self, request: web.Request, refusal: str) -> web.Response:
        """Refuse a caller that is unknown or has too few rights. Only a client on this machine gets the path of the
        token: a command reads the token there. For other clients the path would only reveal names."""
        is_here = Credentials(_peer(request.remote)).is_loopback
        # prove: the-place-of-the-token-is-for-this-machine "if is_here" -> "if True"
        refused = answer({"error": refusal, **({"token_file": self.token_file} if is_here else {})}, 401)
        refused.headers["WWW-Authenticate"] = "Bearer"
        return refused

    def _foreign(self, request: web.Request) -> str | None:
        """Return why the origin or the host of the request is refused; None: both are permitted."""
        host = request.headers.get("Host", "")
        origin = request.headers.get("Origin")
        if origin is not None and _site(origin) != host:
            return f"pages of {origin[:255]!r} have no access here"
        if request.path.startswith(_FOR_EVERY_HOST) or self._hosts.knows(host):
            return None
        return f"{host[:255]!r} is not a host name of this broker: admin.hosts lists its names"

    # ---- the caller

    async def _caller(self, request: web.Request) -> Caller:
        """Return the caller by the token, the name with password or the session cookie in the request, or by the
        certificate of its connection. A browser sends these automatically, so pages of foreign sites must be refused
        before."""
        header = request.headers.get("Authorization", "")
        scheme, _, token = header.partition(" ")
        if scheme.lower() == "bearer":
            return self.holder_of(token) or STRANGER
        if scheme.lower() == "basic":
            try:
                login, _, password = base64.b64decode(token, validate=True).decode().partition(":")
            except ValueError:
                return STRANGER
            return await self.user(request, login, password) or STRANGER
        session = self.sessions.of(request)
        if session is not None and (request.method in READING or may_change(session, request)):
            return session.caller
        certificate = subject(request.get_extra_info("peercert"))
        if certificate is not None and self._access is not None:
            shown = Credentials(_peer(request.remote), certificate=certificate)
            return await self._known(shown) or STRANGER
        return ANYBODY if self._access is None else STRANGER

    def holder_of(self, token: str) -> Caller | None:
        """Return the caller for this token; None: it is not the broker's token."""
        is_ours = bool(self._token) and same(token.strip(), self._token)
        return TOKEN_HOLDER if is_ours else None

    async def user(self, request: web.Request, login: str, password: str) -> Caller | None:
        """Return the user with that name; None: the name or the password is wrong, or there are no users. During the
        check, the connection of ``request`` may be closed to free its place."""
        if not (login and password):
            return None
        connection = cast("AdminConnection", request.protocol)
        connection.enter(State.LOGIN)
        try:
            return await self._known(Credentials(_peer(request.remote), login, password))
        finally:
            connection.enter(State.WORK)

    async def _known(self, shown: Credentials) -> Caller | None:
        if self._access is None:
            return None
        known: asyncio.Future[Principal | ClientError] = asyncio.get_running_loop().create_future()

        def tell(found: Principal | ClientError) -> None:
            if not known.done():
                known.set_result(found)

        self._access.connect(replace(shown, is_wanted=lambda: not known.done()), tell)
        try:
            principal = await asyncio.wait_for(known, _LOGIN_SECONDS_MAX)
        except TimeoutError:
            principal = Undecided(f"the login was not decided within {_LOGIN_SECONDS_MAX:g} s")
        if isinstance(principal, Undecided):
            text = json.dumps({"error": principal.message, "detail": principal.detail})
            headers = {"Retry-After": str(_RETRY_SECONDS)}
            raise web.HTTPServiceUnavailable(text=text, content_type="application/json", headers=headers)
        if isinstance(principal, ClientError):
            return None
        role = Role.ADMIN if is_admin(self._access, principal) else self._groups.role_of(principal)
        if role is Role.ADMIN:
            principal = replace(principal, may_everything=True)
        return Caller(principal.name, role, principal)


def _site(origin: str) -> str | None:
    """Return host and port of an origin; None: it has no host."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _peer(host: str | None) -> str:
    """Return the host in the form that connectors use; the port does not matter."""
    return f"[{host}]:0" if host is not None and ":" in host else f"{host}:0"
