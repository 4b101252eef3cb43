"""Pages of a node:

    mastership and history  ``GET /lock``, ``GET /events``, ``POST /handover``
    replicated set          ``GET /replication``, ``POST /replication/voters``
    levels of the log       ``GET /log-level``, ``POST /log-level``

The lock and the events are answered from memory. The lock's thread refreshes the state of the lock: if the lock hangs,
the answer comes in time, with an older state and its age. A level of the log is valid until the settings are read again
(SIGHUP), or the process ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from tandemmq import log_events
from tandemmq.broker.admin.answers import Answers, Rows, Status, answer, encoded, not_master, rendered
from tandemmq.broker.admin.events import Event, EventRing
from tandemmq.broker.admin.guard import sees_names
from tandemmq.broker.admin.status import proof_facts
from tandemmq.broker.core.slices import Work
from tandemmq.broker.ha.mastership import Mastership
from tandemmq.broker.ha.states import NotMaster, Phase
from tandemmq.broker.process.log import DEFAULT, LEVELS, Log, UnknownLogger
from tandemmq.broker.replication.quorum import ChangeRefused
from tandemmq.broker.replication.quorum import NotMaster as NotSetMaster
from tandemmq.broker.replication.state import NotStarted
from tandemmq.locker.contract import Holder, Locker

if TYPE_CHECKING:
    from tandemmq.broker.replication.replica import Replica

#: Time limit of a handover with its last answers and its checkpoint. The broker does not wait for a volume that hangs.
HANDOVER_SECONDS_MAX = 30.0

# At most nine digits, because int() raises an error for thousands of digits.
_COUNT = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"-?[0-9]{1,9}")

#: Time limit of a change. If no quorum has the header with the new voters on its disks by then, the answer is an error.
CHANGE_SECONDS_MAX: Final = 30.0
log = logging.getLogger(__name__)


class HaPages:
    """Pages of mastership. ``rule`` returns the mastership, ``status`` the answer of ``GET /status``. ``kind``: value
    of ``locker.type``.

    ``choose_successor`` makes the next release name the node that is to be master, and raises ChangeRefused; None: any
    broker may take the lock.
    """

    def __init__(
        self,
        ring: EventRing,
        status: Callable[[], Status],
        locker: Locker,
        kind: str,
        rule: Callable[[], Mastership],
        choose_successor: Callable[[str], None] | None = None,
        answers: Answers | None = None,
    ) -> None:
        self._ring = ring
        self._status = status
        self._locker = locker
        self._kind = kind
        self._rule = rule
        self._choose_successor = choose_successor
        self._answers = answers or Answers()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/lock", self._get_lock, allow_head=False),
            web.get("/events", self._get_events, allow_head=False),
            web.post("/handover", self._post_handover),
        ]

    async def _get_lock(self, request: web.Request) -> web.Response:
        """Answer with the state of the lock. ``proof`` is None without a proof of ownership."""
        rule, locker = self._rule(), self._locker
        is_ours = rule.phase in (Phase.MASTER, Phase.PROMOTING, Phase.HANDING_OVER)
        me = locker.request.holder
        waiters = rule.waiters
        lock = {
            "name": me.name,
            "role": rule.phase.role.value,
            "phase": rule.phase.value,
            "reason": rule.reason,
            "kind": self._kind,
            "where": locker.where,
            "is_ours": is_ours,
            "holder": _holder(replace(me, epoch=rule.epoch or None) if is_ours else rule.holder),
            "holder_silent_seconds": _rounded(rule.holder_silent_seconds),
            "waiters": None if waiters is None else [_holder(waiter) for waiter in waiters],
            "lease_seconds": locker.lease_seconds,
            "poll_seconds": locker.poll_seconds,
            "keep_alive_seconds": locker.settings.lock_keep_alive_period_seconds,
            "unsafe": locker.unsafe,
            "proof": proof_facts(locker) if is_ours else None,
        }
        return answer(lock)

    async def _get_events(self, request: web.Request) -> web.Response:
        """Answer with the recorded events, or the last ``?last=N`` of them, and with the master that this broker knows,
        so that a caller finds the other broker. If the answer would be too long, the oldest events are left out: a
        request with ``before`` = ``earlier`` returns them."""
        last, before = request.query.get("last"), request.query.get("before")
        for name, text, pattern in (("last", last, _COUNT), ("before", before, _NUMBER)):
            if text is not None and not pattern.fullmatch(text):
                return answer({"error": f"{name}={text[:50]!r}: expected a number"}, 400)
        bounds = (None if text is None else int(text) for text in (last, before))
        return encoded(await self._answers.run(self.events_json(*bounds)))

    def events_json(self, last: int | None, before: int | None) -> Work[bytes]:
        """Return the body of ``GET /events``, for its query."""
        events, end = self._ring.numbered(before)
        chosen = events if last is None else events[max(0, len(events) - last) :]
        # The latest events take precedence.
        rows = Rows(self._answers.bytes_max)
        yield from rendered(rows, chosen[::-1], Event.as_json)
        rows.parts.reverse()
        rule, receipt = self._rule(), self._ring.last_receipt
        value = {
            "role": rule.phase.role.value,
            "holder": _holder(rule.holder),
            "name": self._ring.name,
            "last_receipt": None if receipt is None else receipt.as_json(),
            "earlier": end - len(rows.parts) if len(rows.parts) < len(chosen) else None,
        }
        # The time is read last, so that the client can compare it with its clock.
        now = json.dumps(self._ring.clock.now().as_json()).encode()
        return b"".join((json.dumps(value).encode()[:-1], b', "events": ', *rows.array, b', "now": ', now, b"}\n"))

    def _choose(self, node: str) -> None:
        """Choose the next master. Raises ChangeRefused, and NotMaster of broker.ha.states."""
        if self._choose_successor is None:
            raise ChangeRefused(
                "only in a replicated set can a handover name the next master: any broker may take this lock"
            )
        rule = self._rule()
        if rule.phase is not Phase.MASTER:
            raise NotMaster(f"this broker is {rule.phase.value}: {rule.reason}")
        self._choose_successor(node)

    async def _post_handover(self, request: web.Request) -> web.Response:
        """Answer when the lock is free. ``?to=NODE``: the member of a set that is to be the next master."""
        # A page of a foreign site cannot send this type without permission, and this server gives none.
        if request.content_type != "application/json":
            return answer({"error": "a handover requires Content-Type: application/json"}, 415)
        name = self._locker.request.holder.name
        try:
            if "to" in request.query:
                self._choose(request.query["to"])
            # A client that disconnects does not stop a handover that has begun.
            done = await asyncio.wait_for(asyncio.shield(self._rule().handover()), HANDOVER_SECONDS_MAX)
        except NotMaster as error:
            return not_master(self._status(), str(error))
        except ChangeRefused as error:
            return answer({"error": str(error)}, 422)
        except TimeoutError:
            return answer({"error": f"the handover of {name} is not over after {HANDOVER_SECONDS_MAX:.0f} s"}, 503)
        return answer({"name": name, **asdict(done), "at": self._ring.clock.now().as_json()})


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _holder(holder: Holder | None) -> dict[str, Any] | None:
    return None if holder is None else asdict(holder)


class ReplicationPages:
    """Pages of a set. ``rotate`` makes the store continue in a new journal file, whose header has the new voters. It
    returns None if this broker has no open store."""

    def __init__(self, member: Replica, rotate: Callable[[], Future[None] | None]) -> None:
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
            overview = self._member.overview()
        except NotStarted as error:
            return web.json_response({"error": str(error)}, status=503)
        if not sees_names(request):
            overview = {key: overview.get(key) for key in ("role", "epoch", "is_whole", "position")}
        return web.json_response(overview)

    def _holder(self) -> dict[str, Any] | None:
        """Return the master that this node knows; None: it knows none."""
        leader = self._member.leader()
        return None if leader is None else {"name": leader.node, "admin": leader.admin}

    async def _post_voters(self, request: web.Request) -> web.Response:
        """Change the voters: ``{"add": STORE or NODE}`` or ``{"remove": ...}``. Answers when the change is final."""
        if request.content_type != "application/json":
            return web.json_response({"error": "the change requires Content-Type: application/json"}, status=415)
        try:
            body = await request.json()
            ((verb, who),) = body.items()
            if verb not in ("add", "remove") or not isinstance(who, str):
                raise ValueError
        except (ValueError, AttributeError):
            return web.json_response({"error": 'expected {"add": "NODE"} or {"remove": "NODE"}'}, status=400)
        try:
            voters = self._member.propose(**{verb: who})
        except NotSetMaster as error:
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


class LogPages:
    """Pages for the log of this process."""

    def __init__(self, process_log: Log) -> None:
        self._log = process_log

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/log-level", self._get, allow_head=False),
            web.post("/log-level", self._post),
        ]

    async def _get(self, request: web.Request) -> web.Response:
        return self._answer()

    async def _post(self, request: web.Request) -> web.Response:
        """Set the level in ``?logger=NAME&level=LEVEL``."""
        # A page of another site cannot send this content type without permission (CORS), which this server never gives.
        if request.content_type != "application/json":
            return answer({"error": "setting a level requires Content-Type: application/json"}, 415)
        name, level = request.query.get("logger", ""), request.query.get("level", "")
        if level not in (*LEVELS, DEFAULT):
            return answer({"error": f"level={level[:50]!r}: expected {', '.join(LEVELS)} or {DEFAULT}"}, 400)
        try:
            self._log.set_level(name, None if level == DEFAULT else level)
        except UnknownLogger as error:
            return answer({"error": str(error)}, 422)
        log.warning(
            "the level of logger %s is %s, set from %s", name, level, request.remote, extra=log_events.LOG_LEVEL_SET
        )
        return self._answer()

    def _answer(self) -> web.Response:
        return answer({"levels": self._log.levels, "lines_dropped": self._log.dropped})
