"""What happens, told as it happens: server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Final

from aiohttp import web

from tandemmq.broker.admin.api.endpoints import Call, Endpoint, Refused
from tandemmq.broker.admin.connections import address_of
from tandemmq.broker.admin.events import EventRing
from tandemmq.broker.admin.guard import has_login
from tandemmq.broker.admin.roles import Role
from tandemmq.broker.admin.sessions import Sessions

#: Who watches events at the same time; and of those without a login, from one address.
STREAMS_MAX: Final = 16
STRANGERS_MAX: Final = 4
STREAM_LOOK_SECONDS: Final = 0.5
#: A watcher that hears nothing else hears that the broker is there.
STREAM_SIGN_SECONDS: Final = 10.0
#: A stream ends after this time; browsers begin the next one by themselves.
STREAM_SECONDS_MAX: Final = 600.0
#: A watcher that does not take what is written for this time is hung up on.
WRITE_SECONDS_MAX: Final = 30.0


class EventStream:
    def __init__(self, ring: EventRing, sessions: Sessions) -> None:
        self._ring = ring
        self._sessions = sessions
        self._streams = 0
        self._of_strangers: Counter[str] = Counter()  # by address

    def endpoints(self) -> list[Endpoint]:
        return [Endpoint("GET", "/events/stream", Role.VIEWER, "What happens (server-sent events).", self._stream)]

    async def _stream(self, call: Call) -> web.StreamResponse:
        """Each event as it comes; those before are what ``/events`` tells. It ends with the sessions of who asks."""
        address = None if has_login(call.request) else address_of(str(call.request.remote))
        if self._streams >= STREAMS_MAX:
            raise Refused(503, f"{STREAMS_MAX} watch already")
        if address is not None and self._of_strangers[address] >= STRANGERS_MAX:
            raise Refused(503, f"{STRANGERS_MAX} watch from this address without a login already")
        self._streams += 1
        if address is not None:
            self._of_strangers[address] += 1
        try:
            return await self._watch(call)
        finally:
            self._streams -= 1
            if address is not None:
                self._of_strangers[address] -= 1
                self._of_strangers += Counter()  # without those that are 0

    async def _watch(self, call: Call) -> web.StreamResponse:
        request, name = call.request, call.caller.name
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        response.force_close()

        async def write(text: str) -> None:
            async with asyncio.timeout(WRITE_SECONDS_MAX):
                await response.write(text.encode())

        loop = asyncio.get_running_loop()
        until, ends = loop.time() + STREAM_SECONDS_MAX, self._sessions.ends_of(name)
        known, silent = self._ring.events(), 0.0
        try:
            await response.prepare(request)
            await write(": the broker is there\n\n")
            while request.transport is not None and loop.time() < until and self._sessions.ends_of(name) == ends:
                await asyncio.sleep(STREAM_LOOK_SECONDS)
                former, known = set(map(id, known)), self._ring.events()
                new = [each for each in known if id(each) not in former]
                for each in new:
                    await write(f"data: {json.dumps(each.as_json(), default=str)}\n\n")
                silent = 0.0 if new else silent + STREAM_LOOK_SECONDS
                if silent >= STREAM_SIGN_SECONDS:
                    silent = 0.0
                    await write(": the broker is there\n\n")
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass
        return response
