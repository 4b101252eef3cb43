"""The admin HTTP server: ``GET /status``, ``GET /health``, ``GET /metrics``, and further pages.

Master and standby have the same three pages. An answer comes from one call of the status callable; the parts that grow
with the number of destinations are made in slices of the loop's time. These pages answer only GET and read no request
body; a request line or header beyond a named bound is refused. The server knows nothing of brokers: the status callable
returns everything.

Result of the status callable (JSON values; only the first four are required):

    role      "master" | "standby" | "starting" | "demoted"
    epoch     int; 0 before the first promotion that this broker saw
    name      the broker's name
    store     the store directory
    holder    dict | None: the broker a standby waits for (name, epoch, pid, host, admin)
    holder_silent_seconds  for how long that broker has shown no sign of life; left out while it is well
    reason    str: the sentence that goes with the role
    standby   dict | None: how far a standby has come (has_caught_up, messages, lag), and how long it would take to be
              master now (takeover)
    takeover  dict | None: the same, should a master die now without a standby
    problems  list of sentences; any makes the broker unhealthy: what a restart of the process repairs
    warnings  list of sentences that are only shown (a lock that was set to be unsafe, ...)
    counts    dict of names to numbers, shown as metrics; a name that ends in ``_total`` only ever grows
    journal   dict: files, their live bytes, and those of the largest owners
    measured  dict of names of histograms to their buckets and sums
    replication  dict: the role of a member in its set (broker.replication.replica)
    queues    list of dicts: name, messages, consumers, ...
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, cast

from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware
from aiohttp.web_protocol import RequestPayloadError
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

from tandemmq.broker.admin.answers import answer, encoded
from tandemmq.broker.admin.api.endpoints import BODY_BYTES_MAX
from tandemmq.broker.admin.connections import PORT, AdminConnection, Connections
from tandemmq.broker.admin.destination_metrics import DestinationMetrics
from tandemmq.broker.admin.encoding import Answers, Shared, json_in_steps
from tandemmq.broker.admin.guard import READING, has_login, sees_names
from tandemmq.broker.admin.metrics import StatusCollector
from tandemmq.broker.admin.places import Places, State
from tandemmq.broker.admin.port import BACKLOG, bound
from tandemmq.broker.core.slices import Work
from tandemmq.broker.net.tls_handshake import TlsServer
from tandemmq.broker.net.turns import Turns

log = logging.getLogger(__name__)

Status = dict[str, Any]

#: Interval of the checks for connections whose time is over.
LOOK_SECONDS = 1.0
STOP_SECONDS_MAX = 1.0
#: Part of each turn of the loop for the input of all peers. Reading it from aiohttp takes as long again.
TURN_SECONDS = 0.001
#: Limit of the connections that are accepted in one turn of the loop: fewer than the places for health checks, so that
#: a request that came with its connection is read before others take its place.
ACCEPTED_MAX = 8

SERVING_ROLES = frozenset({"master", "standby"})


def health(status: Status) -> Status:
    """Return the answer of ``GET /health`` for a status: whether the process is healthy, whether it is the master, and
    if it is not healthy, why.

    ``live`` is true for a master or a standby without problems; ``ready`` for a master without problems.
    """
    role = status["role"]
    problems = list(status.get("problems", ()))
    if role not in SERVING_ROLES:
        problems.append(f"the broker is neither master nor standby, but {role}")
    live = not problems
    found: Status = {"live": live, "ready": live and role == "master", "role": role, "epoch": status["epoch"]}
    if role == "standby":
        found["standby"] = True
    if problems:
        found["problems"] = problems
    if status.get("warnings"):
        found["warnings"] = list(status["warnings"])
    return found


def public_health(status: Status) -> Status:
    """Return ``health`` without the sentences, which name destinations, clients, hosts and files."""
    return {key: value for key, value in health(status).items() if key not in ("problems", "warnings")}


def is_alive(status: Status) -> bool:
    """Return whether there is no reason to kill the process. A promotion that takes its time, or a demotion, is no
    reason."""
    return not status.get("problems")


def is_ready(status: Status) -> bool:
    """Return whether this broker is the master, and healthy: clients connect to it."""
    return bool(health(status)["ready"])


def is_standby(status: Status) -> bool:
    """Return whether this broker is a healthy standby."""
    return bool(health(status)["live"]) and status["role"] == "standby"


#: Pages for clients that cannot send a query, each with the function that decides on 200; the body is that of /health.
HEALTH: Final = "/health"
HEALTH_PAGES: Final = {"/health/live": is_alive, "/health/ready": is_ready, "/health/standby": is_standby}


#: Pages with the complete lists of ``/status``, page by page.
ALL_AT: Final = {
    "queues": "/api/v1/destinations/queue",
    "topics": "/api/v1/destinations/topic",
    "subscriptions": "/api/v1/subscriptions",
    "blocked_producers": "/api/v1/producers",
}


def _nothing_more() -> Work[Status]:
    yield
    return {}


class AdminServer:
    """Server of the three pages, and those of ``routes``, on one address.

    ``bind`` takes the address (a wrong one fails early, with OSError), ``start`` begins to listen, ``stop`` ends it
    within STOP_SECONDS_MAX; both may be called again. All on the loop's thread, as is the status callable.
    """

    def __init__(
        self,
        host: str,
        port: int,
        status: Callable[[], Status],
        routes: Sequence[web.RouteDef] = (),
        *,
        details: Callable[[], Work[Status]] = _nothing_more,
        check: Middleware | None = None,
        tls: ssl.SSLContext | None = None,
        tls_handshake_seconds_max: float | None = None,
        destinations: DestinationMetrics | None = None,
        answers: Answers | None = None,
        connections: Connections | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        """Make the server. ``details`` returns what ``/status`` and ``/metrics`` show beside ``status``, ``counts``
        together; made in steps. ``check`` comes before every page (broker.admin.guard). ``destinations``: those that
        have metrics of their own. ``tls``: the server uses HTTPS only. ``answers``: limit of the answers.
        ``connections``: their number and times. ``listener``: the socket, if it is bound already; the server closes
        it."""
        self._host = host
        self._port = port
        self._status = status
        self._routes = routes
        self._details = details
        self._check = check
        self._tls = tls
        self._tls_handshake_seconds_max = tls_handshake_seconds_max
        self._destinations = destinations or DestinationMetrics()
        self._answers = answers or Answers()
        self._status_page = Shared(self._encoded_status)
        self._metrics_page = Shared(partial(self._encoded_metrics, has_names=True))
        self._nameless_metrics_page = Shared(partial(self._encoded_metrics, has_names=False))
        self._socket = listener
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | TlsServer | None = None
        self._looking: asyncio.Task[None] | None = None
        self._connections = connections or Connections(Places())

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; if port 0 was requested, the port that the system chose, once bound."""
        if self._socket is not None:
            host, port = self._socket.getsockname()[:2]
            return str(host), int(port)
        return self._host, self._port

    @property
    def url(self) -> str:
        """URL of this server for a tool on the same network."""
        host, port = self.address
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def bind(self) -> None:
        """Bind the address without listening. OSError names the address that is wrong or in use."""
        if self._socket is None:
            self._socket = bound(self._host, self._port)

    async def start(self) -> None:
        """Listen; binds first if necessary."""
        if self._runner is not None:
            return
        self.bind()
        assert self._socket is not None, "a bound admin server has its socket"
        application = web.Application(
            client_max_size=BODY_BYTES_MAX,
            middlewares=[self._answer, *([self._check] if self._check else []), self._read],
        )
        application.router.add_get("/status", self._get_status, allow_head=False)
        # Balancers use HEAD.
        application.router.add_get(HEALTH, self._get_health)
        for page, is_well in HEALTH_PAGES.items():
            application.router.add_get(page, partial(self._get_health_page, is_well))
        application.router.add_get("/metrics", self._get_metrics, allow_head=False)
        application.router.add_routes(self._routes)
        runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=STOP_SECONDS_MAX,
        )
        self._runner = runner
        await runner.setup()
        loop = asyncio.get_running_loop()
        turns = Turns(loop, turn_seconds=TURN_SECONDS)
        accept = partial(self._accept, turns)
        if self._tls is None:
            self._listening = await loop.create_server(accept, sock=self._socket, backlog=ACCEPTED_MAX)
            self._socket.listen(BACKLOG)
        else:
            secured = TlsServer(
                "admin",
                self._socket,
                self._tls,
                self._tls_handshake_seconds_max,
                self._connections.places.most,
                accept,
                lambda protocol: None,  # it has a place only when it is connected
                turns,
            )
            secured.listen(BACKLOG)
            self._listening = secured
        self._looking = asyncio.create_task(self._look(), name="silent admin connections")

    async def stop(self) -> None:
        """Close the listener and every connection. The address is free afterwards."""
        runner, self._runner = self._runner, None
        listener, self._socket = self._socket, None
        if self._looking is not None:
            self._looking.cancel()
        if self._listening is not None:
            self._listening.close()
        self._looking = self._listening = None
        if runner is not None:
            await runner.cleanup()
        if listener is not None:
            listener.close()

    # ---- connections

    def _accept(self, turns: Turns) -> asyncio.Protocol:
        assert self._runner is not None, "it listens only after it was set up"
        assert self._runner.server is not None, "a runner that was set up has its server"
        return self._connections.make(self._runner.server, turns, asyncio.get_running_loop())

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._connections.look()

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Measure the request, and answer errors (outermost middleware): the time here is the broker's."""
        connection = cast("AdminConnection", request.protocol)
        try:
            with connection.working(is_reading=request.method in READING):
                response = await handler(request)
        except web.HTTPException as refusal:
            # aiohttp keeps the exception in a cycle, and that would keep the connection: as answer, and by its frames.
            refusal.with_traceback(None)
            response = web.Response(
                status=refusal.status, reason=refusal.reason, headers=refusal.headers, body=refusal.body
            )
        except Exception as error:
            what = f"the request {request.method} {request.path[:100]!r} failed"
            self._connections.log.warning(PORT, type(error).__name__, what, error=error)
            response = answer(
                {"error": f"the broker failed to answer this request ({error!r}); its log says where"}, 500
            )
        if connection.place is not None and connection.place.is_spare:
            response.force_close()
        return response

    @web.middleware
    async def _read(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Read the body of a request that the guard let through, in a limited time (``Places``)."""
        connection = cast("AdminConnection", request.protocol)
        place = connection.place
        if place is not None and has_login(request):
            self._connections.know(place)
        if place is not None and place.is_spare and not request.path.startswith(HEALTH):
            return answer({"error": "all places for connections are taken"}, 503)
        if request.body_exists:
            connection.enter(State.BODY)
            try:
                await request.read()
            except web.HTTPRequestEntityTooLarge:
                return answer({"error": f"a body has {BODY_BYTES_MAX} bytes at most"}, 413)
            except (ConnectionError, ClientError, RequestPayloadError, HttpProcessingError) as error:
                error.with_traceback(None)  # the request has the error, whose frames have the request
                refused = answer({"error": f"the body did not come: {type(error).__name__}"}, 400)
                refused.force_close()
                return refused
            connection.enter(State.WORK)
        return await handler(request)

    # ---- pages

    async def _get_status(self, request: web.Request) -> web.Response:
        if not sees_names(request):
            status = self._status()
            return answer({**public_health(status), "version": status.get("version")})
        return encoded(await self._status_page.get())

    async def _encoded_status(self) -> bytes:
        everything = await self._everything()
        return await self._answers.run(json_in_steps(everything, self._answers.bytes_max, all_at=ALL_AT))

    async def _everything(self) -> Status:
        details = await self._answers.run(self._details())
        status = self._status()  # last, so that it is as fresh as can be
        counts = status.get("counts", {}) | details.get("counts", {})
        return status | details | ({"counts": counts} if counts else {})

    async def _get_health(self, request: web.Request) -> web.Response:
        found = _health_for(request, self._status())
        # A balancer that must reach the master only uses ?ready; a supervisor, which must not restart a standby for
        # being one, does not.
        is_well = found["ready"] if "ready" in request.query else found["live"]
        return answer(found, 200 if is_well else 503)

    async def _get_health_page(self, is_well: Callable[[Status], bool], request: web.Request) -> web.Response:
        status = self._status()
        return answer(_health_for(request, status), 200 if is_well(status) else 503)

    async def _get_metrics(self, request: web.Request) -> web.Response:
        page = self._metrics_page if sees_names(request) else self._nameless_metrics_page
        return web.Response(body=await page.get(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _encoded_metrics(self, *, has_names: bool) -> bytes:
        status = await self._everything()
        of_destinations = b""
        if has_names:
            of_destinations = await self._answers.run(self._destinations.text(status, self._answers.bytes_max))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(StatusCollector(status, has_names=has_names))
        return generate_latest(registry) + of_destinations


def _health_for(request: web.Request, status: Status) -> Status:
    return health(status) if sees_names(request) else public_health(status)
