"""Timer that sets when a node may stand: which master's ALIVE it answers, until when that master may lead by the
answers, and a random wait after that.

The network's thread answers ALIVE, so a slow disk does not delay the answer; the replica's thread sets which master.
"""

# proofs: replication-rules

from __future__ import annotations

import random

from tandemmq.broker.replication import election
from tandemmq.broker.replication.messages import Alive
from tandemmq.broker.replication.network import Link
from tandemmq.store.threads import Threads


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
            if not (is_followed or is_granted):  # prove: alive-of-whom-we-follow
                return False
            self._hold(message.milliseconds)
            return True

    def _hold(self, milliseconds: int) -> None:
        # prove: lease-by-the-longer-timeout "max(milliseconds / 1000, self._timeout)" -> "self._timeout"
        self.lease_until = max(self.lease_until, self._now() + max(milliseconds / 1000, self._timeout))
        self._stand_at = self.lease_until + self._chance.uniform(0, election.WAIT) * self._timeout

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
            wait = self._chance.uniform(0, election.WAIT) * self._timeout
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
