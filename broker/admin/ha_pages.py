"""The master and its history over HTTP: ``GET /lock``, ``GET /events``, ``POST /handover``.

All answers come from memory. The lock's thread refreshes the state of the lock. If the lock does not answer, the state
is old, and the answer shows its age; the answer itself is never delayed.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from aiohttp import web

from tandemmq.broker.admin.answers import answer, encoded, not_master
from tandemmq.broker.admin.encoding import Answers, Rows, rendered
from tandemmq.broker.admin.events import Event, EventRing
from tandemmq.broker.core.slices import Work
from tandemmq.broker.ha.mastership import Mastership
from tandemmq.broker.ha.states import NotMaster, Phase
from tandemmq.broker.replication.quorum import ChangeRefused
from tandemmq.locker.contract import Holder, Locker

#: Limit of a handover, which includes the last receipts and a checkpoint. The volume may hang.
HANDOVER_SECONDS_MAX = 30.0

# A limit of the digits: int() raises for thousands of digits.
_COUNT = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"-?[0-9]{1,9}")

Status = dict[str, Any]


class HaPages:
    """Pages of mastership. ``rule`` returns the mastership, ``status`` the answer of ``GET /status``. ``kind`` is the
    value of ``locker.type``.

    ``choose_successor`` sets the node that becomes master after the next release of the lock, and raises ChangeRefused.
    None: any broker may take the lock.
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
        """Answer with the state of the lock. ``proof`` in the answer is null without a proof of ownership."""
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
        """Answer with all events or the last N (``?last=N``), and with the address of the master if known, so that a
        client finds the other broker. If the answer would be too long, the oldest events are missing; ``earlier`` is
        then the ``before`` of a request for them."""
        last, before = request.query.get("last"), request.query.get("before")
        for name, text, pattern in (("last", last, _COUNT), ("before", before, _NUMBER)):
            if text is not None and not pattern.fullmatch(text):
                return answer({"error": f"{name}={text[:50]!r}: expected a number"}, 400)
        asked = (None if text is None else int(text) for text in (last, before))
        return encoded(await self._answers.run(self.events_json(*asked)))

    def events_json(self, last: int | None, before: int | None) -> Work[bytes]:
        """Return the body of ``GET /events`` for the query ``last`` and ``before``."""
        events, end = self._ring.numbered(before)
        asked = events if last is None else events[max(0, len(events) - last) :]
        # The latest events take precedence.
        rows = Rows(self._answers.bytes_max)
        yield from rendered(rows, asked[::-1], Event.as_json)
        rows.parts.reverse()
        rule, receipt = self._rule(), self._ring.last_receipt
        value = {
            "role": rule.phase.role.value,
            "holder": _holder(rule.holder),
            "name": self._ring.name,
            "last_receipt": None if receipt is None else receipt.as_json(),
            "earlier": end - len(rows.parts) if len(rows.parts) < len(asked) else None,
        }
        # The time is read at the end, so that the client can compare it with its own clocks.
        now = json.dumps(self._ring.clock.now().as_json()).encode()
        return b"".join((json.dumps(value).encode()[:-1], b', "events": ', *rows.array, b', "now": ', now, b"}\n"))

    def _choose(self, node: str) -> None:
        """Choose the next master. Raises ChangeRefused, and NotMaster (broker.ha.states)."""
        if self._choose_successor is None:
            raise ChangeRefused(
                "a handover can name the next master only in a replicated set: any broker may take this lock"
            )
        rule = self._rule()
        if rule.phase is not Phase.MASTER:
            raise NotMaster(f"this broker is {rule.phase.value}: {rule.reason}")
        self._choose_successor(node)

    async def _post_handover(self, request: web.Request) -> web.Response:
        """Hand over, and answer when the lock is free. ``?to=NODE``: the member of a set that becomes the next
        master."""
        # A page of a foreign site needs a permission of this server (CORS) to send this type. This server never gives
        # it.
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
            return answer({"error": f"the handover of {name} did not end within {HANDOVER_SECONDS_MAX:.0f} s"}, 503)
        return answer({"name": name, **asdict(done), "at": self._ring.clock.now().as_json()})


def proof_facts(locker: Locker) -> dict[str, float | bool | None] | None:
    """Return the age of the last proof of ownership and its remaining validity, in seconds; None: there is no proof.
    Any thread."""
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


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _holder(holder: Holder | None) -> dict[str, Any] | None:
    return None if holder is None else asdict(holder)
