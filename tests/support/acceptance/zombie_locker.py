"""A lock type of another distribution, for tests: the test decides who gets it, which can be two brokers.

The directory ``grants`` of its options has a file for each broker that may have the lock. A holder is never informed
that another broker has it too: only the journal's fence shows it.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from tandemmq.locker.contract import NO_PROOF, Holder, Locker, LockLost, LockRequest, Proof

KIND = "granted"


class GrantedLocker(Locker):
    kind = KIND

    def __init__(self, request: LockRequest) -> None:
        super().__init__(request)
        self._grants = str(request.options["grants"])
        self._proof = NO_PROOF

    @property
    def where(self) -> str:
        return f"the grants in {self._grants}"

    def try_acquire(self) -> bool:
        known_at = self.clock.now()
        if os.path.exists(os.path.join(self._grants, self.request.holder.name)):
            self._proof = Proof(known_at, math.inf)
        return self._proof is not NO_PROOF

    def keep_alive(self) -> bool:
        return self._proof is not NO_PROOF

    def announce(self, epoch: int, admin: str | None = None) -> None:
        if self._proof is NO_PROOF:
            raise LockLost(f"no grant was read from {self.where}")

    def release(self) -> None:
        self._proof = NO_PROOF

    def proof(self) -> Proof:
        return self._proof

    def holder(self) -> Holder | None:
        return None


def install(site: Path) -> None:
    """Make ``site`` a directory that, in PYTHONPATH, provides this lock type like an installed distribution."""
    (site / "zombie_locker.py").write_text(Path(__file__).read_text())
    information = site / "zombie_locker-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: zombie-locker\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[tandemmq.lockers]\n{KIND} = zombie_locker:GrantedLocker\n")
