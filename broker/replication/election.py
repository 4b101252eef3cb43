"""Elections of a set: the rules of votes, and this node as a candidate, as a founder, and as a voter.

A candidate asks all voters whether they would promise, then requests their promises. The answers are pure functions of
the voter's state; all else runs on the replica's thread (docs/formats/replication.md, rules 1 to 4 and 10, and
"Founding").
"""

# proofs: election

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from tandemmq.broker.replication.fields import ID_BYTES
from tandemmq.broker.replication.follower import Follower
from tandemmq.broker.replication.leader import Leader
from tandemmq.broker.replication.messages import PreVote, PreVoteAnswer, Promise, PromiseAnswer, Resign
from tandemmq.broker.replication.network import Link
from tandemmq.broker.replication.peers import Links
from tandemmq.broker.replication.quorum import BEFORE_ALL, Founding, Position, Voters
from tandemmq.broker.replication.state import NodeState

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class View:
    """State of a node when a question reaches it. ``set`` is None until its journal has a header of a set; ``founding``
    is its former promise to found one. ``lease_until``: time on its clock until which a master that it answered may
    lead."""

    store: str
    set: str | None
    founding: Founding | None
    epoch: int  # promised
    candidate: str | None  # holder of that promise
    position: Position
    weight: int
    may_be_candidate: bool
    is_voter: bool
    lease_until: float
    leads: bool  # with a lease that holds


def refusal_to_pre_vote(
    view: View, asker_set: str | None, position: Position, weight: int, now: float, *, has_deferred: bool
) -> str | None:
    """Return why ``view`` would not promise to the asker; None: it would. ``has_deferred``: it gave way to a node of
    lower weight not long ago."""
    reason = _refusal(view, asker_set, position, now)
    if reason is not None:
        return reason
    if position == view.position and weight < view.weight and view.may_be_candidate and not has_deferred:
        return "after me: I am as far, and my weight is higher"
    return None


def refusal_to_promise(
    view: View, asker: str, asker_set: str | None, epoch: int, position: Position, founding: Founding | None, now: float
) -> str | None:
    """Return why ``view`` does not promise ``epoch`` to the store ``asker``; None: it does."""
    if epoch == view.epoch and asker == view.candidate:
        return None  # a repeated question
    if epoch <= view.epoch:  # prove: promise-only-above
        return f"epoch {view.epoch} is promised"
    if founding is not None:
        if view.set is not None:  # prove: founded-node-founds-nothing
            return "this node belongs to a set"
        if view.store not in founding.voters:
            return "this node would be no voter"
        if view.position > BEFORE_ALL:  # prove: founder-alone-has-a-journal
            return "this node has a journal"
        return None
    return _refusal(view, asker_set, position, now)


def _refusal(view: View, asker_set: str | None, position: Position, now: float) -> str | None:
    own_set = view.set if view.set is not None else None if view.founding is None else view.founding.set
    if own_set is None or asker_set != own_set:
        return "the nodes belong to different sets"
    if not view.is_voter:  # prove: learner-promises-nothing
        return "this node does not vote"
    if position < view.position:  # prove: behind-is-refused
        return f"behind: it stands at {tuple(position)}, this node at {tuple(view.position)}"
    if view.leads or now < view.lease_until:  # prove: lease-is-kept
        return "a master leads"
    return None


# proofs: replication-rules


@dataclass(slots=True)
class Round:
    """A question to all voters, and the answers so far."""

    message: PreVote | Promise
    voters: Voters
    asked_at: float
    until: float
    yes: set[str]
    refused: set[str] = field(default_factory=set)

    @property
    def must_be_all(self) -> bool:
        return isinstance(self.message, Promise) and self.message.founding is not None

    @property
    def is_won(self) -> bool:
        # prove: founded-by-all "self.yes >= set(self.voters.ids) if self.must_be_all else "
        return self.yes >= set(self.voters.ids) if self.must_be_all else self.voters.have_quorum(self.yes)


class Candidate:
    """Candidacy of this node. ``rounds`` counts the questions asked."""

    def __init__(self, state: NodeState, links: Links, follower: Follower, leader: Leader) -> None:
        self.rounds = 0
        self._state = state
        self._links = links
        self._follower = follower
        self._leader = leader
        self._timeout = state.settings.timeout_seconds
        self._round: Round | None = None
        self._highest = 0  # highest epoch or file number in messages of other nodes

    @property
    def is_asking(self) -> bool:
        return self._round is not None

    @property
    def asks_until(self) -> float | None:
        """Time on the clock from which answers to the current question are too late; None: no question is open."""
        return None if self._round is None else self._round.until

    @property
    def may_be_candidate(self) -> bool:
        state = self._state
        return (
            state.is_voter
            and state.header is not None
            and state.promise.is_whole
            and not state.problem
            and self._leader.is_wanted
        )

    def tick(self) -> None:
        if self._round is not None:
            if self._state.now() >= self._round.until:
                self._lose("not enough answers in time")
        elif self._follower.master is None and self._state.timer.may_be_candidate:
            if self.may_be_candidate:
                self._ask_pre_vote()
            elif self._state.header is None:
                self._try_founding()

    # ---- pre-vote

    def _ask_pre_vote(self) -> None:
        state = self._state
        header, voters = state.header, state.voters
        assert header is not None, "a candidate has a header"
        assert voters is not None, "a candidate is a voter"
        self.rounds += 1
        weight = state.settings.weight
        self._ask(PreVote(self.rounds, header.id, state.promise.epoch, state.position, weight), voters)

    def _ask(self, message: PreVote | Promise, voters: Voters) -> None:
        now = self._state.now()
        self._round = Round(message, voters, now, now + self._timeout / 4, {self._state.store})
        for store in voters.ids:
            link = self._links.ours.get(store)
            if link is not None:
                link.send(message)
        self._proceed_if_won()

    def pre_vote_answered(self, link: Link, message: PreVoteAnswer) -> None:
        self._highest = max(self._highest, message.epoch)
        self._note_answer(link, message.id, PreVote, message.yes, message.reason)

    def promise_answered(self, link: Link, message: PromiseAnswer) -> None:
        self._highest = max(self._highest, message.promised)
        self._note_answer(link, message.id, Promise, message.granted, message.reason)

    def _note_answer(self, link: Link, id: int, kind: type, is_yes: bool, reason: str) -> None:
        asking = self._round
        # prove: answer-to-this-question " or asking.message.id != id"
        if asking is None or asking.message.id != id or type(asking.message) is not kind:
            return
        store = link.member.store
        if is_yes:
            asking.yes.add(store)
            self._proceed_if_won()
        else:
            asking.refused.add(store)
            if len(asking.refused) + len(asking.yes) >= len(asking.voters.ids) or asking.must_be_all:
                self._lose(reason)

    def _lose(self, reason: str) -> None:
        self.give_up()
        log.info("not elected: %s", reason)
        self._state.timer.rest(0.05 * self._timeout)

    def give_up(self) -> None:
        """Notify the voters that promised in this round that they may promise to other nodes."""
        lost, self._round = self._round, None
        if lost is not None and isinstance(lost.message, Promise):
            self._links.tell(Resign(lost.message.epoch, None))

    def _proceed_if_won(self) -> None:
        won = self._round
        if won is None or not won.is_won:
            return
        self._round = None
        message = won.message
        if isinstance(message, PreVote):
            self._request_promises(won.voters, None)
            return
        set_id = message.founding.set if message.founding is not None else message.set
        assert set_id is not None, "a candidate that founds no set belongs to one"
        # prove: lease-from-before-the-question "won.asked_at" -> "self._state.now()"
        self._leader.elected(message.epoch, set_id, won.voters, dict.fromkeys(won.yes, won.asked_at))

    # ---- promises

    def _request_promises(self, voters: Voters, founding: Founding | None) -> None:
        """Ask for promises of an epoch above every number heard of."""
        state = self._state
        self._follower.leave("this node is a candidate", ends_link=False)
        state.copy.end_tail()
        # prove: epoch-above-every-file "state.highest" -> "state.promise.epoch"
        epoch = 1 + max(self._highest, state.highest)
        state.promise_epoch(epoch, state.store, founding)
        self.rounds += 1
        set_id = None if founding else state.set
        milliseconds = state.settings.timeout_milliseconds
        self._ask(Promise(self.rounds, set_id, epoch, state.position, founding, milliseconds), voters)

    # ---- founding

    def _try_founding(self) -> None:
        """Found the first of all epochs when all nodes are present. The node with the highest weight requests the
        promises."""
        state, links = self._state, self._links
        if not self._leader.is_wanted or state.problem:
            return
        state.timer.rest()
        mine = links.own_entry()
        others = [each for each in links.entries() if each.store != mine.store and each.store in links.ours]
        there = [mine, *others]
        if any(each.set is not None for each in there):
            return  # a set is there: this node follows as a learner
        if len(there) != state.settings.replicas:
            state.set_waiting(f"waits for {state.settings.replicas} nodes to found the set; there are {len(there)}")
            return
        with_journal = [each for each in there if each.has_journal]
        if len(with_journal) > 1:
            names = ", ".join(each.node for each in with_journal)
            state.set_waiting(f"a set cannot be founded: {names} have a journal each; only one may")
            return
        if max(with_journal or there, key=lambda each: (each.weight, each.store)) is not mine:
            return
        voters = Voters(tuple(sorted(each.store for each in there)), {each.store: each.node for each in there})
        founding = state.promise.founding
        if founding is None or founding.voters != voters:
            founding = Founding(state.files.disk.urandom(ID_BYTES).hex(), voters)
        self._request_promises(voters, founding)


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
            may_be_candidate=self._candidate.may_be_candidate,
            is_voter=state.is_voter and promise.is_whole,
            lease_until=state.timer.lease_until,
            leads=term is not None and term.has_lease,
        )

    def pre_vote(self, link: Link, message: PreVote) -> None:
        view = self._view()
        now = self._state.now()
        has_deferred = now - self._deferred_at < self._state.settings.timeout_seconds
        reason = refusal_to_pre_vote(
            view, message.set, message.position, message.weight, now, has_deferred=has_deferred
        )
        if reason is not None and reason.startswith("after me"):
            self._deferred_at = now
        highest = self._state.highest
        link.send(PreVoteAnswer(message.id, reason is None, reason or "", highest, view.position, view.weight))

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
        return refusal_to_promise(
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
