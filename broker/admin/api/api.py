"""The API ``/api/v1``: the endpoints of all subjects, and the OpenAPI document. The endpoints here are for browsers:
log in, log out, and a stream of events (server-sent events). The checks of requests are in ``endpoints``.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from tandemmq.broker.admin.answers import Answers, answer
from tandemmq.broker.admin.api import parameters
from tandemmq.broker.admin.api.broker_pages import BrokerPages, Running
from tandemmq.broker.admin.api.destinations import Destinations, Messages
from tandemmq.broker.admin.api.endpoints import Answer, Call, Endpoint, Refused, Term, document, routes
from tandemmq.broker.admin.api.listings import Listings
from tandemmq.broker.admin.api.pauses import Pauses
from tandemmq.broker.admin.callers import Role, Sessions, cookie_of
from tandemmq.broker.admin.connections import address_of
from tandemmq.broker.admin.events import EventRing
from tandemmq.broker.admin.guard import Guard, has_login
from tandemmq.broker.admin.status import Report
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.net.server import Server

#: Limits of concurrent streams: of all, and of the streams without a login from one address.
STREAMS_MAX: Final = 16
STREAMS_WITHOUT_LOGIN_MAX: Final = 4
STREAM_CHECK_SECONDS: Final = 0.5
#: Interval at which a stream without events sends a comment, so that the client knows that the broker runs.
STREAM_SIGN_SECONDS: Final = 10.0
#: A stream ends after this time; browsers begin the next one automatically.
STREAM_SECONDS_MAX: Final = 600.0
#: A stream is closed if a write to its client takes longer than this.
WRITE_SECONDS_MAX: Final = 30.0


class Api:
    """The API. ``pages``: handlers of other pages of the admin server, by method and path (``GET /lock``); the API
    offers these, too. ``engine`` returns the engine of this term, None unless this broker is master. ``users``
    returns users and rights; it is called on a thread. ``backups``: directory of backups, None if they are not
    permitted. ``answers``: shared with the admin server."""

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


class Logins:
    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET", "/session", Role.NOBODY, "Show the user of the request and the user's role.", self._get_session
            ),
            Endpoint("POST", "/session", Role.NOBODY, "Log in: sets a cookie.", self._log_in, body=parameters.Login),
            Endpoint("DELETE", "/session", Role.NOBODY, "Log out.", self._log_out),
        ]

    async def _get_session(self, call: Call) -> Answer:
        session = self._guard.sessions.of(call.request)
        csrf = None if session is None else session.csrf
        needs_login = call.caller.role is Role.NOBODY
        return {"name": call.caller.name, "role": call.caller.role.word, "csrf": csrf, "needs_login": needs_login}

    async def _log_in(self, call: Call) -> web.Response:
        body: parameters.Login = call.body
        if body.token:
            caller = self._guard.holder_of(body.token)
        else:
            caller = await self._guard.user(call.request, body.login, body.passcode)
        if caller is None:
            raise Refused(401, "the name, the passcode or the admin token is wrong")
        id, session = self._guard.sessions.begin(caller)
        response = answer({"name": caller.name, "role": caller.role.word, "csrf": session.csrf, "needs_login": False})
        is_secure = call.request.secure
        response.set_cookie(cookie_of(call.request), id, httponly=True, samesite="Strict", path="/", secure=is_secure)
        return response

    async def _log_out(self, call: Call) -> web.Response:
        self._guard.sessions.end(call.request)
        response = answer({})
        response.del_cookie(cookie_of(call.request), path="/")
        return response


class EventStream:
    def __init__(self, ring: EventRing, sessions: Sessions) -> None:
        self._ring = ring
        self._sessions = sessions
        self._run = secrets.token_hex(4)  # random: numbers of events begin again with each process
        self._streams = 0
        self._without_login: Counter[str] = Counter()  # streams without a login, by address

    def endpoints(self) -> list[Endpoint]:
        return [Endpoint("GET", "/events/stream", Role.VIEWER, "Stream events (server-sent events).", self._stream)]

    async def _stream(self, call: Call) -> web.StreamResponse:
        """Send each event as it is recorded, beginning after ``Last-Event-ID``; ``/events`` has earlier events. The
        stream ends when the sessions of its user end."""
        address = None if has_login(call.request) else address_of(str(call.request.remote))
        if self._streams >= STREAMS_MAX:
            raise Refused(503, f"all {STREAMS_MAX} event streams are in use")
        if address is not None and self._without_login[address] >= STREAMS_WITHOUT_LOGIN_MAX:
            raise Refused(503, f"{STREAMS_WITHOUT_LOGIN_MAX} clients without a login already watch from this address")
        self._streams += 1
        if address is not None:
            self._without_login[address] += 1
        try:
            return await self._watch(call)
        finally:
            self._streams -= 1
            if address is not None:
                self._without_login[address] -= 1
                self._without_login += Counter()  # removes the entries that are 0

    async def _watch(self, call: Call) -> web.StreamResponse:
        request, name = call.request, call.caller.name
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        response.force_close()

        async def write(text: str) -> None:
            async with asyncio.timeout(WRITE_SECONDS_MAX):
                await response.write(text.encode())

        loop = asyncio.get_running_loop()
        until, ends = loop.time() + STREAM_SECONDS_MAX, self._sessions.ends_of(name)
        following, silent = self._following(request), 0.0
        try:
            await response.prepare(request)
            # The client gets an id at once, so that it can continue even if the stream ends before the first event.
            await write(f": the broker is there\nid: {self._run}.{following}\n\n")
            while request.transport is not None and loop.time() < until and self._sessions.ends_of(name) == ends:
                await asyncio.sleep(STREAM_CHECK_SECONDS)
                events, end = self._ring.numbered()
                new = events[max(0, len(events) - (end - following)) :]
                for number, each in enumerate(new, end - len(new) + 1):
                    shown = json.dumps(each.as_json(), default=str)
                    await write(f"id: {self._run}.{number}\ndata: {shown}\n\n")
                following = end
                silent = 0.0 if new else silent + STREAM_CHECK_SECONDS
                if silent >= STREAM_SIGN_SECONDS:
                    silent = 0.0
                    await write(": the broker is there\n\n")
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass
        return response

    def _following(self, request: web.Request) -> int:
        """Return the number of the first event that the client has not received. If the id in the request is of a
        former process, this is the first event of this process."""
        last_id = request.headers.get("Last-Event-ID")
        end = self._ring.numbered()[1]
        if last_id is None:
            return end
        run, _, number = last_id.partition(".")
        return min(int(number), end) if run == self._run and number.isdecimal() and len(number) < 19 else 0
