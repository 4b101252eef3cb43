"""Who is master, and how it came to that, over HTTP: ``GET /lock``, ``GET /events``, ``POST /handover``.

All three answer from memory: what the lock said a moment ago is kept fresh by the thread that asks it, so a lock that
hangs makes an answer old, and says how old, but never late.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from aiohttp import web

from broker.events import EventRing
from broker.states import HandedOver, NotMaster, Phase
from locker.contract import Holder, Locker

#: A handover is bounded by the time to say the last words and by a checkpoint; a volume that hangs is not waited for.
HANDOVER_SECONDS_MAX = 30.0

Status = dict[str, Any]


class Rule(Protocol):
    """What is asked of broker.ha.Mastership, on the loop."""

    @property
    def phase(self) -> Phase: ...

    @property
    def epoch(self) -> int: ...

    @property
    def reason(self) -> str: ...

    @property
    def holder(self) -> Holder | None: ...

    @property
    def waiters(self) -> list[Holder] | None: ...

    async def handover(self) -> HandedOver: ...


class HaPages:
    """``rule`` is the mastership, ``status`` that of ``GET /status``; ``kind`` is what ``locker.type`` says."""

    def __init__(
        self, ring: EventRing, status: Callable[[], Status], locker: Locker, kind: str, rule: Callable[[], Rule]
    ) -> None:
        self._ring = ring
        self._status = status
        self._locker = locker
        self._kind = kind
        self._rule = rule

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/lock", self._get_lock, allow_head=False),
            web.get("/events", self._get_events, allow_head=False),
            web.post("/handover", self._post_handover),
        ]

    async def _get_lock(self, request: web.Request) -> web.Response:
        return _json(self.lock())

    def lock(self) -> Status:
        """What ``GET /lock`` answers. ``proof`` is None for one who has none to show."""
        rule, locker = self._rule(), self._locker
        is_ours = rule.phase in (Phase.MASTER, Phase.PROMOTING, Phase.HANDING_OVER)
        me = locker.request.holder
        waiters = rule.waiters
        answer: Status = {
            "name": me.name,
            "role": rule.phase.role.value,
            "phase": rule.phase.value,
            "reason": rule.reason,
            "kind": self._kind,
            "where": locker.where,
            "is_ours": is_ours,
            "holder": _holder(_as_master(me, rule.epoch) if is_ours else rule.holder),
            "waiters": None if waiters is None else [_holder(waiter) for waiter in waiters],
            "lease_seconds": locker.lease_seconds,
            "poll_seconds": locker.poll_seconds,
            "keep_alive_seconds": locker.settings.lock_keep_alive_period_seconds,
            "unsafe": locker.unsafe,
            "proof": proof_facts(locker) if is_ours else None,
        }
        return answer

    async def _get_events(self, request: web.Request) -> web.Response:
        """The ring, or the ``?last=N`` of it; with who is master as far as this broker knows: one address leads to the
        other."""
        text = request.query.get("last")
        if text is not None and not text.isdecimal():
            return _json({"error": f"last={text!r}: expected a number of events"}, 400)
        rule = self._rule()
        answer = self._ring.answer(None if text is None else int(text))
        return _json({"role": rule.phase.role.value, "holder": _holder(rule.holder)} | answer)

    async def _post_handover(self, request: web.Request) -> web.Response:
        """Answers when the lock is free."""
        # A page of a foreign site cannot send this type without being allowed to first, and nobody here allows it.
        if request.content_type != "application/json":
            return _json({"error": "a handover is asked for with Content-Type: application/json"}, 415)
        name = self._locker.request.holder.name
        try:
            # Who hangs up does not stop what has begun.
            done = await asyncio.wait_for(asyncio.shield(self._rule().handover()), HANDOVER_SECONDS_MAX)
        except NotMaster as error:
            status = self._status()
            answer: Status = {"error": str(error), "name": name, "role": status["role"]}
            if status.get("holder"):
                answer["holder"] = status["holder"]
            return _json(answer, 409)
        except TimeoutError:
            return _json({"error": f"the handover of {name} is not over after {HANDOVER_SECONDS_MAX:.0f} s"}, 503)
        return _json({"name": name, **asdict(done), "at": self._ring.answer(0)["now"]})


def proof_facts(locker: Locker) -> dict[str, float | bool | None] | None:
    """How old the last proof of ownership is, and for how long it holds yet; None when there is none. Any thread."""
    proof = locker.proof()
    if proof.valid_for_seconds < 0:
        return None
    age = locker.clock.now() - proof.known_at_seconds
    is_endless = proof.valid_for_seconds == float("inf")
    return {
        "age_seconds": round(age, 3),
        "holds_for_seconds": None if is_endless else round(proof.valid_for_seconds - age, 3),
        "holds": proof.holds_at(proof.known_at_seconds + age),
    }


def _as_master(me: Holder, epoch: int) -> Holder:
    return Holder(me.name, epoch or None, me.pid, me.host, me.admin)


def _holder(holder: Holder | None) -> dict[str, Any] | None:
    return None if holder is None else asdict(holder)


def _json(answer: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.Response(
        text=json.dumps(answer, default=str) + "\n",
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )
