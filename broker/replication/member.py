"""A member of a set. ``make_replica`` makes its replica from the settings. For the broker, ``SetAuthority`` is the
authority of its store, and ``SetLocker`` is its lock: it is held while this node is master.

``leaver`` ends the membership of a stopped node: its directory becomes that of a single broker. Nothing is converted
for this: the promise file gets another name, and the journal counts as it is. Records that the set had not made final
count here, too; records that only other nodes have do not count. `Leaver.standing` reports both beforehand.
"""

from __future__ import annotations

import fcntl
import os
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import tandemmq
from tandemmq.broker.process.machine import boot_id
from tandemmq.broker.replication.copy import JournalCopy
from tandemmq.broker.replication.directory import Entry, ZooKeeperDirectory, ZooKeeperPlace
from tandemmq.broker.replication.peers import place_of, read_known, write_known
from tandemmq.broker.replication.promise import (
    SLOT_BYTES,
    SLOT_COUNT,
    Promise,
    PromiseFile,
    PromiseFileInUse,
    newest_slot,
)
from tandemmq.broker.replication.quorum import Place, Position
from tandemmq.broker.replication.replica import Replica
from tandemmq.broker.replication.state import ReplicaSettings
from tandemmq.broker.replication.tcp import TcpNetwork, TcpSettings, Tls
from tandemmq.broker.replication.term import Term
from tandemmq.broker.settings.replication import security_token, zk_password
from tandemmq.config.replication import ReplicationSettings, Sync
from tandemmq.disk import has_name, open_regular, read_fully, sync_directory
from tandemmq.journal.errors import Deposed
from tandemmq.journal.files import JournalFiles
from tandemmq.locker.contract import NO_PROOF, Holder, Locker, LockRequest, Proof
from tandemmq.store.membership import PROMISE_FILE
from tandemmq.store.records.headers import SetHeader
from tandemmq.store.settings import StoreSettings
from tandemmq.store.threads import OS_THREADS

#: Name of the promise file after the end of the membership.
LEFT: Final = f"{PROMISE_FILE}.left"
#: Interval between syncs of the master's disk if `sync` does not wait for the disk: the final place must advance.
SYNC_SECONDS = 0.1
#: Interval at which a follower reads the free bytes of its volume, and reports them to the master.
FREE_SECONDS = 0.5


def make_replica(
    options: ReplicationSettings,
    directory: str,
    broker: str,
    *,
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None,
    connectors: Sequence[str],
    admin: str | None,
    record: Callable[..., object],
    scrub_rate: int,
    scrub_interval: float,
) -> Replica:
    """Make the replica of the store in ``directory``. Nothing starts and the volume is not touched: ``Replica.open``
    does both, and raises PromiseFileInUse when another process runs there. ``tls``: contexts for incoming and for
    outgoing links; None: links are not encrypted. Raises SettingsError for a secret that cannot be read.
    """
    bind = options.bind_address
    timeout_seconds = options.zk_session_timeout / 1000
    return Replica(
        JournalFiles(directory),
        partial(PromiseFile, directory, options.node_name),
        ReplicaSettings(
            broker,
            options.node_name,
            options.replicas,
            options.sync_parts,
            options.weight,
            timeout_seconds,
            options.catch_up_rate,
            options.prefer_weight,
            bool(security_token(options)),
            # If it is unknown, each start counts as one after a power loss.
            boot_id() or os.urandom(16).hex(),
            tandemmq.__version__,
            admin,
            tuple(connectors),
            scrub_rate,
            scrub_interval,
        ),
        network=TcpNetwork(
            TcpSettings(
                bind.host,
                bind.port,
                options.advertised_hostname,
                security_token(options).encode(),
                None if tls is None else Tls(*tls),
            )
        ),
        members=ZooKeeperDirectory(
            ZooKeeperPlace(options.zk_address, options.zk_path, broker, timeout_seconds, zk_password(options))
        ),
        threads=OS_THREADS,
        free_bytes=_FreeBytes(directory).now,
        record=record,
        remember=write_known(directory),
    )


def set_settings(settings: StoreSettings, sync: Sync) -> StoreSettings:
    """Return the settings of a store in a set with this ``sync``."""
    if sync.local_disk:
        return settings
    return replace(settings, journal_disk_sync_strategy="periodic", journal_disk_sync_interval=SYNC_SECONDS)


class _FreeBytes:
    """Free bytes of a volume, read at most once in FREE_SECONDS. One thread."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._asked_at = float("-inf")
        self._free = 0

    def now(self) -> int:
        now = OS_THREADS.monotonic()
        if now - self._asked_at >= FREE_SECONDS:
            self._asked_at = now
            status = os.statvfs(self._directory)
            self._free = status.f_bavail * status.f_frsize
        return self._free


class SetAuthority:
    """The authority of a set (store.authority.Authority) for one life as standby and master: the elected epoch, and the
    quorum behind it. Another life has another one, so a call that hangs in this one writes into no later epoch."""

    leaves_end_markers = False

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._term: Term | None = None

    @property
    def horizon(self) -> tuple[int, int]:
        return self._replica.final

    def first_file(self, last: int) -> int:
        term = self._replica.state.term
        if term is None or term.is_over or term.has_begun:  # prove: an-epoch-has-one-writer
            raise Deposed(last, "this node is not elected")
        if term.epoch <= last:
            raise Deposed(term.epoch, f"db-{last}.log is there")
        self._term = term
        return term.epoch

    def check_promotion(self) -> None:
        term = self._elected
        if not term.has_lease:
            raise Deposed(term.epoch, "another node was promised a later epoch, or may have been")

    def mend(self, file: int) -> Future[bool]:
        return self._replica.scrubber.check(file)

    def damaged(self, files: Sequence[int]) -> None:
        term = self._elected
        if len(term.marks.voters.ids) > 1:
            damaged = ", ".join(map(str, files))
            raise Deposed(term.epoch, f"no member that answers has sound copies of files {damaged}")

    @property
    def free_bytes(self) -> int | None:
        return None if self._term is None else self._term.free_bytes

    def set_header(self) -> SetHeader:
        return self._elected.next_header()

    def begin(self, file: int, files: Callable[[], tuple[int, ...]]) -> None:
        self._elected.begin(files)

    def wrote(self, file: int, offset: int, data: bytes | bytearray, end: int) -> None:
        self._elected.wrote(file, offset, data, end)

    def synced(self, file: int, end: int) -> None:
        self._elected.synced(file, end)

    def settle(self, file: int, end: int, *, must_be_final: bool = False, alive: Callable[[], object]) -> None:
        self._elected.settle((file, end), must_be_final=must_be_final, alive=alive)

    def sealed(self, file: int, end: int) -> None:
        self._elected.sealed(file, end)

    def end(self) -> None:
        if self._term is not None:
            self._term.end()

    @property
    def _elected(self) -> Term:
        assert self._term is not None, "first_file comes before all else"
        return self._term


class SetLocker(Locker):
    """Acquired by election, proved by the lease that a quorum keeps."""

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
        # A closed store has ended its term cleanly: until ``release`` that is not a loss of the lock.
        return self._replica.state.leads or self._replica.has_ended_cleanly

    def announce(self, epoch: int, admin: str | None = None) -> None:
        """Do nothing: the replica itself publishes this in the directory."""

    def release(self) -> None:
        self._replica.release()

    def proof(self) -> Proof:
        term = self._replica.state.term
        if term is None or term.is_over:
            return NO_PROOF
        return Proof(term.lease_from, term.lease_seconds)

    @property
    def unsafe(self) -> str | None:
        reasons = []
        if self._replica.settings.sync.remote == "none":
            reasons.append("replication.sync waits for no other node: confirmed messages are lost with the master")
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


# ---- the end of the membership


class NotMember(Exception):
    """The directory has no promise file."""


@dataclass(frozen=True, slots=True)
class LastKnown:
    """Last report of another node."""

    node: str
    position: Position
    is_voter: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """State of a stopped node, and its knowledge of the others. ``final``: everything up to this place was final,
    and perhaps more; None: unknown.

    ``promise`` is None if no slot can be read, ``set`` if the journal has no header of a set. ``known_at``: time of the
    other knowledge, in seconds since 1970; None: there is none.
    """

    promise: Promise | None
    set: SetHeader | None
    position: Position
    damage: str | None
    final: Place | None
    others: Mapping[str, LastKnown]
    known_at: float | None

    @property
    def has_all_final(self) -> bool:
        """Return whether all of this journal was known to be final."""
        return self.final is not None and self.final >= self.position[1:]

    def ahead(self) -> list[LastKnown]:
        """Return the nodes that had more when they last reported."""
        return [each for each in self.others.values() if each.position > self.position]

    def unheard(self) -> list[str]:
        """Return the names of the voters of which nothing is known."""
        if self.set is None:
            return []
        own = None if self.promise is None else self.promise.store
        return [
            self.set.names.get(each, each[:8]) for each in self.set.voters if each != own and each not in self.others
        ]


class Leaver:
    """Ends the membership of a directory whose promise file is locked (`leaver`)."""

    def __init__(self, directory: str, promise: Promise | None) -> None:
        self._directory = directory
        self._promise = promise

    def standing(self) -> Standing:
        """Read the end of the journal, and sync it."""
        copy = JournalCopy(JournalFiles(self._directory), OS_THREADS)
        try:
            found = copy.scan()
        finally:
            copy.close()
        promise, known = self._promise, read_known(self._directory)
        members, at = ({}, None) if known is None else known
        own = members.pop(promise.store, {}) if promise is not None else {}
        others = {store: _last_known(store, status) for store, status in members.items()}
        damage = None if found.damage is None else str(found.damage)
        if damage is None and promise is not None and not promise.is_whole:
            damage = "it lacks files that it once had, or had not caught up"
        return Standing(promise, found.header, found.position, damage, place_of(own.get("final")), others, at)

    def leave(self) -> str:
        """Rename the promise file, durable on return. Return its new path."""
        left = os.path.join(self._directory, LEFT)
        os.replace(os.path.join(self._directory, PROMISE_FILE), left)
        sync_directory(os, self._directory)
        return left


@contextmanager
def leaver(directory: str) -> Iterator[Leaver]:
    """Lock the promise file: while this is open no node runs there. Raises NotMember, PromiseFileInUse, PromiseUnknown,
    OSError."""
    path = os.path.join(directory, PROMISE_FILE)
    try:
        fd = open_regular(os, path, os.O_RDWR)
    except FileNotFoundError as error:
        raise NotMember(f"{directory} belongs to no replicated set: there is no {PROMISE_FILE} in it") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PromiseFileInUse(f"a process runs in {directory}: stop it first") from error
        if not has_name(os, fd, path):  # prove: left-promise-is-the-locked-file "not has_name(os, fd, path)" -> "False"
            raise PromiseFileInUse(f"{PROMISE_FILE} in {directory} was replaced or renamed while it was opened")
        data = read_fully(os, fd, SLOT_BYTES * SLOT_COUNT, 0)
        slot = newest_slot(data)
        yield Leaver(directory, None if slot is None else slot[1])
    finally:
        os.close(fd)


def _last_known(store: str, status: Mapping[str, Any]) -> LastKnown:
    position = status.get("position")
    is_position = isinstance(position, list) and len(position) == 3 and all(type(each) is int for each in position)
    return LastKnown(
        str(status.get("node") or store[:8]),
        Position(*position) if is_position and position is not None else Position(0, 0, 0),
        bool(status.get("is_voter")),
    )
