"""The election rules: how a node answers a request for its promise (docs/formats/replication.md, rules 1 to 4).
Pure."""

# proofs: election

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.broker.replication.quorum import BEFORE_ALL, Founding, Position

#: Parts of T, the session time-out: the lease of a master, which it counts from before its question; the longest random
#: wait of a candidate, beyond T; the interval of ALIVE.
LEASE = 0.9
WAIT = 0.5
ALIVE = 0.125


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
    may_stand: bool
    is_voter: bool
    lease_until: float
    leads: bool  # with a lease that holds


def refusal_to_would(
    view: View, asker_set: str | None, position: Position, weight: int, now: float, *, has_deferred: bool
) -> str | None:
    """Return why ``view`` would not promise to the asker; None: it would. ``has_deferred``: it gave way to a node of
    lower weight not long ago."""
    reason = _refusal(view, asker_set, position, now)
    if reason is not None:
        return reason
    if position == view.position and weight < view.weight and view.may_stand and not has_deferred:
        return "after me: I am as far, and my weight is higher"
    return None


def refusal_to_promise(
    view: View, asker: str, asker_set: str | None, epoch: int, position: Position, founding: Founding | None, now: float
) -> str | None:
    """Return why ``view`` does not promise ``epoch`` to the store ``asker``; None: it does."""
    if epoch == view.epoch and asker == view.candidate:
        return None  # once more
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
        return "we are of different sets"
    if not view.is_voter:  # prove: learner-promises-nothing
        return "this node does not vote"
    if position < view.position:  # prove: behind-is-refused
        return f"behind: it stands at {tuple(position)}, this node at {tuple(view.position)}"
    if view.leads or now < view.lease_until:  # prove: lease-is-kept
        return "a master leads"
    return None
