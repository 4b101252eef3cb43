"""A replicated set over HTTP: ``GET /replication`` shows its nodes, ``POST /replication/voters`` changes the voters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, Protocol

from aiohttp import web

from tandemmq.broker.admin.guard import sees_names
from tandemmq.broker.replication.network import Entry
from tandemmq.broker.replication.quorum import ChangeRefused, NotMaster, Voters
from tandemmq.broker.replication.state import NotStarted

#: Limit of a change. If the header with the new voters is not on the disks of a quorum by then, the answer is an error.
CHANGE_SECONDS_MAX: Final = 30.0


class Member(Protocol):
    """Part of broker.replication.replica.Replica that the pages use. Any thread."""

    def overview(self) -> Mapping[str, Any]: ...

    def leader(self) -> Entry | None: ...

    def propose(self, *, add: str | None = None, remove: str | None = None) -> Voters: ...

    def give_up_change(self) -> None: ...


class ReplicationPages:
    """Pages of a set. ``rotate`` makes the store continue in a new journal file, whose header has the new voters. It
    returns None if this broker has no open store."""

    def __init__(self, member: Member, rotate: Callable[[], Future[None] | None]) -> None:
        self._member = member
        self._rotate = rotate

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/replication", self._get, allow_head=False),
            web.post("/replication/voters", self._post_voters),
        ]

    async def _get(self, request: web.Request) -> web.Response:
        """Answer with the status of the set; without the role viewer, only with the fields that a probe needs."""
        try:
            told = self._member.overview()
        except NotStarted as error:
            return web.json_response({"error": str(error)}, status=503)
        if not sees_names(request):
            told = {key: told.get(key) for key in ("role", "epoch", "is_whole", "position")}
        return web.json_response(told)

    def _holder(self) -> dict[str, Any] | None:
        """Return the master that this node knows; None: it knows none."""
        leader = self._member.leader()
        return None if leader is None else {"name": leader.node, "admin": leader.admin}

    async def _post_voters(self, request: web.Request) -> web.Response:
        """Change the voters: ``{"add": STORE or NODE}`` or ``{"remove": ...}``. Answers when the change is final."""
        if request.content_type != "application/json":
            return web.json_response({"error": "the change requires Content-Type: application/json"}, status=415)
        try:
            asked = await request.json()
            ((verb, who),) = asked.items()
            if verb not in ("add", "remove") or not isinstance(who, str):
                raise ValueError
        except (ValueError, AttributeError):
            return web.json_response({"error": 'expected {"add": "NODE"} or {"remove": "NODE"}'}, status=400)
        try:
            voters = self._member.propose(**{verb: who})
        except NotMaster as error:
            return web.json_response({"error": str(error), "holder": self._holder()}, status=409)
        except ChangeRefused as error:
            return web.json_response({"error": str(error)}, status=422)
        beginning = self._rotate()
        try:
            if beginning is None:
                raise ChangeRefused("this broker has no open store")
            await asyncio.wait_for(asyncio.wrap_future(beginning), CHANGE_SECONDS_MAX)
        except (Exception, asyncio.CancelledError) as error:  # the store may have ended with any error
            self._member.give_up_change()
            reason = str(error) or "the store ended, or no quorum answers"
            return web.json_response({"error": f"the change is not final: {reason}"}, status=503)
        return web.json_response({"voters": {store: voters.name(store) for store in voters.ids}})
