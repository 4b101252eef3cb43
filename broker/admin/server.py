"""The admin HTTP server: ``GET /status``, ``GET /health``, ``GET /metrics``, and further pages that it is given.

It promises: the same three pages on master and standby; answers come from one call of the status callable; nothing
but GET is answered there, no request body is read, and a request line or header beyond a named bound is refused.
It refuses to know what a broker is: the status callable tells it everything.

What the status callable returns (JSON-able; only the first four are required):

    role      "master" | "standby" | "starting" | "demoted"
    epoch     int; 0 before the first promotion that this broker saw
    name      the broker's name
    store     the store directory
    holder    dict | None: whom a standby waits for (name, epoch, pid, host, admin)
    reason    str: the sentence that goes with the role
    standby   dict | None: how far a standby has come (has_caught_up, messages, lag), and how long it would take to be
              master now (takeover)
    takeover  dict | None: the same, should a master die now and nobody stand by
    problems  list of sentences; any makes the broker unhealthy (the storage thread shows no life, ...)
    warnings  list of sentences that are only shown (a lock that was set to be unsafe, ...)
    counts    dict of names to numbers, shown as metrics; a name that ends in ``_total`` only ever grows
    queues    list of dicts: name, messages, consumers, ...
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

from broker.admin.metrics import StatusCollector

Status = dict[str, Any]

REQUEST_LINE_BYTES_MAX = 2_048
HEADER_BYTES_MAX = 4_096
BODY_BYTES_MAX = 1_024  # no page reads a body; aiohttp wants a bound all the same
IDLE_CONNECTION_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 1.0
BACKLOG = 64

SERVING_ROLES = frozenset({"master", "standby"})


def health(status: Status) -> Status:
    """What ``GET /health`` says for a status: is the process well, is it the master, and if not well, why.

    ``live`` is true for a master or a standby without problems; ``ready`` for a master without problems.
    """
    role = status["role"]
    problems = list(status.get("problems", ()))
    if role not in SERVING_ROLES:
        problems.append(f"the broker is neither master nor standby, but {role}")
    live = not problems
    answer: Status = {"live": live, "ready": live and role == "master", "role": role, "epoch": status["epoch"]}
    if role == "standby":
        answer["standby"] = True
    if problems:
        answer["problems"] = problems
    if status.get("warnings"):
        answer["warnings"] = list(status["warnings"])
    return answer


def is_alive(status: Status) -> bool:
    """Is there no reason to kill the process? A promotion that takes its time, or a demotion, is none."""
    return not status.get("problems")


def is_ready(status: Status) -> bool:
    """Is it the master, and well: where clients go?"""
    return bool(health(status)["ready"])


def is_standby(status: Status) -> bool:
    """Does it stand by, and well?"""
    return bool(health(status)["live"]) and status["role"] == "standby"


#: For those who cannot send a query: page -> whether it answers 200; the body is that of /health.
HEALTH_PAGES: Final = {"/health/live": is_alive, "/health/ready": is_ready, "/health/standby": is_standby}


class AdminServer:
    """The three pages, and those of ``routes``, on one address.

    ``bind`` takes the address (a wrong one fails early, with OSError), ``start`` begins to listen, ``stop`` ends it
    within STOP_SECONDS_MAX; both may be called again. All on the loop's thread, as is the status callable.
    """

    __slots__ = ("_collector_registry", "_host", "_port", "_routes", "_runner", "_socket", "_status")

    def __init__(self, host: str, port: int, status: Callable[[], Status], routes: Sequence[web.RouteDef] = ()) -> None:
        self._host = host
        self._port = port
        self._status = status
        self._routes = routes
        self._socket: socket.socket | None = None
        self._runner: web.AppRunner | None = None
        self._collector_registry = CollectorRegistry(auto_describe=False)
        self._collector_registry.register(StatusCollector(status))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; the port that the system chose, once bound, when 0 was asked for."""
        if self._socket is not None:
            host, port = self._socket.getsockname()[:2]
            return str(host), int(port)
        return self._host, self._port

    @property
    def url(self) -> str:
        """Where a tool on the same network finds this server."""
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def bind(self) -> None:
        """Take the address without listening. OSError says which address is wrong or in use."""
        if self._socket is not None:
            return
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, protocol)
        except OSError as error:
            raise OSError(error.errno, f"admin server: {self._host}:{self._port}: {error.strerror or error}") from error
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind(address)
        except OSError as error:
            listener.close()
            raise OSError(error.errno, f"admin server: {self._host}:{self._port}: {error.strerror}") from error
        self._socket = listener

    async def start(self) -> None:
        """Listen; binds first when nobody did."""
        if self._runner is not None:
            return
        self.bind()
        assert self._socket is not None, "a bound admin server has its socket"
        application = web.Application(client_max_size=BODY_BYTES_MAX)
        application.router.add_get("/status", self._get_status, allow_head=False)
        # Balancers ask by HEAD.
        application.router.add_get("/health", self._get_health)
        for page, is_well in HEALTH_PAGES.items():
            application.router.add_get(page, partial(self._get_health_page, is_well))
        application.router.add_get("/metrics", self._get_metrics, allow_head=False)
        application.router.add_routes(self._routes)
        runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=IDLE_CONNECTION_SECONDS_MAX,
            max_line_size=REQUEST_LINE_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            shutdown_timeout=STOP_SECONDS_MAX,
        )
        self._runner = runner
        await runner.setup()
        await web.SockSite(runner, self._socket, backlog=BACKLOG).start()

    async def stop(self) -> None:
        """Close the listener and every connection. The address is free afterwards."""
        runner, self._runner = self._runner, None
        listener, self._socket = self._socket, None
        if runner is not None:
            await runner.cleanup()
        if listener is not None:
            listener.close()

    async def _get_status(self, request: web.Request) -> web.Response:
        return _json(self._status())

    async def _get_health(self, request: web.Request) -> web.Response:
        answer = health(self._status())
        # A balancer that must reach the master alone asks with ?ready; a supervisor, which must not restart a
        # standby for being one, asks without.
        is_well = answer["ready"] if "ready" in request.query else answer["live"]
        return _json(answer, status=200 if is_well else 503)

    async def _get_health_page(self, is_well: Callable[[Status], bool], request: web.Request) -> web.Response:
        status = self._status()
        return _json(health(status), status=200 if is_well(status) else 503)

    async def _get_metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._collector_registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )


def _json(answer: Status, status: int = 200) -> web.Response:
    return web.Response(
        text=json.dumps(answer, default=str) + "\n",
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )
