"""`zookeeper`: a queue of ephemeral nodes; the first is the master's, the others wait in order.

    /tandemmq/lock                                   `path`, stays
    /tandemmq/lock/broker-<nonce>-0000000007         JSON: holder, epoch, pid, host, admin, since, nonce

A node lasts as long as its session, and a session as long as it contacts the servers: `lock_acquire_sleep_interval`,
within the bounds of the servers (by default not under twice, nor over twenty times their tickTime of 2 s). The first
stays first until its node goes: numbers only grow, and a node before ours can only vanish.

Only a listing that contains our own node shows which nodes are before us: all numbers lower than ours were given before
it was made, so a node that is not in that listing has gone, or is after us.

Our node is the one that our session made (its ephemeralOwner), identified from then on by the transaction that made it
(its czxid), and not by its name: a node that was deleted and made anew (a snapshot that was copied back by an export
and an import) may have our name and content, and another broker may have been first meanwhile.

**Proof** is a write to our own node, since a write goes by the leader, which refuses those of an ended session. Any
server would answer a read, even one that was cut off and does not know yet that we are deposed.

Its length. The leader ends a session that was silent for its length. The write does not count as contact; our server
reports our requests to the leader with its next answer to a PING, every half tick (locker.zookeeper.touches). In the
worst case it is cut off from the leader right after it has passed our write on. So a renewal is a `sync` and then the
write, begun at t:

1. The leader's answer to the sync comes to our server after a PING that left the leader at t - half a tick or later.
2. Our server answered that PING before it answered us, and so before it passed the write on, by the same connection:
   the leader has read it. It names all our requests before t - half a tick.
3. So the leader counts from the last request that was answered before t - half a tick, or a later one; or from when we
   connected. We keep the times of requests, and know that one: it is not assumed that our calls came in time.

    until = (the last request answered before t - session / 4) + session x (1 - MARGIN)

A session is two ticks or longer (minSessionTimeout), so half a tick is a quarter of it at most. MARGIN is for clocks
that run unlike ours and a leader that is late with its PINGs. If renewals come in time, the last request is the renewal
before, so until = t + session x (1 - 1/4 - MARGIN) - lock_keep_alive_period. A proof must outlast one more period and
the renewal after it (session / 8): that limits the period. Sessions end while a broker's host sleeps, and its proof is
older than that when it wakes up.
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

#: Our server reports to the leader every half tick, which is this part of a session at most; see the top of this file.
HALF_TICK: Final = 1 / 4
#: Limit of a renewal, as a part of a session.
RENEWAL: Final = 1 / 8
#: Limit of the time between two renewals, as a part of a session: a proof outlasts the next renewal.
PERIOD_MAX: Final = (1 - MARGIN - HALF_TICK - RENEWAL) / 2
#: A session that outlives its process ends after its length, rounded up to a tick: after twice its length, the owner of
#: the session is alive.
NAMESAKE_LEASES: Final = 2
#: A foreign write to our node changes its version; at most this often in a call we check that our content is still
#: there.
WRITES_MAX: Final = 2
PATH: Final = "/tandemmq/lock"
CONNECT_MS: Final = 5_000.0
NONCE_BITS: Final = 64
SEQUENCE_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """Settings of `[locker.zookeeper]`: HOST:PORT,…; the node that the brokers of one pair share; USER:PASSWORD, if
    any."""

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
    """Lock of the first in the queue under one node. Needs the extra `zookeeper`; the clocks of the brokers do not
    matter."""

    kind = "zookeeper"

    def __init__(self, request: LockRequest) -> None:
        super().__init__(request)
        self._zookeeper = ZooKeeperSettings.of(request)
        self._session = self._new_session()
        lease = self.settings.lock_acquire_sleep_interval_seconds
        if not self._outlasts_a_period(lease):
            raise LockSettingsError("lock_keep_alive_period", self._period_ms, _expected_period(lease))
        self._nonce = ""
        self._left = ""  # of the former life, whose node may outlive a release that did not reach the servers
        self._node = ""
        self._version = 0
        self._made_by = 0  # the transaction that made our node
        self._known: dict[str, Holder] = {}  # the broker of a node: that never changes
        self._namesakes: dict[str, float] = {}  # nodes with our name, and since when we see them

    @property
    def where(self) -> str:
        return f"the ZooKeeper node {self._zookeeper.path} at {self._zookeeper.hosts}"

    @property
    def lease_seconds(self) -> float:
        """Length of a session, as the servers granted it, as soon as that is known."""
        return self._session.timeout_seconds

    # Taking it

    def try_acquire(self) -> bool:
        if self._is_mine:
            return not self._is_lost
        if self._session.is_lost:
            self._begin_anew()
        self._session.connect(self._zookeeper.connect_seconds)
        self._refuse_a_short_session()
        queue = self._queue()
        mine = self._find_mine(queue)
        if mine is None:
            self._enter()  # prove: enters-before-listing order listing-with-own-node
            queue = self._queue()  # prove: listing-with-own-node
            mine = self._find_mine(queue)
        if mine is None:
            return False  # our node went between two calls: the next poll enters anew
        ahead = [node for node in queue if _number(node) < _number(mine)]
        if ahead:  # prove: first-in-the-queue
            self._stand_behind([node for node in ahead if not self._remove_left(node)])
            return False
        assert self._holder is not None, "who is in the queue has said who it is"
        self._node = f"{self._zookeeper.path}/{mine}"
        found = self._read(self._node)
        if found is None:
            return False  # as above
        # prove: node-of-our-session "found[1].ephemeralOwner != self._session.number" -> "False"
        if found[1].ephemeralOwner != self._session.number:
            self._begin_anew()
            return False
        self._version, self._made_by = found[1].version, found[1].czxid
        known_at = self.clock.now()
        if not self._renew(replace(self._holder, since_ms=time.time_ns() // 1_000_000), CALL_SECONDS_MAX):
            return False  # as above
        proof = self._proof_since(known_at)  # prove: node-written-before "known_at" -> "self.clock.now()"
        if self._session.is_lost or not proof.holds_at(self.clock.now()):  # prove: node-proved-when-taken
            return False  # or after a silence the leader may not know of us yet: after the next polls it will
        self._is_mine, self._is_lost, self._proof = True, False, proof
        return True

    def _refuse_a_short_session(self) -> None:
        """Refuse a session that the servers granted too short: what we requested is long enough, but the servers have
        limits."""
        lease = self.lease_seconds
        if not self._outlasts_a_period(lease):
            raise LockRefused(
                f"{self.where} grants us sessions of {lease:g} s. "
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
        """Return the first node of ours, even one whose creation was never answered: then there may be two."""
        return next((node for node in queue if self._nonce and f"-{self._nonce}-" in node), None)

    def _enter(self) -> None:
        """Make our node, after all others."""
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

    def _remove_left(self, node: str) -> bool:
        """Remove the node of a session that we have released. True: the node was ours."""
        from kazoo.exceptions import NoNodeError

        if not self._left or f"-{self._left}-" not in node:
            return False
        try:
            self._session.call("delete", f"{self._zookeeper.path}/{node}", seconds_max=CALL_SECONDS_MAX)
        except NoNodeError:
            pass
        return True

    def _stand_behind(self, ahead: Sequence[str]) -> None:
        """Note the brokers in front of us. Raises LockRefused when a live broker with our own name is among them."""
        now = self.clock.now()
        holders = {node: holder for node in ahead if (holder := self._holder_of(node)) is not None}
        ours = [node for node, holder in holders.items() if holder.name == self.request.holder.name]
        self._namesakes = {node: self._namesakes.get(node, now) for node in ours}
        self._finds(is_namesake=len(ours) == len(holders))
        for node, since in self._namesakes.items():
            if now - since > NAMESAKE_LEASES * self.lease_seconds:
                self._refuse_beside(holders[node], has="held or waited for")

    # Keeping it

    def keep_alive(self) -> bool:
        if not self._is_mine or self._is_lost:
            return False
        assert self._holder is not None, "an owner has said who it is"
        known_at = self.clock.now()
        try:
            is_renewed = not self._session.is_lost and self._renew(self._holder, self._renewal_seconds_max)
            self._is_lost = not is_renewed or self._session.is_lost
        except (LockUnavailable, LockRefused) as error:
            if not self._session.is_lost:  # also when rights were removed: they do not hold a lock
                raise LockUnavailable(str(error)) from error
            self._is_lost = True
        proof = self._proof_since(known_at)  # prove: node-renewed-before "known_at" -> "self.clock.now()"
        self._proof = NO_PROOF if self._is_lost else proof
        return not self._is_lost

    def _renew(self, holder: Holder, seconds_max: float) -> bool:
        """Write our node through the leader. False: it is gone, or another broker's."""
        from kazoo.exceptions import BadVersionError, NoNodeError

        until = self.clock.now() + seconds_max
        # After this answer our server has all that the leader sent before; see the top of this file.
        self._session.call("sync", self._node, seconds_max=seconds_max)  # prove: leader-heard-before-write
        content = encode(holder, self._nonce)
        for _ in range(WRITES_MAX):
            rest = max(until - self.clock.now(), 0.0)
            try:
                status = self._session.call("set", self._node, content, version=self._version, seconds_max=rest)
            except NoNodeError:
                return False
            except BadVersionError:
                # Either a write of ours that was not answered, or one of another client: the content shows which.
                found = self._read(self._node)
                if found is None or nonce_in(found[0]) != self._nonce:  # prove: node-is-still-ours
                    return False
                self._version = found[1].version
            else:
                self._version, self._holder = status.version, holder
                # prove: node-that-was-made-once "status.czxid == self._made_by" -> "True"
                return bool(status.czxid == self._made_by)
        raise LockUnavailable(f"{self.where} is unavailable: another client writes our node all the time")

    def _read(self, node: str) -> tuple[bytes, Any] | None:
        """Return content and status (kazoo's ZnodeStat); None: there is no such node."""
        from kazoo.exceptions import NoNodeError

        try:
            content, status = self._session.call("get", node, seconds_max=self.call_seconds_max)
        except NoNodeError:
            return None
        return content, status

    def release(self) -> None:
        """Close the session: the servers remove its nodes at once."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        session, self._session = self._session, self._new_session()
        self._left = self._nonce or self._left
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
        """Return all brokers in the queue, as of now."""
        self._session.connect(self._zookeeper.connect_seconds)
        contents = [self._read(f"{self._zookeeper.path}/{node}") for node in self._queue()]
        return [decode(content[0]) for content in contents if content is not None]

    def _holder_of(self, node: str) -> Holder | None:
        """Return the broker of a node as it was first read, without later changes; None: the node went. Of the lock's
        thread."""
        if node not in self._known:
            content = self._read(f"{self._zookeeper.path}/{node}")
            if content is None:
                return None
            self._known[node] = decode(content[0])
        return self._known[node]

    def _proof_since(self, known_at_seconds: float) -> Proof:
        """Return the proof of a renewal that began then; the top of this file gives the reason."""
        lease = self.lease_seconds
        told_at = known_at_seconds - lease * HALF_TICK  # prove: half-a-tick-before " - lease * HALF_TICK"
        until = self._session.counted_since(told_at) + lease * (1 - MARGIN)  # prove: node-margin " * (1 - MARGIN)"
        return Proof(known_at_seconds, until - known_at_seconds)

    # How long a session has to be

    @property
    def _renewal_seconds_max(self) -> float:
        return min(self.lease_seconds * RENEWAL, CALL_SECONDS_MAX)

    def _outlasts_a_period(self, lease_seconds: float) -> bool:
        """Return whether a proof lasts until the next one in a session of this length."""
        return self.settings.lock_keep_alive_period_seconds <= lease_seconds * PERIOD_MAX

    @property
    def _period_ms(self) -> int:
        return round(self.settings.lock_keep_alive_period_seconds * 1000)


def _expected_period(lease_seconds: float) -> str:
    return (
        f"at most {lease_seconds * PERIOD_MAX * 1000:.0f} ms for sessions of {lease_seconds:g} s "
        "(lock_acquire_sleep_interval asks for longer ones): a proof of ownership has to last until the next, and of a "
        f"session {1 - MARGIN - HALF_TICK:.0%} less one period is proved"
    )


def encode(holder: Holder, nonce: str) -> bytes:
    """Return the content of a node. `since` is set for the owner of the lock, and null for those that wait."""
    return json.dumps(holder.line(since=holder.since_ms, nonce=nonce), ensure_ascii=False).encode()


def decode(content: bytes) -> Holder:
    """Return the broker that wrote a node. Never fails: content that cannot be read was not written by us."""
    try:
        line = json.loads(content)
        return Holder.of_line(line, line["since"])
    except (ValueError, KeyError, TypeError):
        return Holder("an unknown client of ZooKeeper", since_ms=0)


def nonce_in(content: bytes) -> str | None:
    """Return the nonce of the life that wrote the node; None: there is none."""
    try:
        return str(json.loads(content)["nonce"])
    except (ValueError, KeyError, TypeError):
        return None


def _is_ours(node: str) -> bool:
    return node.startswith("broker-") and node[-SEQUENCE_DIGITS:].isdecimal()


def _number(node: str) -> int:
    return int(node[-SEQUENCE_DIGITS:])
