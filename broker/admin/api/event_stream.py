"""What happens, told as it happens: server-sent events."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from aiohttp import web

from tandemmq.broker.admin.api.endpoints import Call, Endpoint, Refused
from tandemmq.broker.admin.events import EventRing
from tandemmq.broker.admin.roles import Role
from tandemmq.broker.admin.sessions import Sessions

#: Who watches events at the same time.
STREAMS_MAX: Final = 16
STREAM_LOOK_SECONDS: Final = 0.5
#: A watcher that hears nothing else hears that the broker is there.
STREAM_SIGN_SECONDS: Final = 10.0


class EventStream:
    def __init__(self, ring: EventRing, sessions: Sessions) -> None:
        self._ring = ring
        self._sessions = sessions
        self._streams = 0

    def endpoints(self) -> list[Endpoint]:
        return [Endpoint("GET", "/events/stream", Role.VIEWER, "What happens (server-sent events).", self._stream)]

    async def _stream(self, call: Call) -> web.StreamResponse:
        """Each event as it comes; those before are what ``/events`` tells. It ends with the sessions of who asks."""
        if self._streams >= STREAMS_MAX:
            raise Refused(503, f"{STREAMS_MAX} watch already")
        self._streams += 1
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
            await response.prepare(call.request)
            known = self._ring.events()
            silent = 0.0
            ends = self._sessions.ends_of(call.caller.name)
            await response.write(b": the broker is there\n\n")
            while self._sessions.ends_of(call.caller.name) == ends:
                await asyncio.sleep(STREAM_LOOK_SECONDS)
                former, known = set(map(id, known)), self._ring.events()
                new = [each.as_json() for each in known if id(each) not in former]
                lines = [f"data: {json.dumps(each, default=str)}\n\n" for each in new]
                silent = 0.0 if lines else silent + STREAM_LOOK_SECONDS
                if silent >= STREAM_SIGN_SECONDS:
                    silent = 0.0
                    lines = [": the broker is there\n\n"]
                if lines:
                    await response.write("".join(lines).encode())
            return response
        except ConnectionResetError:
            return response
        finally:
            self._streams -= 1
