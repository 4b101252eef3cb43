"""Lead a set: the term, new followers, a silent quorum, changes of the voters, handover, and resignation.

The lock thread takes and releases the mastership. Everything else runs on the replica's thread, except where noted
(docs/formats/replication.md, rules 5 and 8 to 10).
"""

# proofs: replication-rules

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from tandemmq.broker.replication.messages import Begin, Follow, NotLeading, Resign
from tandemmq.broker.replication.network import Link
from tandemmq.broker.replication.peers import Known, Links
from tandemmq.broker.replication.quorum import NOWHERE, ChangeRefused, NotMaster, Voters, common_point
from tandemmq.broker.replication.state import NodeState
from tandemmq.broker.replication.stream import Stream
from tandemmq.broker.replication.term import Term, header_of_term

log = logging.getLogger(__name__)

#: A node that requested the mastership within this time would still take it.
WANTED_SECONDS: Final = 1.0
#: An elected node that no lock thread makes master resigns after this time.
TAKE_SECONDS: Final = 5.0


class Leader:
    """Leader part of a node. ``final``: position up to which the last term that this node led is final. ``on_yield``
    requests a planned handover."""

    def __init__(self, state: NodeState, links: Links, known: Known, on_yield: Callable[[], object]) -> None:
        self.final = NOWHERE
        self.elections = 0
        self.quorum_losses = 0
        self._state = state
        self._links = links
        self._known = known
        self._on_yield = on_yield
        self._timeout = state.settings.timeout_seconds
        self._wanted_at = float("-inf")
        self._taken: Term | None = None  # until ``release``
        self._elected_at = 0.0
        self._counted_loss_of = 0  # an epoch
        self._heir: str | None = None
        self._weighed_at = 0.0
        # Voters that want to follow but promised a later epoch, and the time of their first request.
        self._promised_elsewhere: dict[str, float] = {}

    # ---- the lock thread

    @property
    def is_wanted(self) -> bool:
        """Return whether this node would take the mastership."""
        return self._state.now() - self._wanted_at < WANTED_SECONDS

    def try_acquire(self) -> bool:
        """Return whether this node is elected; if so, take the mastership. The node stays a candidate for
        WANTED_SECONDS after the call."""
        self._wanted_at = self._state.now()
        term = self._state.term
        if term is None or term.is_over or term.is_taken:
            return False
        term.is_taken = True
        self._taken = term
        return True

    @property
    def has_ended_cleanly(self) -> bool:
        """Return whether the store ended the last taken term without a failure; ``release`` comes next. Other nodes may
        lead already."""
        taken = self._taken
        return taken is not None and taken.has_ended_cleanly

    def release(self) -> Term | None:
        """Stop leading. Return the term to resign from, if any."""
        self._wanted_at = float("-inf")
        self._taken = None
        term = self._state.term
        if term is None or not term.is_taken:
            return None
        term.is_taken = False
        term.end_unbegun()
        return term

    # ---- operator requests; any thread

    def propose(self, *, add: str | None = None, remove: str | None = None) -> Voters:
        """Propose the voters for the header of the next journal file, and return them. The caller begins that file.
        Raises ChangeRefused.

        ``add`` and ``remove`` are store ids, or the names of nodes that are unique among those known.
        """
        term = self._led_term()
        if add is not None:
            changed = with_voter(term, add)
        else:
            assert remove is not None, "something is to change"
            changed = without_voter(term, remove, self._state.store)
        term.propose(changed)
        return changed

    def choose_successor(self, node: str) -> None:
        """Choose the node, by name or store id, that becomes a candidate first when this node releases the mastership.
        Raises ChangeRefused; then nothing has changed."""
        self._heir = next_leader(self._led_term(), node, self._known)

    def give_up_change(self) -> None:
        """Withdraw the change of ``propose``: its file does not begin."""
        term = self._state.term
        if term is not None:
            term.give_up_change()

    def _led_term(self) -> Term:
        term = self._state.term
        if term is None or not self._state.leads:
            raise NotMaster("this node is not the master of the set")
        return term

    # ---- a thread that waits for no disk

    def send_alive(self) -> None:
        term = self._state.term
        if term is not None and not term.is_over:
            term.ask_alive(self._state.settings.timeout_milliseconds)

    # ---- the replica's thread

    def elected(self, epoch: int, set_id: str, voters: Voters, granted: dict[str, float]) -> None:
        """Begin the term. ``granted``: the voters that granted it, and when each request was sent."""
        state = self._state
        voters = voters.renamed(self._links.names())
        self._elected_at = state.now()
        state.term = Term(
            state.store,
            epoch,
            header_of_term(set_id, voters, state.copy.standing.lineage),
            state.files,
            sync=state.settings.sync,
            timeout_seconds=self._timeout,
            granted=granted,
            threads=state.threads,
        )
        self.elections += 1
        log.info("elected for epoch %d by %d of %d voters", epoch, len(granted), len(voters.ids))
        state.record("elected", epoch=epoch, by=sorted(voters.name(each) for each in granted))

    def follow(self, link: Link, message: Follow) -> None:
        """Answer a member's request for the master."""
        state, store = self._state, link.member.store
        term = state.term
        if term is None or term.is_over:
            link.send(NotLeading(state.promise.epoch))
            return
        if term.marks.first is None:  # prove: followers-come-after-the-header
            # The term may not have its header yet, because reading the present content takes long. ALIVE makes the
            # voters that granted the epoch wait.
            link.send(term.alive(state.settings.timeout_milliseconds))
            return
        if message.epoch > term.epoch:
            if store in term.marks.voters:
                self._promised_elsewhere.setdefault(store, state.now())
            return
        self._promised_elsewhere.pop(store, None)
        if message.set is not None and message.set != term.header.id:
            return
        common = NOWHERE if message.set is None else common_point(term.lineage(), message.lineage) or NOWHERE
        needed = term.needed_files()
        term.drop(store)
        # prove: former-terms-are-remembered "self._known.final(store)" -> "NOWHERE"
        acknowledged = term.returned(link, common, self._known.final(store))
        lacking = sorted({file for file in needed if file <= common[0]} - set(message.files))
        link.send(
            Begin(
                message.id,
                term.epoch,
                term.header.id,
                common,
                tuple(sorted({*state.files.list(), *needed})),
                needed,
                tuple(lacking),
                term.marks.written,
                term.marks.final,
                state.settings.sync.remote == "disk",
                acknowledged,  # prove: begin-says-what-was-acknowledged "acknowledged" -> "NOWHERE"
            )
        )
        term.add(Stream(link, term.journal, common, lacking, state.threads, rate=state.settings.catch_up_rate))

    def link_down(self, link: Link) -> None:
        term = self._state.term
        stream = None if term is None else term.stream(link.member.store)
        if term is not None and stream is not None and stream.link is link:
            term.remove(stream)

    def tick(self, term: Term) -> None:
        now = self._state.now()
        if now - term.lease_from >= term.lease_seconds and self._counted_loss_of != term.epoch:
            self._counted_loss_of = term.epoch
            self.quorum_losses += 1
            self._state.record("quorum-lost", silent=self._silent_voters(term))
        prefers_weight = self._state.settings.prefer_weight
        if prefers_weight and self._state.leads and now - self._weighed_at >= self._timeout:
            self._weighed_at = now
            self._yield_to_weight(term)
        if not term.is_taken and not term.is_over and now - self._elected_at > TAKE_SECONDS:
            term.end()
        term.send_final()
        if term.is_over:
            self.resign(term)
        elif any(now - since > 2 * self._timeout for since in self._promised_elsewhere.values()):
            # The voter cannot follow this epoch any more: only a later epoch brings it back.
            log.warning("a voter promised a later epoch: the set elects again")
            self._promised_elsewhere.clear()
            self._on_yield()

    def _silent_voters(self, term: Term) -> list[str]:
        """Return the names of the voters that do not follow."""
        voters = term.marks.voters
        return [voters.name(each) for each in voters.ids if each != self._state.store and each not in term.streams]

    def _yield_to_weight(self, term: Term) -> None:
        """Request a planned handover to a voter of a higher weight that has everything."""
        own = self._state.settings.weight
        for each in sorted(self._links.entries(), key=lambda each: -each.weight):
            stream = term.stream(each.store)
            if each.weight > own and each.store in term.marks.voters and stream and stream.is_live:
                log.info("handing over to %s, whose weight is %d", each.node, each.weight)
                self._heir = each.store
                self._on_yield()
                return

    def resign(self, term: Term) -> None:
        """Resign and follow again, once the store no longer writes."""
        state = self._state
        if state.term is not term:
            return
        if not term.has_ended.is_set():  # prove: resigns-when-nothing-is-written
            return  # tried again at each tick
        to, self._heir = self._heir or self._successor(term), None
        term.depose()
        self._links.tell(Resign(term.epoch, to))
        self.final = term.marks.final
        self._promised_elsewhere.clear()
        state.end_term()
        is_alone = state.voters is None or len(state.voters.ids) == 1
        state.timer.rest_after_leading(0.0 if is_alone else 2 * self._timeout)

    def _successor(self, term: Term) -> str | None:
        """Return the voter that should become a candidate at once: of those that follow, one that has the most. Only
        one is chosen, so two voters do not compete. None: no voter follows."""
        weights = {each.store: each.weight for each in self._links.entries()}
        places = term.marks.received()
        there = [store for store in term.streams if store in term.marks.voters and store in self._links.ours]
        return max(there, key=lambda store: (places.get(store, NOWHERE), weights.get(store, 0), store), default=None)

    def end(self, *, resigns: bool) -> None:
        """Leave the set when the process ends. A master must have released the mastership before."""
        term = self._state.term
        if term is not None:
            term.depose()
            if resigns:
                self._links.tell(Resign(term.epoch, self._successor(term)))


def with_voter(term: Term, wanted: str) -> Voters:
    """Return the voters with one more. ``wanted``, here and below: a store id, or the name of a node that is unique
    among those known. Raises ChangeRefused."""
    voters = term.marks.voters
    learners = {store: each for store, each in list(term.streams.items()) if store not in voters}
    stream = _only_one(wanted, learners, "learner that follows")
    _refuse_behind(stream)
    return _with_live_quorum(term, voters.add(stream.link.member.store, stream.link.member.node))


def without_voter(term: Term, wanted: str, own: str) -> Voters:
    """Return the voters without ``wanted``. ``own``: the master. Followers are known by their present names. Raises
    ChangeRefused."""
    streams = list(term.streams.items())
    voters = term.marks.voters.renamed({store: each.link.member.node for store, each in streams})
    found = [each for each in voters.ids if wanted in (each, voters.name(each))]
    if not found:
        raise ChangeRefused(f"{wanted} is not a voter; the voters are {', '.join(map(voters.name, voters.ids))}")
    store, *more = found
    if more:  # prove: two-voters-of-one-name-are-told-apart
        raise ChangeRefused(f"{len(found)} voters are called {wanted}: name a store id, {' or '.join(found)}")
    if store == own:  # prove: master-stays-a-voter
        raise ChangeRefused("the master does not remove itself: hand over first")
    return _with_live_quorum(term, voters.remove(store))


def _with_live_quorum(term: Term, changed: Voters) -> Voters:
    """Return the changed voters. Raises ChangeRefused if no quorum of them is alive and has caught up: the set would
    have no master."""
    live = term.live_stores()
    if not changed.have_quorum(live):  # prove: change-keeps-a-live-quorum
        missing = ", ".join(changed.name(each) for each in changed.ids if each not in live)
        raise ChangeRefused(
            f"{len(changed.ids)} voters would be left, and {changed.quorum} of them must be alive and caught up; "
            f"these are not: {missing}"
        )
    return changed


def next_leader(term: Term, wanted: str, known: Known) -> str:
    """Return the store id of the follower that can be elected when this node no longer leads. Raises ChangeRefused."""
    stream = _only_one(wanted, dict(term.streams), "follower")
    store, name = stream.link.member.store, stream.link.member.node
    if store not in term.marks.voters:
        raise ChangeRefused(f"{name} has no vote, so it cannot be elected")
    _refuse_behind(stream)
    heard = known.of(store)
    if heard is not None and (heard[0].get("problem") or not heard[0].get("is_whole", True)):
        raise ChangeRefused(f"{name} cannot be elected: {heard[0].get('problem') or 'it lacks files'}")
    return store


def _only_one(wanted: str, streams: Mapping[str, Stream], kind: str) -> Stream:
    found = [each for store, each in streams.items() if wanted in (store, each.link.member.node)]
    if len(found) != 1:
        there = ", ".join(f"{each.link.member.node} ({store})" for store, each in streams.items()) or "no node"
        raise ChangeRefused(f"{wanted} is not a {kind}; there is {there}")
    return found[0]


def _refuse_behind(stream: Stream) -> None:
    if not stream.is_live:
        raise ChangeRefused(f"{stream.link.member.node} has not caught up")
