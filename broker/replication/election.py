"""The election rules of a node: how it answers a request for its promise, and when it may stand
(docs/formats/replication.md, rules 1 to 4).

The answers are pure functions of the node's state. The timer says which master's ALIVE this node answers, until when
that master may lead by the answers, and when a random wait after that ends. The network's thread answers ALIVE, so a
slow disk does not delay the answer; the replica's thread sets which master.
"""

# proofs: election

from __future__ import annotations

import random
from dataclasses import dataclass

from tandemmq.broker.replication.messages import Alive
from tandemmq.broker.replication.network import Link
from tandemmq.broker.replication.quorum import BEFORE_ALL, Founding, Position
from tandemmq.store.threads import Threads

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


# proofs: replication-rules


class ElectionTimer:
    """Election timer of a node. ``lease_until``: time on the clock until which a master may lead by this node's
    answers."""

    def __init__(self, timeout_seconds: float, threads: Threads, chance: random.Random) -> None:
        self.lease_until = 0.0
        self._timeout = timeout_seconds
        self._now = threads.boottime
        self._chance = chance
        self._guard = threads.lock()
        # Sender of the ALIVE to answer: by link, or by the store of a candidate that was granted an epoch and has not
        # begun it.
        self._follows: tuple[Link, int] | None = None
        self._granted: tuple[str, int] | None = None
        self._stand_at = 0.0
        self._rests_until = 0.0

    @property
    def over_at(self) -> float:
        """Time on the clock at which this node will have heard of no master for long enough."""
        return self._stand_at

    @property
    def is_over(self) -> bool:
        """Return whether this node has heard of no master for long enough."""
        return self._now() >= self._stand_at

    @property
    def may_stand(self) -> bool:
        return self.is_over and self._now() >= self._rests_until

    def answers(self, link: Link, message: Alive) -> bool:
        """Return whether this ALIVE must be answered. If so, its master may lead for that long from now on."""
        with self._guard:
            is_followed = self._follows == (link, message.epoch)
            is_granted = self._granted == (link.member.store, message.epoch)
            if not (is_followed or is_granted):  # prove: alive-of-the-followed-master
                return False
            self._hold(message.milliseconds)
            return True

    def _hold(self, milliseconds: int) -> None:
        # prove: lease-by-the-longer-timeout "max(milliseconds / 1000, self._timeout)" -> "self._timeout"
        self.lease_until = max(self.lease_until, self._now() + max(milliseconds / 1000, self._timeout))
        self._stand_at = self.lease_until + self._chance.uniform(0, WAIT) * self._timeout

    def hold_after_start(self) -> None:
        """Assume the lease of a master: the last answer of the former life is unknown, and a master may lead by it."""
        self.lease_until = self._now() + self._timeout  # prove: lease-outlives-a-restart

    def grant(self, store: str, epoch: int, milliseconds: int) -> None:
        with self._guard:
            self._granted = store, epoch
            self._hold(milliseconds)

    def follow(self, link: Link, epoch: int) -> None:
        with self._guard:
            self._follows = link, epoch
            self._hold(0)
        self._rests_until = 0.0

    def leave(self) -> None:
        """Stop answering the master that was followed; answers already given hold."""
        with self._guard:
            self._follows = None

    def answer_nobody(self) -> None:
        with self._guard:
            self._follows = self._granted = None

    def rest(self, seconds: float = 0.0) -> None:
        """Stand after a random moment, and not before ``seconds`` have passed."""
        with self._guard:
            wait = self._chance.uniform(0, WAIT) * self._timeout
            self._stand_at = max(self.lease_until, self._now() + seconds) + wait

    def rest_after_leading(self, seconds: float) -> None:
        """Like ``rest``; for ``seconds`` leave the election to the other nodes, unless one leads or gives up
        meanwhile."""
        self._rests_until = self._now() + seconds
        self.rest()

    def resigned(self, is_next: bool | None) -> None:
        """Note that the node that this one followed, or promised to, no longer leads. ``is_next``: it named this node
        to stand at once; False: it named another node; None: it named none."""
        with self._guard:
            self.lease_until = 0.0
            self._granted = None
            self._rests_until = 0.0
            wait = 0.0 if is_next else self._chance.uniform(0, 0.1) * self._timeout
            if is_next is False:
                wait += self._timeout / 2
            self._stand_at = self._now() + wait
