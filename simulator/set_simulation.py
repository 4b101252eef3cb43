"""Simulation of a set by one seed: members with disks of their own, a network between them, and a directory
(docs/proofs.md).

It runs like ``simulation``, with another end: all members have the same content, and each store is sound.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Final

from tandemmq.broker.replication.quorum import ChangeRefused, Voters
from tandemmq.broker.replication.replica import Replica
from tandemmq.broker.replication.term import Term
from tandemmq.config.replication import ReplicationSettings, sync_of
from tandemmq.simulator.bounds import journal_sizes
from tandemmq.simulator.clients import Client, Producer
from tandemmq.simulator.connection import Frame, Receipt
from tandemmq.simulator.database import Database
from tandemmq.simulator.faults import Faults
from tandemmq.simulator.link import Link
from tandemmq.simulator.member_directory import Registry
from tandemmq.simulator.member_network import Wires
from tandemmq.simulator.parts import DIRECTORY, PartsOf
from tandemmq.simulator.set_checks import CHECK_SECONDS, LockBounds, SetChecks
from tandemmq.simulator.set_kinds import OF_MEMORY, SET_KINDS, SET_KINDS_OF_MEMORY, SetSite
from tandemmq.simulator.set_node import SetNode, SetOptions
from tandemmq.simulator.simulation import BATCH_BYTES_MAX, CAPACITY_FILES, CAPACITY_MIN, Simulation
from tandemmq.store.store import Store

#: Numbers of members by default.
SET_BROKERS: Final = (3, 3, 5)
#: The session time-out T unless the operator set it, as in `[replication]`.
SESSION_SECONDS: Final = 2.0
FAULTS_MAX: Final = 8
#: Part of a storm in which faults come, so that they overlap. A set has made all its decisions within 3 T, and a kernel
#: gives up a silent peer within 11 s.
FAULTS_SHARE: Final = 0.6
PAUSE_SECONDS_MAX: Final = 16.0
#: Time from the last fault to the end of a storm, and its shortest length, in which a set is founded and has work.
QUIET_SECONDS: Final = 3.0
STORM_SECONDS_MIN: Final = 8.0
#: Part of the seeds in which receipts wait only for the memory of the nodes, unless the operator set `sync`.
MEMORY_SHARE: Final = 0.25
#: Time after the last fault within which a node serves: the back-off of a demoted broker, and an election.
SERVES_SECONDS_MAX: Final = 40.0
#: Time after the last message within which all nodes have everything.
COPIED_SECONDS_MAX: Final = 60.0
#: Time until its journal is small: a checkpoint of the master, checkpoints of its followers when that is final, and
#: their cleanings.
CLEANED_SECONDS_MAX: Final = 30.0
OPERATOR_SECONDS: Final = 1.0
#: Time after which an old promise file is found and removed.
FOUND_SECONDS: Final = 6.0
CHANGE_SECONDS_MAX: Final = 10.0
#: Part of the operator's checks that wait until the new store could be added at once; then the interval of the checks.
HURRY_SHARE: Final = 0.7
HURRY_SECONDS: Final = 0.0005
HURRY_SECONDS_MAX: Final = 0.5
CATCH_UP_RATES: Final = (0, 0, 64 << 10)


@dataclass(eq=False)
class SetSimulation(Simulation):
    """Run of one seed of a set; call ``run`` once. ``replication`` None: the seed decides."""

    brokers_by_default: ClassVar[tuple[int, ...]] = SET_BROKERS
    #: The checks in a time without faults apply to a shared journal.
    peace_share: ClassVar[float] = 0.0

    _: KW_ONLY
    replication: ReplicationSettings | None = None
    _operating: bool = field(default=False, init=False)
    _storm_checked_at: float = field(default=0.0, init=False)

    def _build(self, make_parts: PartsOf, brokers: int) -> None:
        world = self.world
        chance = world.random
        names = [chr(ord("a") + number) for number in range(brokers)]
        self.database = Database(world)
        links = {name: Link(world) for name in names}
        self.parts = parts = make_parts(self.database, links)
        said = self.replication
        is_memory = chance.random() < MEMORY_SHARE
        sync = said.sync if said is not None else "quorum_mem" if is_memory else "quorum_disk"
        self.tally.add("sync", sync)
        timeout = SESSION_SECONDS if said is None else said.zk_session_timeout / 1000
        options = SetOptions(
            replicas=brokers,
            sync=sync_of(sync),
            timeout_seconds=timeout,
            catch_up_rate=said.catch_up_rate if said is not None else chance.choice(CATCH_UP_RATES),
            prefer_weight=chance.random() < 0.3,
            capacity=max(CAPACITY_MIN, CAPACITY_FILES * parts.store.journal_max_file_length),
        )
        self.is_memory = options.is_memory
        self.wires = Wires(world)
        self.registry = Registry(world, timeout)
        self.members = [
            SetNode(
                world,
                name,
                parts,
                self,
                self.traps,
                options=options,
                weight=chance.choice((1, 1, 2, 5)),
                wires=self.wires,
                registry=self.registry,
            )
            for name in names
        ]
        self.nodes = list(self.members)
        self.server = self.members[0].host.server
        self._site = self._set_site = SetSite(
            world,
            self.server,
            self.nodes,
            self.database,
            links,
            DIRECTORY,
            self.tell,
            self.tally,
            self.traps,
            wires=self.wires,
            registry=self.registry,
        )
        file_bytes = parts.store.journal_max_file_length + BATCH_BYTES_MAX
        self._bounds = LockBounds(self._site, file_bytes, 0.0, self.problems.append)
        self.checks = SetChecks(self.members, DIRECTORY, self.problems.append)
        self.tell(f"{brokers} members, sync {sync}, T {timeout:g} s")
        self._operate()

    # ---- notes

    def notified(self, broker: str, epoch: int, frame: Frame) -> None:
        super().notified(broker, epoch, frame)
        if isinstance(frame, Receipt):
            self.checks.confirmed(broker, epoch)

    def happened(self, broker: str, kind: str, facts: dict[str, object]) -> None:
        super().happened(broker, kind, facts)
        node = next(node for node in self.members if node.name == broker)
        self.checks.happened(node, kind, facts)
        if kind == "elected" and self._set_site.on_elected is not None:
            by = facts["by"]
            assert isinstance(by, list), "names"
            self._set_site.on_elected(node, lambda other: other.called in by)
        if kind in ("elected", "cut", "following"):
            self.tally.add("replicas", kind)

    def wrote(self, batch: bytes) -> None:
        """Do nothing: only checks of a shared journal count written bytes."""

    # ---- the seed

    def _faults(self) -> Faults:
        begin = SET_KINDS_OF_MEMORY if self.is_memory else SET_KINDS
        kinds = self.kinds
        if self.is_memory:
            kinds = [kind for kind in kinds if kind in OF_MEMORY]
        count = self.world.random.randint(1, FAULTS_MAX)
        seconds = FAULTS_SHARE * self.storm_seconds
        faults = Faults(self._site, kinds, begin, count, seconds, PAUSE_SECONDS_MAX)
        if self.is_memory and "power" in self.kinds:  # only one node: the others have the content of its memory
            faults.plan("power", seconds * self.world.random.random())
        return faults

    def _is_storm_over(self, faults: Faults) -> bool:
        if self.world.now < self._storm_checked_at + CHECK_SECONDS:  # called after each timer
            return False
        self._storm_checked_at = self.world.now
        since = faults.quiet_since
        return (
            since is not None
            and bool(self.kinds)
            and self.world.now > max(since + QUIET_SECONDS, STORM_SECONDS_MIN)
            and not self._set_site.lost
            and all(node.process is not None for node in self.members)
        )

    def _calm(self, producers: list[Producer]) -> None:
        began = self.world.now
        self._bring_back()
        self.world.run(began + SERVES_SECONDS_MAX, lambda: self._serves(()) or self._is_broken())
        if not self._serves(()) and not self._is_broken():
            self.problems.append(f"no node is master {SERVES_SECONDS_MAX:g} s after the last fault")
            return
        took = self.world.now - began
        self.figures["slowest_calm_ms"] = round(1000 * took)
        super()._calm(producers)

    def _finish(self, clients: list[Client]) -> None:
        self.figures["slowest_election_ms"] = round(1000 * self.checks.slowest_election_seconds)
        super()._finish(clients)

    # ---- the operator

    def _operate(self) -> None:
        """Repair what only an operator can: votes that were lost with a disk."""
        self.world.after(OPERATOR_SECONDS, self._operate)
        site = self._set_site
        for node in self.members:
            put_back = site.restored.get(node.name)
            if put_back is not None and self.world.now - put_back > FOUND_SECONDS:
                del site.restored[node.name]
                node.remove_promise(1.0)
        if not site.lost or self._operating:
            return
        name = next(iter(site.lost))
        node = next(each for each in self.members if each.name == name)
        if name in site.restored or node.replica is None:
            return
        master = next((each for each in self.members if each.replica is not None and each.replica.state.leads), None)
        if master is not None and master.is_master and master.process is not None and not master.process.is_paused:
            self._operating = True
            process = master.process
            process.thread(lambda: self._change(master, node), "operator").start()
            self.world.after(CHANGE_SECONDS_MAX + 1.0, self._operated)

    def _operated(self) -> None:
        self._operating = False

    def _change(self, master: SetNode, node: SetNode) -> None:
        """Change the voters, on a thread of the master."""
        replica, mastership = master.replica, master.mastership
        term = None if replica is None else replica.state.term
        if replica is None or term is None or mastership is None or node.replica is None:
            return
        former, store = self._set_site.lost[node.name], node.replica.state.store
        voters = term.marks.voters
        removes = former is not None and former in voters and former != store
        learner = term.stream(store)
        if removes and (learner is None or not learner.is_live) and self.world.random.random() < HURRY_SHARE:
            return  # later: when it could be added at once
        try:
            if former is not None and removes:
                replica.propose(remove=former)
            elif store not in voters:
                replica.propose(add=store)
            else:
                if term.is_settled:
                    del self._set_site.lost[node.name]
                    self.tally.add("operator", "votes restored")
                return
        except ChangeRefused:
            return
        open_store = mastership.store
        rotated: Future[None] | None = open_store.rotate() if isinstance(open_store, Store) else None
        if rotated is not None and removes:
            self._hurry(master, replica, term, voters, store, rotated)
        if rotated is None or not self._is_done(master, rotated):
            replica.give_up_change()

    def _hurry(
        self, master: SetNode, replica: Replica, term: Term, before: Voters, store: str, rotated: Future[None]
    ) -> None:
        """Request the next change as soon as the present one counts: it is refused until that is final."""
        process = master.process
        assert process is not None, "it runs this thread"
        deadline = process.boot() + HURRY_SECONDS_MAX
        while term.marks.voters is before and not rotated.done():
            if process.boot() > deadline:
                return
            process.sleep(HURRY_SECONDS)
        file = term.marks.written[0]
        try:
            replica.propose(add=store)
        except ChangeRefused as reason:
            self.tally.add("operator", f"in a hurry: {str(reason).partition(',')[0]}")
            return
        if term.marks.final < (file, 0):
            self.problems.append(f"{master.name} begins a change of voters before the previous one is final")
        replica.give_up_change()

    def _is_done(self, master: SetNode, rotated: Future[None]) -> bool:
        process = master.process
        assert process is not None, "it runs this thread"
        deadline = process.boot() + CHANGE_SECONDS_MAX
        while not rotated.done() and process.boot() < deadline:
            process.sleep(0.05)
        return rotated.done() and not rotated.cancelled() and rotated.exception() is None

    # ---- the end

    def _end(self) -> None:
        """Wait until all nodes have everything, then end all nodes."""
        world = self.world
        world.run(world.now + 1.0)
        # At that moment: the master itself may continue to write.
        world.run(world.now + COPIED_SECONDS_MAX, lambda: self._is_copied() or self._is_broken())
        if self._is_broken():
            return
        if not self._is_copied():
            states = {node.name: None if node.replica is None else dict(node.replica.status()) for node in self.members}
            lacking = f"not all nodes have all data {COPIED_SECONDS_MAX:g} s after the last message"
            self.problems.append(f"{lacking}: {states}")
            return
        self.checks.check_copies()
        super()._end()

    def _clean_up(self) -> None:
        """Check that each node's journal is small when it has no live messages."""
        world = self.world
        began = world.now
        world.run(began + CLEANED_SECONDS_MAX, lambda: not self._too_long() or self._is_broken())
        self.figures["slowest_cleaning_ms"] = round(1000 * (world.now - began))
        for name, sizes in self._too_long().items():
            self.problems.append(
                f"the journal of {name} takes {sum(sizes.values())} bytes {CLEANED_SECONDS_MAX:g} s after all messages "
                f"were consumed, in files {sorted(sizes)}"
            )

    def _too_long(self) -> dict[str, dict[int, int]]:
        """Return, by name, the file sizes of journals that are longer than one without live messages."""
        journals = {node.name: journal_sizes(node.host.server.find(DIRECTORY)) for node in self.members}
        return {name: sizes for name, sizes in journals.items() if sum(sizes.values()) > self._drained_bytes_max}

    def _is_copied(self) -> bool:
        """Return whether the votes are restored, and all nodes know as final what the master has written."""
        master = next((each for each in self.members if each.is_master), None)
        term = None if master is None or master.replica is None else master.replica.state.term
        if term is None or self._set_site.lost:
            return False
        written = term.marks.written
        return not any(each.unrepaired for each in self.members) and all(
            each is master or (each.replica is not None and each.replica.final >= written) for each in self.members
        )

    def _check_store(self) -> None:
        for node in self.members:
            # A master whose followers end cannot make its last changes final; followers remove files later.
            directory = node.host.server.find(DIRECTORY)
            self._check_directory(directory, f"the store of {node.name}", is_bounded=False)
