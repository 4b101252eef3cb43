"""A simulated broker of a set: a host with a disk of its own, and the real replica beside mastership and store."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from tandemmq.broker.ha.service import AnyStandby
from tandemmq.broker.replication.member import SetAuthority, SetLocker, set_settings
from tandemmq.broker.replication.promise import Promise, PromiseFile, newest_slot
from tandemmq.broker.replication.replica import Replica
from tandemmq.broker.replication.state import ReplicaSettings
from tandemmq.config.replication import Sync
from tandemmq.journal.files import JournalFiles
from tandemmq.locker.contract import Locker, LockRequest
from tandemmq.simulator.disk import SimulatedDisk
from tandemmq.simulator.host import Host
from tandemmq.simulator.kernel import Process, World
from tandemmq.simulator.link import Link
from tandemmq.simulator.loop import SimulatedLoop
from tandemmq.simulator.member_directory import Registry, SimulatedDirectory
from tandemmq.simulator.member_network import MemberNetwork, Wires
from tandemmq.simulator.node import Node, Parts
from tandemmq.simulator.server import File, Server
from tandemmq.simulator.steps import Traps
from tandemmq.simulator.threads import SimulatedThreads
from tandemmq.store.membership import PROMISE_FILE
from tandemmq.store.standby import Standby
from tandemmq.store.threads import Threads

if TYPE_CHECKING:
    from tandemmq.simulator.simulation import Simulation

BROKER: Final = "set"
PORT: Final = 61619
#: Time between the beginnings of two passes over the sealed files.
SCRUB_SECONDS: Final = 5.0
#: Largest difference between the rates of two machines' clocks, by which leases are measured.
CLOCK_DRIFT_MAX: Final = 0.08


@dataclass(frozen=True, slots=True)
class SetOptions:
    """Settings that all members share."""

    replicas: int
    sync: Sync
    timeout_seconds: float
    catch_up_rate: int
    prefer_weight: bool
    capacity: int
    """Of each disk, in bytes."""

    @property
    def is_memory(self) -> bool:
        """Return whether receipts do not wait for the disks of a quorum."""
        return not self.sync.local_disk or self.sync.remote != "disk"


class SetNode(Node):
    """A simulated broker like ``Node``. ``lose_disk`` and ``restore_promise`` change its disk while it does not run.

    ``called``: its name in the set; ``rename`` changes it together with the address. ``identities``: number of its
    identities, one for each promise file that was made for it."""

    def __init__(
        self,
        world: World,
        name: str,
        parts: Parts,
        watcher: Simulation,
        traps: Traps,
        *,
        options: SetOptions,
        weight: int,
        wires: Wires,
        registry: Registry,
    ) -> None:
        self.options = options
        self.replica: Replica | None = None
        self._weight = weight
        self._wires = wires
        self._registry = registry
        self._network: MemberNetwork | None = None
        self._promises: PromiseFile | None = None
        self._is_dying_with_host = False
        self._promises_then: list[bytes] = []  # content of the promise file at each start
        self.disks = self.identities = 0
        self.called = name
        self._renames = 0
        self.rotten: list[tuple[str, File, int, int]] = []  # file, place and byte of each change by its disk
        self._boots = 0
        host = Host(world, f"host-{name}", _disk(world, parts, options), Link(world), attribute_seconds=0.0)
        super().__init__(world, host, name, parts, watcher, traps)
        self._clock_rate = 1 + CLOCK_DRIFT_MAX * (world.random.random() - 0.5)

    @property
    def journal(self) -> dict[str, File]:
        """Journal files on this node's disk, by name."""
        entries = self.host.server.entries(self._parts.directory)
        return {name: file for name, file in entries.items() if name.startswith("db-") and name.endswith(".log")}

    @property
    def unrepaired(self) -> set[str]:
        """Names of its journal files with damage."""
        journal = self.journal
        return {name for name, file, at, byte in self.rotten if journal.get(name) is file and file.data[at] != byte}

    # ---- a process

    def _begin(self) -> None:
        if self.process is None and self.is_wanted:
            path = f"{self._parts.directory}/{PROMISE_FILE}"
            try:
                self._promises_then.append(bytes(self.host.server.find(path).data))
            except FileNotFoundError:
                pass
        super()._begin()

    def _complete(self, process: Process) -> None:
        assert self.steps is not None, "a process takes steps"
        self._disk = disk = SimulatedDisk(process, self.host, f"/scratch/{self.name}-{self._lives}", self.steps)
        threads = SimulatedThreads(process, self.host.wall)
        parts, options = self._parts, self.options
        self._network = MemberNetwork(self._wires, process, threads, self.host.name, PORT + self._renames)
        directory = parts.directory
        self._promises = promises = PromiseFile(directory, self.called, disk)
        self.replica = replica = Replica(
            JournalFiles(directory, disk, threads.lock),
            lambda: promises,
            ReplicaSettings(
                BROKER,
                self.called,
                options.replicas,
                options.sync,
                self._weight,
                options.timeout_seconds,
                options.catch_up_rate,
                options.prefer_weight,
                has_token=True,
                boot_id=f"{self.host.name}-{self._boots}",
                scrub_interval=SCRUB_SECONDS,
            ),
            network=self._network,
            members=SimulatedDirectory(self._registry, process, self.host.name),
            threads=threads,
            chance=Random(self.world.random.getrandbits(64)),
            free_bytes=lambda: self.host.server.free,
            record=lambda kind, **facts: self._happened(process, kind, facts),
        )
        replica.on_yield = self.hand_over
        replica.start()
        self._loop = loop = SimulatedLoop(process)
        try:
            loop.complete(self._run(process, disk, threads))
        finally:
            if not process.is_dead:
                replica.end()

    def _make_locker(self, request: LockRequest, process: Process) -> Locker:
        assert self.replica is not None, "it was made first"
        return SetLocker(request, self.replica)

    def _open_standby(self, disk: SimulatedDisk, threads: Threads) -> AnyStandby:
        assert self.replica is not None, "it was made first"
        parts = self._parts
        settings = set_settings(parts.store, self.options.sync)
        index = f"{parts.directory}/index"
        authority = SetAuthority(self.replica)
        return Standby(parts.directory, index, self.name, settings, authority=authority, disk=disk, threads=threads)

    def _gone(self, process: Process) -> None:
        if self.process is not process:
            return
        self._watcher.happened(self.name, "gone", {})  # its last state counts, too
        super()._gone(process)
        if self._network is not None:
            self._wires.died(self._network, with_host=self._is_dying_with_host)
        self.replica = self._network = self._promises = None

    # ---- faults

    def kill_with_host(self, restart_seconds: float) -> None:
        """Kill the host: no node is notified, and unsynced data may be gone."""
        self._is_dying_with_host = True
        self.kill(restart_seconds)
        self._is_dying_with_host = False
        self._boots += 1
        host = self.host
        host.died()
        host.link.lose_calls_under_way()
        host.lock_link.lose_calls_under_way()
        host.server.lose_power()

    def rename(self, restart_seconds: float) -> None:
        """Kill the node; it comes back with its disk, another name and another address."""
        self.kill(restart_seconds)
        self._renames += 1
        self.called = f"{self.name}{self._renames}"

    def lose_disk(self, restart_seconds: float) -> None:
        """Kill the node; it comes back with an empty disk."""
        self.kill_with_host(restart_seconds)
        self.disks += 1
        self.identities += 1
        self.host.server = _disk(self.world, self._parts, self.options)
        self._promises_then = []

    @property
    def has_old_promises(self) -> bool:
        return bool(self._older_promises)

    @property
    def _older_promises(self) -> list[bytes]:
        """Promise files of former lives that another node has met. No node can detect an old file if none has met its
        life."""
        return [copy for copy in self._promises_then[:-1] if _is_met(copy)]

    def restore_promise(self, restart_seconds: float) -> None:
        """Put back a promise file from a backup made before the last start."""
        self.kill(restart_seconds)
        copy = self.world.random.choice(self._older_promises)
        self._replace_promise(copy)

    def remove_promise(self, restart_seconds: float) -> None:
        """Stop the node and remove its promise file, as an operator does: then it is another store."""
        self.kill(restart_seconds)
        self._replace_promise(None)
        self._promises_then = []
        self.identities += 1

    def _replace_promise(self, data: bytes | None) -> None:
        path = f"{self._parts.directory}/{PROMISE_FILE}"
        server = self.host.server
        try:
            server.unlink(path)
        except FileNotFoundError:
            pass
        if data is not None:
            file = server.open(path, 0o100)
            server.write(file, 0, data, is_stable=True)
            server.closed(file)
        server.sync_names()

    @property
    def promise(self) -> Promise | None:
        """Promise of the node; None while it does not run."""
        return None if self.replica is None or self._promises is None else self._promises.promise

    @property
    def followed_epoch(self) -> int | None:
        """Epoch of the master that it follows."""
        return None if self.replica is None else self.replica.followed_epoch

    @property
    def may_be_candidate(self) -> bool:
        return self.replica is not None and self.replica.may_be_candidate

    def is_delayed_to(self, other: SetNode) -> bool:
        """Return whether messages from this host to the other one arrive late, or after the way is opened again."""
        way = self.host.name, other.host.name
        return way in self._wires.cut or way in self._wires.slow

    def can_talk_to(self, other: SetNode) -> bool:
        """Return whether each of the two hears soon what the other one sends."""
        if self.replica is None or other.replica is None or self.store is None or other.store is None:
            return False
        if self.is_delayed_to(other) or other.is_delayed_to(self):
            return False
        return self.replica.has_link_to(other.store) and other.replica.has_link_to(self.store)

    @property
    def store(self) -> str | None:
        return None if self.replica is None else self.replica.state.store


def _is_met(promise_file: bytes) -> bool:
    slot = newest_slot(promise_file)
    return slot is not None and slot[1].is_met


def _disk(world: World, parts: Parts, options: SetOptions) -> Server:
    server = Server(world, capacity=options.capacity, keeps_open=True, is_synchronous=False)
    server.makedirs(parts.directory)
    server.makedirs("/scratch")
    server.sync_names()
    return server
