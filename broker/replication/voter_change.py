"""Changes that an operator may request of a master: add or remove a voter, and choose the next leader."""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.broker.replication.peers import Known
from tandemmq.broker.replication.quorum import ChangeRefused, Voters
from tandemmq.broker.replication.stream import Stream
from tandemmq.broker.replication.term import Term


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
        raise ChangeRefused(f"{wanted} is no voter; there are {', '.join(map(voters.name, voters.ids))}")
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
        raise ChangeRefused(f"{wanted} is no {kind}; there is {there}")
    return found[0]


def _refuse_behind(stream: Stream) -> None:
    if not stream.is_live:
        raise ChangeRefused(f"{stream.link.member.node} has not caught up")
