"""A voter that is needed twice in one epoch: its first vote elects, and only its promise prevents a second one.

A minority is cut off, and the master is killed: exactly a quorum is left to elect. At the moment of the election
another node that voted is killed, and may get an older promise file. The elected node is cut off, and the voter comes
back in the minority, which knows nothing of that epoch and needs one more vote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tandemmq.simulator.set_node import SetNode

if TYPE_CHECKING:
    from tandemmq.simulator.faults import Faults
    from tandemmq.simulator.set_kinds import SetSite

POLL_SECONDS: Final = 0.05
#: Time within which a restarted node has met all others, or the fault is given up; then the time for an election.
MET_SECONDS_MAX: Final = 5.0
ELECTED_SECONDS_MAX: Final = 8.0
BACK_SECONDS: Final = 0.3
#: Time for which the two sides stay separated: a start, T for which it promises nothing, an election or two.
APART_SECONDS: Final = (4.0, 7.0)


class SecondVote:
    """Fault that begins at once. ``restores``: the voter gets its promise file from before its last start."""

    def __init__(
        self,
        faults: Faults,
        site: SetSite,
        master: SetNode,
        voter: SetNode,
        minority: Sequence[SetNode],
        *,
        restores: bool,
    ) -> None:
        self._faults = faults
        self._site = site
        self._world = site.world
        self._master = master
        self._voter = voter
        self._minority = tuple(minority)
        self._majority = tuple(node for node in site.members if node not in minority)
        self._restores = restores
        self._cut: set[tuple[str, str]] = set()
        self._undo = faults.until_mended(self._mend)
        if restores:
            voter.kill(BACK_SECONDS)  # makes an older file, of a life that all others know to have ended
        self._deadline = self._world.now + MET_SECONDS_MAX
        self._await_met()

    def _mend(self) -> None:
        self._site.on_elected = None
        self._site.wires.cut -= self._cut
        self._site.wires.resume()

    @property
    def _is_over(self) -> bool:
        return self._undo not in self._site.mending

    def _await_met(self) -> None:
        if self._is_over:
            return
        is_met = self._is_met()
        if is_met and self._master.is_master and (self._voter.has_old_promises or not self._restores):
            self._separate(self._minority, self._majority)
            self._site.on_elected = self._elected
            self._master.kill(BACK_SECONDS)
            self._world.after(ELECTED_SECONDS_MAX, lambda: None if self._site.on_elected is None else self._undo())
        elif self._world.now < self._deadline:
            if is_met and not self._voter.has_old_promises:
                self._voter.kill(BACK_SECONDS)
            self._world.after(POLL_SECONDS, self._await_met)
        else:
            self._undo()

    def _is_met(self) -> bool:
        """Return whether the voter follows, and all other nodes know its present life."""
        own = self._voter.promise
        if own is None or self._voter.followed_epoch is None:
            return False
        others = [node.promise for node in self._site.members if node is not self._voter]
        return all(other is not None and other.lives.get(own.store) == own.life for other in others)

    def _separate(self, here: Sequence[SetNode], there: Sequence[SetNode]) -> None:
        wires = self._site.wires
        ways = {(one.host.name, other.host.name) for one in here for other in there}
        ways |= {(other, one) for one, other in ways}
        self._cut |= ways - wires.cut
        wires.cut |= ways

    def _elected(self, winner: SetNode, by: Callable[[SetNode], bool]) -> None:
        """Strike after the election. Called by a thread of the winner."""
        if winner in self._majority:
            self._site.on_elected = None
            is_hit = winner is not self._voter and by(self._voter)
            self._world.after(0.0, lambda: self._strike(winner) if is_hit else self._undo())

    def _strike(self, winner: SetNode) -> None:
        if self._is_over:
            return
        voter = self._voter
        self._site.wires.cut -= self._cut
        self._cut.clear()
        self._separate([node for node in self._majority if node is not voter], [voter, *self._minority])
        self._site.wires.resume()
        what = f"{winner.name} is elected and cut off; {voter.name}, who voted, is killed"
        if self._restores and not self._site.lost:
            self._site.lost[voter.name] = None if voter.replica is None else voter.replica.state.store
            self._site.restored[voter.name] = self._world.now
            voter.restore_promise(BACK_SECONDS)
            self._faults.happened("vote-restored", f"{what}, with an old promise file")
        else:
            voter.kill(BACK_SECONDS)
            self._faults.happened("vote", what)
        self._world.after(self._world.random.uniform(*APART_SECONDS), self._undo)
