"""The mastership of a set, as a lock: acquired by election, proved by the lease that a quorum keeps."""

from __future__ import annotations

from tandemmq.broker.replication.network import Entry
from tandemmq.broker.replication.replica import Replica
from tandemmq.locker.contract import NO_PROOF, Holder, Locker, LockRequest, Proof


class SetLocker(Locker):
    kind = "replication"

    def __init__(self, request: LockRequest, replica: Replica) -> None:
        super().__init__(request)
        self._replica = replica

    @property
    def where(self) -> str:
        return f"the set of {self._replica.settings.broker!r}"

    def try_acquire(self) -> bool:
        return self._replica.try_acquire()

    def keep_alive(self) -> bool:
        # A closed store has ended its term in order: until ``release`` that is no loss of the lock.
        return self._replica.is_ours or self._replica.is_let_go

    def announce(self, epoch: int, admin: str | None = None) -> None:
        """Do nothing: the replica itself publishes this in the directory."""

    def release(self) -> None:
        self._replica.release()

    def proof(self) -> Proof:
        term = self._replica.term
        if term is None or term.is_over:
            return NO_PROOF
        return Proof(term.lease_from, term.lease_seconds)

    @property
    def unsafe(self) -> str | None:
        reasons = []
        if self._replica.settings.sync.remote == "none":
            reasons.append("replication.sync waits for no other node: what is confirmed is lost with the master")
        if not self._replica.settings.has_token:
            reasons.append("replication.security_token is not set: any node may join the set")
        return "; ".join(reasons) or None

    def holder(self) -> Holder | None:
        leader = self._replica.leader()
        return None if leader is None else _holder(leader)

    def waiters(self) -> list[Holder]:
        return [_holder(each) for each in self._replica.others()]


def _holder(entry: Entry) -> Holder:
    return Holder(entry.node, entry.epoch or None, host=entry.address.rpartition(":")[0], admin=entry.admin)
