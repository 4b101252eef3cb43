"""Lock `zookeeper`: a queue of ephemeral nodes. The broker of the first node is master, the others wait in their order.

    /tandemmq/lock                                   `path`, permanent
    /tandemmq/lock/broker-<nonce>-0000000007         JSON: holder, epoch, pid, host, admin, since, nonce

A node ends with its session. The servers end a session after a silence of `lock_acquire_sleep_interval`, which they
limit (by default to 2 to 20 times their tickTime of 2 s). The first node stays first until it is removed, because the
numbers of new nodes only grow.

Only a listing that contains our own node shows which nodes are ahead of us. All lower numbers were assigned before our
node was made, so a node that is missing in that listing was removed, or has a higher number.

We recognise our node when we take the lock by its session (ephemeralOwner), and later by the transaction that made it
(czxid), not by its name. A node that was deleted and made again (an exported snapshot was imported) may have our name
and content although another broker was first meanwhile.

**Proof.** A proof is a write to our own node, because the leader executes writes, and refuses those of an ended
session. A read proves nothing: a server that has lost its leader answers it, although our session may have ended.

**Length of a proof.** The leader ends a session after a silence of its length. A write does not count as contact at the
leader; our server reports our requests to the leader with its next answer to a PING, every half tick
(locker.zookeeper.session). In the worst case our server loses the leader right after it has forwarded our write. So a
renewal is a `sync` and then the write. If it begins at time t:

1. Our server gets the leader's answer to the sync after a PING that the leader sent at t - half a tick or later.
2. Our server answered that PING before it answered us, and so before it forwarded the write on the same connection. So
   the leader has read the answer to the PING, which reports all our requests before t - half a tick.
3. So the leader counts the silence from the last request that was answered before t - half a tick, or from a later
   request, or from our connect. We store the times of our requests, so this time is known.

    until = (the last request answered before t - session / 4) + session x (1 - MARGIN)

A session is at least two ticks long (minSessionTimeout), so half a tick is at most a quarter of it. MARGIN allows for
different clock speeds and for late PINGs of the leader. If renewals are in time, the last request is the previous
renewal: until = t + session x (1 - 1/4 - MARGIN) - lock_keep_alive_period. A proof must last for one more period and
the renewal after it (session / 8), which limits the period. If a broker's host is suspended, its session ends, and its
proof has expired when the host resumes.
"""

# proofs: zookeeper-lock

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tandemmq.locker.contract import (
    NO_PROOF,
    Holder,
    LockRefused,
    LockRequest,
    LockSettingsError,
    LockUnavailable,
    Proof,
)
from tandemmq.locker.leased import CALL_SECONDS_MAX, MARGIN, LeasedLocker
from tandemmq.locker.options import Options
from tandemmq.locker.zookeeper.session import ZooKeeperSession

#: Our server reports to the leader every half tick, which is at most this part of a session. See the module docstring.
HALF_TICK: Final = 1 / 4
#: Limit of the duration of a renewal, as a part of a session.
RENEWAL: Final = 1 / 8
#: Limit of the time between two renewals, as a part of a session, so that a proof lasts until the next renewal ends.
PERIOD_MAX: Final = (1 - MARGIN - HALF_TICK - RENEWAL) / 2
#: The session of a dead process ends after its length, rounded up to a tick. So if a session exists for longer than
#: this many times its length, its owner is alive.
NAMESAKE_LEASES: Final = 2
#: Limit of the writes in one renewal. If another client has changed the version of our node, and our content is still
#: there, the write is repeated.
WRITES_MAX: Final = 2
PATH: Final = "/tandemmq/lock"
CONNECT_MS: Final = 5_000.0
NONCE_BITS: Final = 64
SEQUENCE_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """Settings of `[locker.zookeeper]`. `hosts`: HOST:PORT,…; `path`: the node of the pair; `digest`: USER:PASSWORD, or
    None."""

    hosts: str
    path: str = PATH
    digest: str | None = None
    connect_seconds: float = CONNECT_MS / 1000

    @classmethod
    def of(cls, request: LockRequest) -> ZooKeeperSettings:
        """Read the settings of a request. Raises LockSettingsError."""
        options = Options(request.options, "zookeeper")
        hosts = options.text("hosts")
        if hosts is None:
            raise LockSettingsError("zookeeper.hosts", None, "HOST:PORT,HOST:PORT,…")
        path = options.text("path") or PATH
        if not path.startswith("/") or path.endswith("/") or "//" in path:
            raise LockSettingsError("zookeeper.path", path, 'the path of a node, as "/tandemmq/lock"')
        digest = options.text("digest")
        if digest is not None and not all(digest.partition(":")):
            raise LockSettingsError("zookeeper.digest", "***", "USER:PASSWORD")
        connect_seconds = options.number("connect_timeout", CONNECT_MS) / 1000
        options.end()
        return cls(hosts, path, digest, connect_seconds)


class ZooKeeperLocker(LeasedLocker):
    """Lock of the broker with the first node under `path`. It needs the extra `zookeeper`. The clocks of the brokers
    need not agree."""

    kind = "zookeeper"

    def __init__(self, request: LockRequest) -> None:
        super().__init__(request)
        self._zookeeper = ZooKeeperSettings.of(request)
        self._session = self._new_session()
        lease = self.settings.lock_acquire_sleep_interval_seconds
        if not self._outlasts_a_period(lease):
            raise LockSettingsError("lock_keep_alive_period", self._period_ms, _expected_period(lease))
        self._nonce = ""
        self._former_nonce = ""  # of the former life; its node remains if the release did not reach the servers
        self._node = ""
        self._version = 0
        self._made_by = 0  # the transaction that made our node
        self._known: dict[str, Holder] = {}  # the broker of each node that was read
        self._namesakes: dict[str, float] = {}  # nodes with our name, and when we saw them first

    @property
    def where(self) -> str:
        return f"the ZooKeeper node {self._zookeeper.path} at {self._zookeeper.hosts}"

    @property
    def lease_seconds(self) -> float:
        """Length of the session: the granted one, or the requested one before the first connect."""
        return self._session.timeout_seconds

    # Acquiring

    def try_acquire(self) -> bool:
        if self._is_mine:
            return not self._is_lost
        if self._session.is_lost:
            self._reset()
        self._session.connect(self._zookeeper.connect_seconds)
        self._refuse_a_short_session()
        queue = self._queue()
        mine = self._find_mine(queue)
        if mine is None:
            self._enter()  # prove: enters-before-listing order listing-with-own-node
            queue = self._queue()  # prove: listing-with-own-node
            mine = self._find_mine(queue)
        if mine is None:
            return False  # our node was removed between two calls; the next poll makes another one
        ahead = [node for node in queue if _number(node) < _number(mine)]
        if ahead:  # prove: first-in-the-queue
            self._wait_behind([node for node in ahead if not self._remove_former(node)])
            return False
        assert self._holder is not None, "a broker in the queue has a holder entry"
        self._node = f"{self._zookeeper.path}/{mine}"
        found = self._read(self._node)
        if found is None:
            return False  # removed between two calls
        # prove: node-of-our-session "found[1].ephemeralOwner != self._session.number" -> "False"
        if found[1].ephemeralOwner != self._session.number:
            self._reset()
            return False
        self._version, self._made_by = found[1].version, found[1].czxid
        known_at = self.clock.now()
        if not self._renew(replace(self._holder, since_ms=time.time_ns() // 1_000_000), CALL_SECONDS_MAX):
            return False  # removed between two calls
        proof = self._proof_since(known_at)  # prove: node-written-before "known_at" -> "self.clock.now()"
        if self._session.is_lost or not proof.holds_at(self.clock.now()):  # prove: node-proved-when-taken
            return False  # also if the leader may not know our last requests yet; a later poll gets a valid proof
        self._is_mine, self._is_lost, self._proof = True, False, proof
        return True

    def _refuse_a_short_session(self) -> None:
        """Raise LockRefused if the servers granted a session that is too short for the keep-alive period."""
        lease = self.lease_seconds
        if not self._outlasts_a_period(lease):
            raise LockRefused(
                f"{self.where} grants sessions of {lease:g} s. "
                f"{LockSettingsError('lock_keep_alive_period', self._period_ms, _expected_period(lease))}"
            )

    def _queue(self) -> list[str]:
        from kazoo.exceptions import NoNodeError

        try:
            names = self._session.call("get_children", self._zookeeper.path, seconds_max=CALL_SECONDS_MAX)
        except NoNodeError:
            return []
        return sorted((name for name in names if _is_ours(name)), key=_number)

    def _find_mine(self, queue: Sequence[str]) -> str | None:
        """Return our first node, or None. There may be two, if the creation of the first one got no answer."""
        return next((node for node in queue if self._nonce and f"-{self._nonce}-" in node), None)

    def _enter(self) -> None:
        """Make our node at the end of the queue."""
        self._nonce = self._nonce or f"{self.request.random.getrandbits(NONCE_BITS):0{NONCE_BITS // 4}x}"
        self._holder = replace(self.request.holder, epoch=None, since_ms=None)
        self._session.call(
            "create",
            f"{self._zookeeper.path}/broker-{self._nonce}-",
            encode(self._holder, self._nonce),
            ephemeral=True,
            sequence=True,
            makepath=True,
            seconds_max=CALL_SECONDS_MAX,
        )

    def _remove_former(self, node: str) -> bool:
        """Remove the node if it is of our former life. Return whether it was."""
        from kazoo.exceptions import NoNodeError

        if not self._former_nonce or f"-{self._former_nonce}-" not in node:
            return False
        try:
            self._session.call("delete", f"{self._zookeeper.path}/{node}", seconds_max=CALL_SECONDS_MAX)
        except NoNodeError:
            pass
        return True

    def _wait_behind(self, ahead: Sequence[str]) -> None:
        """Note the brokers ahead of us. Raises LockRefused if a live broker with our own name is among them."""
        now = self.clock.now()
        holders = {node: holder for node in ahead if (holder := self._holder_of(node)) is not None}
        ours = [node for node, holder in holders.items() if holder.name == self.request.holder.name]
        self._namesakes = {node: self._namesakes.get(node, now) for node in ours}
        self._note_namesake(is_namesake=len(ours) == len(holders))
        for node, since in self._namesakes.items():
            if now - since > NAMESAKE_LEASES * self.lease_seconds:
                self._refuse_namesake(holders[node], has="held or waited for")

    # Renewing

    def keep_alive(self) -> bool:
        if not self._is_mine or self._is_lost:
            return False
        assert self._holder is not None, "an owner has a holder entry"
        known_at = self.clock.now()
        try:
            is_renewed = not self._session.is_lost and self._renew(self._holder, self._renewal_seconds_max)
            self._is_lost = not is_renewed or self._session.is_lost
        except (LockUnavailable, LockRefused) as error:
            if not self._session.is_lost:  # the lock may still be ours, also if rights were removed
                raise LockUnavailable(str(error)) from error
            self._is_lost = True
        proof = self._proof_since(known_at)  # prove: node-renewed-before "known_at" -> "self.clock.now()"
        self._proof = NO_PROOF if self._is_lost else proof
        return not self._is_lost

    def _renew(self, holder: Holder, seconds_max: float) -> bool:
        """Write our node through the leader. Return False if it was removed, or is not the node that we made."""
        from kazoo.exceptions import BadVersionError, NoNodeError

        until = self.clock.now() + seconds_max
        # When this is answered, our server has received all that the leader sent before. See the module docstring.
        self._session.call("sync", self._node, seconds_max=seconds_max)  # prove: leader-heard-before-write
        content = encode(holder, self._nonce)
        for _ in range(WRITES_MAX):
            rest = max(until - self.clock.now(), 0.0)
            try:
                status = self._session.call("set", self._node, content, version=self._version, seconds_max=rest)
            except NoNodeError:
                return False
            except BadVersionError:
                # Our last write got no answer, or another client wrote the node. The content shows whether it is ours.
                found = self._read(self._node)
                if found is None or nonce_in(found[0]) != self._nonce:  # prove: node-is-still-ours
                    return False
                self._version = found[1].version
            else:
                self._version, self._holder = status.version, holder
                # prove: node-that-was-made-once "status.czxid == self._made_by" -> "True"
                return bool(status.czxid == self._made_by)
        raise LockUnavailable(f"{self.where} is unavailable: another client keeps writing the node of this broker")

    def _read(self, node: str) -> tuple[bytes, Any] | None:
        """Return (content, kazoo's ZnodeStat) of a node, or None if it does not exist."""
        from kazoo.exceptions import NoNodeError

        try:
            content, status = self._session.call("get", node, seconds_max=self.call_seconds_max)
        except NoNodeError:
            return None
        return content, status

    def release(self) -> None:
        """Close the session, so that the servers remove its nodes at once."""
        self._reset()

    def _reset(self) -> None:
        session, self._session = self._session, self._new_session()
        self._former_nonce = self._nonce or self._former_nonce
        self._forget()
        self._nonce = ""
        self._known.clear()
        self._namesakes.clear()
        session.close()

    def _new_session(self) -> ZooKeeperSession:
        lease = self.settings.lock_acquire_sleep_interval_seconds
        return ZooKeeperSession(self.where, self._zookeeper.hosts, lease, self._zookeeper.digest, self.clock)

    # Reporting

    def holder(self) -> Holder | None:
        """Return the holder. Any thread."""
        mine = self._mine
        if mine is not None:
            return mine
        return next((holder for holder in self._holders() if holder.since_ms is not None), None)

    def waiters(self) -> list[Holder]:
        """Return the waiting brokers. Any thread."""
        return [holder for holder in self._holders() if holder.since_ms is None]

    def _holders(self) -> list[Holder]:
        """Read all brokers in the queue, in its order."""
        self._session.connect(self._zookeeper.connect_seconds)
        contents = [self._read(f"{self._zookeeper.path}/{node}") for node in self._queue()]
        return [decode(content[0]) for content in contents if content is not None]

    def _holder_of(self, node: str) -> Holder | None:
        """Return the broker of a node, without changes after its first read, or None if the node does not exist. For
        the thread of the lock."""
        if node not in self._known:
            content = self._read(f"{self._zookeeper.path}/{node}")
            if content is None:
                return None
            self._known[node] = decode(content[0])
        return self._known[node]

    def _proof_since(self, known_at_seconds: float) -> Proof:
        """Return the proof of a renewal that began at `known_at_seconds`. See the module docstring."""
        lease = self.lease_seconds
        reported_at = known_at_seconds - lease * HALF_TICK  # prove: half-a-tick-before " - lease * HALF_TICK"
        until = self._session.counted_since(reported_at) + lease * (1 - MARGIN)  # prove: node-margin " * (1 - MARGIN)"
        return Proof(known_at_seconds, until - known_at_seconds)

    # Length of a session

    @property
    def _renewal_seconds_max(self) -> float:
        return min(self.lease_seconds * RENEWAL, CALL_SECONDS_MAX)

    def _outlasts_a_period(self, lease_seconds: float) -> bool:
        """Return whether a proof in a session of this length lasts until the end of the next renewal."""
        return self.settings.lock_keep_alive_period_seconds <= lease_seconds * PERIOD_MAX

    @property
    def _period_ms(self) -> int:
        return round(self.settings.lock_keep_alive_period_seconds * 1000)


def _expected_period(lease_seconds: float) -> str:
    return (
        f"at most {lease_seconds * PERIOD_MAX * 1000:.0f} ms for sessions of {lease_seconds:g} s "
        "(for longer sessions, set lock_acquire_sleep_interval): a proof of ownership lasts for "
        f"{1 - MARGIN - HALF_TICK:.0%} of a session less one period, and must last until the next proof"
    )


def encode(holder: Holder, nonce: str) -> bytes:
    """Return the content of a node. `since` is null until its broker owns the lock."""
    return json.dumps(holder.line(since=holder.since_ms, nonce=nonce), ensure_ascii=False).encode()


def decode(content: bytes) -> Holder:
    """Return the broker that wrote a node. Never raises: content in another form is that of an unknown client."""
    try:
        line = json.loads(content)
        return Holder.of_line(line, line["since"])
    except (ValueError, KeyError, TypeError):
        return Holder("an unknown client of ZooKeeper", since_ms=0)


def nonce_in(content: bytes) -> str | None:
    """Return the nonce in the content of a node, or None."""
    try:
        return str(json.loads(content)["nonce"])
    except (ValueError, KeyError, TypeError):
        return None


def _is_ours(node: str) -> bool:
    return node.startswith("broker-") and node[-SEQUENCE_DIGITS:].isdecimal()


def _number(node: str) -> int:
    return int(node[-SEQUENCE_DIGITS:])
