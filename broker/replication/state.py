"""State of a node of a set: its settings, its promise, its election timer, its copy of the journal, the term that it
leads. The roles share it.

The replica's thread changes it; any thread may read the present values.
"""

# proofs: replication-rules

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tandemmq.broker.replication.copy import JournalCopy
from tandemmq.broker.replication.messages import Alive
from tandemmq.broker.replication.network import Link
from tandemmq.broker.replication.promise import Origin, Promise, PromiseFile
from tandemmq.broker.replication.quorum import BEFORE_ALL, Founding, Lineage, Position, Voters
from tandemmq.broker.replication.term import Term
from tandemmq.config.replication import Sync
from tandemmq.journal.files import JournalFiles
from tandemmq.store.records.headers import SetHeader
from tandemmq.store.threads import Threads


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Settings of a replica. ``timeout_seconds``: T. ``catch_up_rate``: bytes a second, 0 for no limit. ``scrub_rate``
    and ``scrub_interval``: of the store, in bytes a second and seconds."""

    broker: str
    node: str
    replicas: int
    sync: Sync
    weight: int
    timeout_seconds: float
    catch_up_rate: int
    prefer_weight: bool = False
    has_token: bool = False
    boot_id: str = ""
    version: str = ""
    admin: str | None = None
    connectors: tuple[str, ...] = ()
    scrub_rate: int = 4 << 20
    scrub_interval: float = 3600.0

    @property
    def timeout_milliseconds(self) -> int:
        return round(self.timeout_seconds * 1000)


log = logging.getLogger(__name__)

#: Part of T, the session time-out: the longest random wait of a candidate, beyond T.
WAIT = 0.5
PROMISE_LOST: Final = "the promise file could not be written: this node takes no part until it can be"


class ElectionTimer:
    """Election timer of a node: which master's ALIVE this node answers, until when that master may lead by the answers
    (``lease_until``, on the clock), and when a random wait after that ends.

    The network's thread answers ALIVE, so a slow disk does not delay the answer; the replica's thread sets the master.
    """

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
    def may_be_candidate(self) -> bool:
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
        """Become a candidate after a random time, and not before ``seconds`` have passed."""
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
        as the next candidate; False: it named another node; None: it named none."""
        with self._guard:
            self.lease_until = 0.0
            self._granted = None
            self._rests_until = 0.0
            wait = 0.0 if is_next else self._chance.uniform(0, 0.1) * self._timeout
            if is_next is False:
                wait += self._timeout / 2
            self._stand_at = self._now() + wait


class NotStarted(Exception):
    """The node waits for free space on its volume, or for the volume."""


class NodeState:
    """State of a node. ``record`` records an event: its kind and facts."""

    def __init__(
        self,
        files: JournalFiles,
        promises: Callable[[], PromiseFile],
        settings: ReplicaSettings,
        *,
        threads: Threads,
        chance: random.Random,
        record: Callable[..., object],
    ) -> None:
        self.files = files
        self.settings = settings
        self.threads = threads
        self.record = record
        self.now = threads.boottime
        self.timer = ElectionTimer(settings.timeout_seconds, threads, chance)
        self.copy = JournalCopy(files, threads)
        self.term: Term | None = None  # that this node leads, or was elected for
        self.problem = ""  # why this node does not take full part
        self.waiting = ""  # why this node founds no set
        self._open_promises = promises
        self._opened: PromiseFile | None = None

    @property
    def _promises(self) -> PromiseFile:
        if self._opened is None:
            raise NotStarted("this node has not read its promise yet")
        return self._opened

    def open(self) -> None:
        """Read the promise, once. Raises the errors of ``promises``."""
        if self._opened is None:
            self._opened = self._open_promises()

    def start(self) -> None:
        """Read the own journal and begin. After OSError it may be called again."""
        if self.is_promise_lost:  # prove: who-found-no-room-reads-again "self.is_promise_lost" -> "False"
            self._promises.open_again()
        if self._promises.origin is Origin.RENAMED:
            log.warning("this node was called %s, and is store %s as before", self.promise.was, self.store)
        boot = self.settings.boot_id
        self.scan(has_lost_power=self.promise.boot != boot)
        self._promises.write(replace(self.promise, boot=boot))
        if self.promise.epoch:
            self.timer.hold_after_start()
        self.timer.rest()

    def close(self) -> None:
        self.copy.close()
        self._promises.close()

    # ---- the promise

    @property
    def promise(self) -> Promise:
        """Promise as it is on the disk."""
        return self._promises.promise

    def note(self, promise: Promise) -> None:
        """Write the promise if it differs from the present one; durable on return."""
        if promise != self.promise:
            self._promises.write(promise)

    def set_whole(self, is_whole: bool) -> None:
        self.note(replace(self.promise, is_whole=is_whole))

    def promise_epoch(self, epoch: int, candidate: str | None, founding: Founding | None = None) -> None:
        """Promise an epoch; durable on return. From now on nothing of an older epoch is answered or accepted."""
        self.timer.answer_nobody()  # prove: promise-ends-old-answers
        promise = self.promise
        self._promises.write(replace(promise, epoch=epoch, candidate=candidate, founding=founding or promise.founding))
        self._depose_before(epoch)

    def _depose_before(self, epoch: int) -> None:
        term = self.term
        if term is not None and term.epoch < epoch:
            term.depose()

    @property
    def is_promise_lost(self) -> bool:
        return self._promises.is_lost

    def open_promise_again(self) -> None:
        """Open the promise file again after a failure of the disk. The promise being written then may be on the disk,
        or not."""
        self._promises.open_again()
        if self.problem == PROMISE_LOST:
            self.set_problem("")
        self._depose_before(self.promise.epoch)

    # ---- identity and position

    @property
    def store(self) -> str:
        return self.promise.store

    @property
    def header(self) -> SetHeader | None:
        """The set's part of the newest header in the own journal."""
        term = self.term
        return term.header if term is not None and term.marks.first is not None else self.copy.standing.header

    @property
    def voters(self) -> Voters | None:
        """Voters by the newest header, final or not; otherwise by the founding that this node promised."""
        header = self.header
        if header is not None:
            return Voters(header.voters, header.names)
        founding = self.promise.founding
        return None if founding is None else founding.voters

    @property
    def is_voter(self) -> bool:
        voters = self.voters
        return voters is not None and self.store in voters

    @property
    def set(self) -> str | None:
        """Id of the set: by the newest header, or of the journal that is being copied before its first header came."""
        header = self.header
        if header is not None:
            return str(header.id)
        return self.promise.set if self.position > BEFORE_ALL else None

    @property
    def position(self) -> Position:
        """End of all that was received or written, synced or not."""
        term = self.term
        if term is not None and term.marks.first is not None:
            return Position(term.epoch, *term.marks.written)
        return self.copy.position

    @property
    def lineage(self) -> Lineage:
        """End of each epoch of the own journal; of the newest, the present end."""
        term = self.term
        return term.lineage() if term is not None and term.marks.first is not None else self.copy.standing.lineage

    @property
    def highest(self) -> int:
        """Highest epoch or file number that this node has or promised."""
        return max(self.promise.epoch, self.position.epoch, *self.files.list(), 0)

    @property
    def leads(self) -> bool:
        """Return whether this node is elected and was made master."""
        term = self.term
        return term is not None and not term.is_over and term.is_taken

    def set_problem(self, problem: str) -> None:
        """Set and log the problem; "" when there is none any more."""
        if problem != self.problem:
            self.problem = problem
            if problem:
                log.error("%s", problem)
            self.record("replica-problem", reason=problem)

    def set_waiting(self, reason: str) -> None:
        if reason != self.waiting:
            self.waiting = reason
            log.warning("%s", reason)

    # ---- the journal

    def scan(self, *, has_lost_power: bool = False) -> None:
        """Read the own journal. ``has_lost_power``: since this store ran last."""
        standing = self.copy.scan()
        if standing.damage is not None and has_lost_power:
            # Of written batches that were not synced, a later one may be on the disk without an earlier one, but only
            # in the last file: each file is synced before the next is begun.
            log.warning(
                "some bytes were not on the disk at the power loss: %s; all after them are removed", standing.damage
            )
            self.copy.end_tail()
            standing = self.copy.scan()
        self.end_founding()
        promise = self.promise
        if standing.position == BEFORE_ALL and promise.set is not None and promise.founding is None:
            # A header was on this disk: records that this node confirmed since are lost.
            self.set_whole(False)  # prove: missing-copy-is-not-whole
            self.set_problem(
                f"all files are missing of the journal of set {promise.set}: it is fetched from another node"
            )
        if standing.damage is not None:
            self.set_whole(False)
            self.set_problem(f"the copy of the journal is damaged, and is fetched again: {standing.damage}")

    def end_founding(self) -> None:
        """End the founding when a header of the set is on this disk: then the header names the voters. If the journal
        were lost after that, this node would be no voter. Durable on return."""
        header, promise = self.header, self.promise
        if header is not None and promise.founding is not None:
            self.note(replace(promise, set=header.id, founding=None))

    def end_term(self) -> None:
        """Become a follower again. The store no longer writes."""
        self.term = None
        self.scan()
