"""The admin HTTP server: ``GET /status``, ``GET /health``, ``GET /metrics``, and further pages.

Master and standby have the same three pages. One call of the status callable returns the content of an answer. The
parts that grow with the number of destinations are made in slices of the loop's time. These pages answer only GET, and
read no request body.

Result of the status callable (JSON values; only the first four are required):

    role      "master" | "standby" | "starting" | "demoted"
    epoch     int; 0 before the first promotion that this broker saw
    name      the broker's name
    store     the store directory
    holder    dict | None: the broker that holds the lock, on a standby (name, epoch, pid, host, admin)
    holder_silent_seconds  for how long that broker has shown no sign of life; left out while it shows signs of life
    reason    str: a sentence that explains the role
    standby   dict | None: progress of a standby (has_caught_up, messages, lag), and the predicted time of a take-over
              now (takeover)
    takeover  dict | None: the same prediction for a master that dies now and has no standby
    problems  list of sentences: problems that a restart of the process repairs; any makes the broker unhealthy
    warnings  list of sentences that do not change the health (an unsafe setting of the lock, ...)
    counts    dict of names to numbers, shown as metrics; a number whose name ends in ``_total`` never decreases
    journal   dict: number of files, their live bytes, and the bytes of the largest owners
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
from typing import Final, cast

from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware
from aiohttp.web_protocol import RequestPayloadError
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

from tandemmq.broker.admin.answers import Answers, Shared, Status, answer, encoded, json_in_steps
from tandemmq.broker.admin.api.endpoints import BODY_BYTES_MAX
from tandemmq.broker.admin.connections import PORT, AdminConnection, Connections
from tandemmq.broker.admin.guard import READING, has_login, sees_names
from tandemmq.broker.admin.metrics import DestinationMetrics, StatusCollector
from tandemmq.broker.admin.places import Places, State
from tandemmq.broker.admin.port import BACKLOG, bound
from tandemmq.broker.core.slices import Work
from tandemmq.broker.net.tls_handshake import HANDSHAKE_SECONDS_MAX, TlsServer
from tandemmq.broker.net.turns import Turns

log = logging.getLogger(__name__)

#: Interval of the checks for connections whose time is over.
CHECK_SECONDS = 1.0
STOP_SECONDS_MAX = 1.0
#: Time in each turn of the loop in which aiohttp parses the input of all peers. Serving the requests takes about as
#: long again.
TURN_SECONDS = 0.001
#: Limit of the connections that are accepted in one turn of the loop. It is less than the number of places for health
#: checks: so a request that arrived together with its connection is read before new connections can take its place.
ACCEPTED_MAX = 8

SERVING_ROLES = frozenset({"master", "standby"})


def health(status: Status) -> Status:
    """Return the answer of ``GET /health`` for a status.

    ``live`` is true for a master or a standby without problems; ``ready`` is true for a master without problems.
    ``problems`` has the reasons.
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
    """Return ``health`` without ``problems`` and ``warnings``, which name destinations, clients, hosts and files."""
    return {key: value for key, value in health(status).items() if key not in ("problems", "warnings")}


def is_alive(status: Status) -> bool:
    """Return whether a supervisor should keep the process. A long promotion or a demotion is no reason to kill it."""
    return not status.get("problems")


def is_ready(status: Status) -> bool:
    """Return whether this broker is a healthy master, so that clients should connect to it."""
    return bool(health(status)["ready"])


def is_standby(status: Status) -> bool:
    """Return whether this broker is a healthy standby."""
    return bool(health(status)["live"]) and status["role"] == "standby"


#: Health pages for clients that cannot send a query. Each has the function that decides whether the status is 200; the
#: body is the same as of ``/health``.
HEALTH: Final = "/health"
HEALTH_PAGES: Final = {"/health/live": is_alive, "/health/ready": is_ready, "/health/standby": is_standby}


#: API pages with the complete lists of those in ``/status``.
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

    ``bind`` takes the address, so that a wrong one fails early with OSError. ``start`` begins to listen; ``stop`` ends
    within STOP_SECONDS_MAX. After ``stop``, ``start`` may be called again. All calls, also of the status callable, are
    on the loop.
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
        tls_handshake_seconds_max: float = HANDSHAKE_SECONDS_MAX,
        destinations: DestinationMetrics | None = None,
        answers: Answers | None = None,
        connections: Connections | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        """Make the server. ``details`` returns, in steps, further content of ``/status`` and ``/metrics``; its
        ``counts`` are added to those of ``status``. ``check`` runs before each page (broker.admin.guard). ``tls``: if
        not None, the server uses only HTTPS. ``destinations``: metrics of single destinations. ``answers``: makes
        answers, and limits them. ``connections``: limits their number and times.
        ``listener``: the socket, if it is bound already; the server closes it."""
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
        self._closing_overdue: asyncio.Task[None] | None = None
        self._connections = connections or Connections(Places())

    @property
    def address(self) -> tuple[str, int]:
        """Host and port. If port 0 was requested, this is the port that the system chose in ``bind``."""
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
        # Load balancers use HEAD.
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
                lambda protocol: None,  # a connection takes its place later, in connection_made
                turns,
            )
            secured.listen(BACKLOG)
            self._listening = secured
        self._closing_overdue = asyncio.create_task(self._close_overdue(), name="silent admin connections")

    async def stop(self) -> None:
        """Close the listener and all connections. Then the address is free."""
        runner, self._runner = self._runner, None
        listener, self._socket = self._socket, None
        if self._closing_overdue is not None:
            self._closing_overdue.cancel()
        if self._listening is not None:
            self._listening.close()
        self._closing_overdue = self._listening = None
        if runner is not None:
            await runner.cleanup()
        if listener is not None:
            listener.close()

    # ---- connections

    def _accept(self, turns: Turns) -> asyncio.Protocol:
        assert self._runner is not None, "the server listens only after its runner was set up"
        assert self._runner.server is not None, "a runner that was set up has its server"
        return self._connections.make(self._runner.server, turns, asyncio.get_running_loop())

    async def _close_overdue(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._connections.close_overdue()

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note the state of the connection, and turn errors into answers (outermost middleware). The time in here does
        not count as the peer's."""
        connection = cast("AdminConnection", request.protocol)
        try:
            with connection.working(is_reading=request.method in READING):
                response = await handler(request)
        except web.HTTPException as refusal:
            # aiohttp keeps the exception in a reference cycle. The frames of its traceback would keep the connection in
            # memory.
            refusal.with_traceback(None)
            response = web.Response(
                status=refusal.status, reason=refusal.reason, headers=refusal.headers, body=refusal.body
            )
        except Exception as error:
            what = f"the request {request.method} {request.path[:100]!r} failed"
            self._connections.log.warning(PORT, type(error).__name__, what, error=error)
            response = answer(
                {"error": f"the broker failed to answer this request ({error!r}); the log has the traceback"}, 500
            )
        if connection.place is not None and connection.place.is_spare:
            response.force_close()
        return response

    @web.middleware
    async def _read(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Read the body of a request that the guard permitted, in a limited time (``Places``)."""
        connection = cast("AdminConnection", request.protocol)
        place = connection.place
        if place is not None and has_login(request):
            self._connections.note_login(place)
        if place is not None and place.is_spare and not request.path.startswith(HEALTH):
            return answer({"error": "all places for connections are taken"}, 503)
        if request.body_exists:
            connection.enter(State.BODY)
            try:
                await request.read()
            except web.HTTPRequestEntityTooLarge:
                return answer({"error": f"the body is longer than {BODY_BYTES_MAX} bytes"}, 413)
            except (ConnectionError, ClientError, RequestPayloadError, HttpProcessingError) as error:
                error.with_traceback(None)  # frames of the traceback would keep the request in memory
                refused = answer({"error": f"the body did not arrive: {type(error).__name__}"}, 400)
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
        status = self._status()  # read last, so that it is as recent as possible
        counts = status.get("counts", {}) | details.get("counts", {})
        return status | details | ({"counts": counts} if counts else {})

    async def _get_health(self, request: web.Request) -> web.Response:
        found = _health_for(request, self._status())
        # A load balancer that must reach only the master uses ?ready. A supervisor must not use it, because it must not
        # restart a healthy standby.
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
