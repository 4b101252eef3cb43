"""Who may ask the admin server for what.

Everybody who reaches it may read. What changes something needs the token of the broker, which lies in a file that its
user alone may read, or a user of the broker with admin rights on all queues and topics. A page of a foreign site may
nothing: it names itself (Origin), or the address that it was reached by (Host), when it had a name of its own lead here
(DNS rebinding).
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import socket
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from tandemmq.broker.admin.answers import answer
from tandemmq.broker.admin.token import new_token, read_token, write_token
from tandemmq.broker.core.access import Access, Credentials, Operation, Principal
from tandemmq.broker.core.commands import ClientError
from tandemmq.disk import NotRegular
from tandemmq.store.records.message import Destination, DestinationKind

log = logging.getLogger(__name__)

_LOGIN_SECONDS_MAX = 10.0
_READING = frozenset(("GET", "HEAD"))
#: Balancers ask by whatever name they were given.
_FOR_EVERY_HOST = "/health"
_EVERYTHING = (Destination(DestinationKind.QUEUE, ">"), Destination(DestinationKind.TOPIC, ">"))


class Guard:
    """Checks each request to the admin server. ``hosts``: names beside addresses, ``localhost``, names without a dot
    and this machine's. ``access``: None where security was not set up, so that names prove nothing."""

    def __init__(self, token_file: str, hosts: Collection[str], access: Access | None) -> None:
        self._token_file = token_file
        self._hosts = {"localhost", socket.gethostname().lower(), *(host.lower() for host in hosts)}
        self._access = access
        self._token = ""

    def start(self) -> None:
        """Have a token: that of the file, or a new one. Where none can be kept only users may change something."""
        try:
            self._token = self._kept() or write_token(self._token_file)
        except OSError as error:
            self._token = new_token()
            log.warning("no admin token can be kept: %s", error)

    def _kept(self) -> str | None:
        try:
            return read_token(self._token_file)
        except NotRegular as error:
            log.warning("%s: a new admin token takes its place", error)
            return None

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The middleware."""
        refusal = self._foreign(request)
        if refusal is not None:
            return answer({"error": refusal}, 403)
        if request.method not in _READING and not await self._may_change(request):
            refusal = "the admin token is needed, or a user with admin rights on all queues and topics"
            refused = answer({"error": refusal, "token_file": self._token_file}, 401)
            refused.headers["WWW-Authenticate"] = "Bearer"
            return refused
        return await handler(request)

    def _foreign(self, request: web.Request) -> str | None:
        """What is wrong with where the request says it comes from, or goes to."""
        host = request.headers.get("Host", "")
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return f"pages of {origin[:255]!r} may not ask here"
        if request.path.startswith(_FOR_EVERY_HOST) or self._is_known(host):
            return None
        return f"this broker does not know itself as {host[:255]!r}: admin.hosts lists its names"

    def _is_known(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            ip_address(name.partition("%")[0])
        except ValueError:
            return name in self._hosts or bool(name and "." not in name)
        return True

    async def _may_change(self, request: web.Request) -> bool:
        header = request.headers.get("Authorization", "")
        scheme, _, token = header.partition(" ")
        if scheme.lower() == "bearer":
            return bool(self._token) and hmac.compare_digest(token.strip().encode(), self._token.encode())
        if self._access is None or scheme.lower() != "basic":
            return False
        try:
            login, _, password = base64.b64decode(token, validate=True).decode().partition(":")
        except ValueError:
            return False
        return bool(login and password) and await self._has_rights(self._access, login, password, str(request.remote))

    async def _has_rights(self, access: Access, login: str, password: str, host: str) -> bool:
        known: asyncio.Future[Principal | ClientError] = asyncio.get_running_loop().create_future()

        def tell(found: Principal | ClientError) -> None:
            if not known.done():
                known.set_result(found)

        peer = f"[{host}]:0" if ":" in host else f"{host}:0"
        access.connect(Credentials(peer, login, password), tell)
        try:
            principal = await asyncio.wait_for(known, _LOGIN_SECONDS_MAX)
            if isinstance(principal, ClientError):
                return False
            for operation in (Operation.CREATE, Operation.REMOVE):
                for destination in _EVERYTHING:
                    access.check(principal, operation, destination)
        except (ClientError, TimeoutError):
            return False
        return True
