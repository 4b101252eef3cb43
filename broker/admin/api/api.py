"""The API ``/api/v1``: all endpoints, and the OpenAPI document of them. ``endpoints`` checks requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

from tandemmq.broker.admin.api.broker_pages import BrokerPages, Handler
from tandemmq.broker.admin.api.destinations import Destinations
from tandemmq.broker.admin.api.endpoints import Answer, Call, Endpoint, document, routes
from tandemmq.broker.admin.api.event_stream import EventStream
from tandemmq.broker.admin.api.listings import Listings
from tandemmq.broker.admin.api.logins import Logins
from tandemmq.broker.admin.api.messages import Messages
from tandemmq.broker.admin.api.pauses import Pauses
from tandemmq.broker.admin.api.running import Running
from tandemmq.broker.admin.api.term import Term
from tandemmq.broker.admin.encoding import Answers
from tandemmq.broker.admin.events import EventRing
from tandemmq.broker.admin.guard import Guard
from tandemmq.broker.admin.roles import Role
from tandemmq.broker.admin.status import Report
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.net.server import Server


class Api:
    """The API. ``pages``: handlers of other pages of the admin server, by method and path (``GET /lock``); the API
    offers these, too. ``engine`` returns the engine of this term, None unless master. ``users`` returns users and
    rights; it is called on a thread. ``backups``: directory of backups, None if they are not permitted. ``answers``:
    shared with the admin server."""

    def __init__(
        self,
        report: Report,
        engine: Callable[[], Engine | None],
        server: Server,
        ring: EventRing,
        guard: Guard,
        pages: Mapping[str, Handler],
        users: Callable[[], Answer],
        pauses: Pauses,
        backups: str | None = None,
        answers: Answers | None = None,
    ) -> None:
        self._answers = answers = answers or Answers()
        term = Term(report, engine)
        running = Running(report, backups)
        subjects = (
            Logins(guard),
            BrokerPages(report, term, server, pages, users, answers),
            Listings(term, server, answers),
            Destinations(term, pauses),
            Messages(term, running, answers),
            running,
            EventStream(ring, guard.sessions),
        )
        self._guard = guard
        self._endpoints = [
            Endpoint("GET", "/openapi.json", Role.NOBODY, "Return this document.", self._get_document),
            *(endpoint for subject in subjects for endpoint in subject.endpoints()),
        ]
        self._document = document(self._endpoints)

    def routes(self) -> list[web.RouteDef]:
        return routes(self._endpoints, self._guard, self._answers)

    async def _get_document(self, call: Call) -> Answer:
        return self._document
