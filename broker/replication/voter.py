"""Votes of this node: its answers to candidates, its promise, and the end of a granted term.

All runs on the replica's thread (docs/formats/replication.md, rules 2, 4 and 10). ``election`` decides the answers.
"""

# proofs: replication-rules

from __future__ import annotations

from tandemmq.broker.replication import election
from tandemmq.broker.replication.candidate import Candidate
from tandemmq.broker.replication.election import View
from tandemmq.broker.replication.follower import Follower
from tandemmq.broker.replication.messages import Promise, PromiseAnswer, Resign, Would, WouldAnswer
from tandemmq.broker.replication.network import Link
from tandemmq.broker.replication.state import NodeState


class Voter:
    def __init__(self, state: NodeState, follower: Follower, candidate: Candidate) -> None:
        self._state = state
        self._follower = follower
        self._candidate = candidate
        self._deferred_at = float("-inf")  # to a node of a lower weight

    def _view(self) -> View:
        state = self._state
        promise, term = state.promise, state.term
        return View(
            store=state.store,
            set=state.set,
            founding=promise.founding,
            epoch=promise.epoch,
            candidate=promise.candidate,
            position=state.position,
            weight=state.settings.weight,
            may_stand=self._candidate.may_stand,
            is_voter=state.is_voter and promise.is_whole,
            lease_until=state.timer.lease_until,
            leads=term is not None and term.has_lease,
        )

    def would(self, link: Link, message: Would) -> None:
        view = self._view()
        now = self._state.now()
        has_deferred = now - self._deferred_at < self._state.settings.timeout_seconds
        reason = election.refusal_to_would(
            view, message.set, message.position, message.weight, now, has_deferred=has_deferred
        )
        if reason is not None and reason.startswith("after me"):
            self._deferred_at = now
        highest = self._state.highest
        link.send(WouldAnswer(message.id, reason is None, reason or "", highest, view.position, view.weight))

    def promise(self, link: Link, message: Promise) -> None:
        state, asker = self._state, link.member.store
        reason = self._refusal_to_promise(asker, message)
        term = state.term
        if reason is None and term is not None:
            # From here on the term confirms nothing: only now its position is stable.
            term.depose()  # prove: deposed-before-the-position-is-taken
            reason = self._refusal_to_promise(asker, message)  # prove: deposed-compares-again
        if reason is None:
            self._follower.leave("a later epoch is promised", ends_link=False)  # prove: promised-takes-no-older-bytes
            if (message.epoch, asker) != (state.promise.epoch, state.promise.candidate):
                state.promise_epoch(message.epoch, asker, message.founding)
            state.timer.grant(asker, message.epoch, message.milliseconds)
            self._candidate.give_up()
        link.send(PromiseAnswer(message.id, message.epoch, reason is None, reason or "", state.promise.epoch))

    def _refusal_to_promise(self, asker: str, message: Promise) -> str | None:
        return election.refusal_to_promise(
            self._view(), asker, message.set, message.epoch, message.position, message.founding, self._state.now()
        )

    def resigned(self, link: Link, message: Resign) -> None:
        """Handle the resignation of the leader, or of the candidate that was granted an epoch."""
        state, store, master = self._state, link.member.store, self._follower.master
        of = state.promise.candidate if master is None else master.link.member.store
        if message.epoch != state.promise.epoch or store != of:
            return
        self._follower.leave("it resigned", ends_link=False)
        state.timer.resigned(None if message.to is None else message.to == state.store)
