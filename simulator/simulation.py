"""Run of one seed: brokers, clients and faults for a while, then calm, then every promise is checked.

storm     clients work, faults come and go
peace     sometimes: all faults end, and clients continue: the size of a running journal is checked
one hangs sometimes: one host hangs, at a random step, and nothing else; within a bound another broker serves
calm      faults end; within a bound some broker must serve, and every producer have its receipts
drain     consumers leave; the remaining messages are consumed
end       brokers end cleanly; the store is copied out and checked
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import ClassVar

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.simulator.bounds import CYCLE_SECONDS, FILES_BEYOND, SAMPLE_SECONDS, Bounds, journal_sizes
from tandemmq.simulator.clients import Client, Consumer, Drain, Producer
from tandemmq.simulator.connection import BROKER_NOTICES_SECONDS, Delivery, Frame, Receipt, Refusal
from tandemmq.simulator.database import Database
from tandemmq.simulator.faults import Faults, Site
from tandemmq.simulator.generous_lock import Grants
from tandemmq.simulator.host import Host
from tandemmq.simulator.kernel import World
from tandemmq.simulator.kinds import KINDS
from tandemmq.simulator.late_links import LATE_LINK, is_below_others
from tandemmq.simulator.link import Link
from tandemmq.simulator.node import NEVER, Node
from tandemmq.simulator.parts import DIRECTORY, PartsOf, with_late_links, with_several
from tandemmq.simulator.promises import Promises
from tandemmq.simulator.server import File, Server
from tandemmq.simulator.step_faults import GOES_AND_COMES, GOES_SECONDS_MAX, HANGING, HANGS_AT, set_hang
from tandemmq.simulator.steps import Traps
from tandemmq.simulator.tally import Tally
from tandemmq.store.tools.check_several import check_all
from tandemmq.store.tools.why.inventory import inventory, unexplained

STORM_SECONDS = 20.0
#: Numbers of brokers by default.
BROKERS = (2, 3, 5)
#: Numbers of brokers with late links.
BROKERS_OF_LATE_LINKS = (3, 4, 5)
QUEUES = ("Q0", "Q1")
#: Time without faults within which a broker serves, and every client has what is due.
CALM_SECONDS_MAX = 150.0
DRAIN_SECONDS_MAX = 60.0
#: Part of the seeds with a single hang, if hangs are among the faults.
ONE_HANGS_SHARE = 0.5
#: Part of the seeds with a time without faults, long enough to check a running journal.
PEACE_SHARE = 0.15
#: Part of the seeds with several stores, if promotions are among the faults: they must die between their fences.
SEVERAL_SHARE = 0.2
#: Part of the producers that send to one queue; the others send to both in one transaction.
SPREAD_SHARE = 0.5
PEACE_SECONDS = CYCLE_SECONDS + 5 * SAMPLE_SECONDS
#: Time within which a broker reaches a requested step.
MET_SECONDS_MAX = 15.0
#: Time within which another broker serves while one host hangs: the longest silence that broker.ha.waits allows, the
#: server's lease on the locks of a silent host, and a few pauses.
SERVES_SECONDS_MAX = 90.0
#: With late links: when the first of them is planned; the part of a storm in which faults begin; the factor by which
#: the storm may last longer; and the time after the last fault.
LATE_LINK_SECONDS = (1.0, 8.0)
LATE_SHARE = 1.0
LATE_STORMS = 3
AFTER_LATE_LINKS_SECONDS = 2.0
#: Seconds between the messages of a producer.
INTERVALS = (0.1, 0.2, 0.4)
LATE_INTERVALS = (0.03, 0.05, 0.1)
#: A queue that delivered nothing for this long is empty.
QUIET_SECONDS = 2.0
END_SECONDS_MAX = 60.0
DATABASE_TIMEOUT_SECONDS = 2.0
#: Time after which a soft mount gives up, and the part of the volumes with such a mount.
SOFT_TIMEOUT_SECONDS = 8.0
SOFT_SHARE = 0.15
#: Free space on the volume, in journal files and at least in bytes.
CAPACITY_FILES = 16
CAPACITY_MIN = 4 << 20
#: With late links: space for all that clients can send if no consumer takes it, in journal files that are half header,
#: and in five indexes. On a volume that clients filled no producer gets a receipt before a consumer takes messages, and
#: the calm would wait for that; a volume that others fill is a separate fault.
CAPACITY_LATE = 24 << 20
TRACE_LINES_MAX = 20_000
#: Longest batch of these clients.
BATCH_BYTES_MAX = 16 << 10


@dataclass(slots=True)
class Outcome:
    """Outcome of a seed. ``problems``: sentences, empty when all promises held. ``counts``: numbers of events, by group
    and name."""

    seed: int
    problems: list[str]
    fingerprint: int
    virtual_seconds: float
    faults: list[str]
    figures: dict[str, int]
    counts: dict[str, dict[str, int]]
    trace: list[str] = field(default_factory=list)


class _Contained(logging.Handler):
    """Handler that finds the errors that the broker reports only to the client concerned."""

    def __init__(self, bugs: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._bugs = bugs

    def emit(self, record: logging.LogRecord) -> None:
        if ERROR_OF_BROKER in record.getMessage():
            self._bugs.append(f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")


@dataclass(eq=False)
class Simulation:
    """Run of one seed; call ``run`` once. ``make_parts`` returns the parts of the brokers. With ``brokers`` None the
    seed decides their number."""

    brokers_by_default: ClassVar[tuple[int, ...]] = BROKERS
    peace_share: ClassVar[float] = PEACE_SHARE

    seed: int
    make_parts: InitVar[PartsOf]
    kinds: Sequence[str]
    _: KW_ONLY
    brokers: InitVar[int | None] = None
    storm_seconds: float = STORM_SECONDS
    is_traced: bool = False

    def __post_init__(self, make_parts: PartsOf, brokers: int | None) -> None:
        self.world = world = World(self.seed)
        self.promises = Promises()
        self.problems: list[str] = []
        self.faults: list[str] = []
        self.trace: list[str] = []
        self.figures = {"promotions": 0, "demotions": 0, "handovers": 0, "receipts": 0, "deliveries": 0}
        self.tally = Tally()
        self.traps = Traps()
        self._has_late_links = LATE_LINK in self.kinds
        self._late_links = 0
        chance = world.random
        if brokers is None:
            brokers = chance.choice(BROKERS_OF_LATE_LINKS if self._has_late_links else self.brokers_by_default)
        self.tally.add("brokers", str(brokers))
        self._build(make_parts, brokers)

    def _build(self, make_parts: PartsOf, brokers: int) -> None:
        """Make the brokers and the parts that they share."""
        world = self.world
        chance = world.random
        is_nfs = chance.random() < 0.75
        names = [chr(ord("a") + number) for number in range(brokers)]
        self.database = Database(world)
        links = {name: Link(world, DATABASE_TIMEOUT_SECONDS) for name in names}
        parts = make_parts(self.database, links)
        if "promotion" in self.kinds and chance.random() < SEVERAL_SHARE:
            parts = with_several(parts)
        grants = Grants()
        if self._has_late_links:
            parts = with_late_links(parts, grants)
        self.parts = parts
        self.tally.add("stores", "several" if parts.filters.entries else "one")
        # With several stores, each has its own files.
        capacity_min = CAPACITY_LATE if self._has_late_links else CAPACITY_MIN
        capacity = max(capacity_min, CAPACITY_FILES * parts.store.journal_max_file_length)
        capacity *= 2 + len(parts.filters.entries) if parts.filters.entries else 1
        self.server = Server(
            world, capacity=capacity, keeps_open=not is_nfs or chance.random() < 0.5, is_synchronous=is_nfs
        )
        self.server.makedirs(DIRECTORY)
        self.server.makedirs("/scratch")
        self.server.sync_names()
        timeout = SOFT_TIMEOUT_SECONDS if is_nfs and chance.random() < SOFT_SHARE else None
        attribute_seconds = chance.choice((0.0, 3.0, 30.0)) if is_nfs else 0.0
        shared = None if is_nfs else Host(world, "host", self.server, Link(world), attribute_seconds=0.0)
        self.nodes: list[Node] = []
        for name in names:
            link = Link(world, timeout)
            host = shared or Host(world, f"host-{name}", self.server, link, attribute_seconds=attribute_seconds)
            self.nodes.append(Node(world, host, name, parts, self, self.traps))
        self._site = Site(
            world, self.server, self.nodes, self.database, links, DIRECTORY, self.tell, self.tally, self.traps
        )
        self._site.grants = grants
        self._site.is_lock_harmed = not parts.lock.use_lock
        file_bytes = parts.store.journal_max_file_length + BATCH_BYTES_MAX
        self._bounds = Bounds(self._site, file_bytes, attribute_seconds, self.problems.append)
        self.tell(
            f"{'nfs' if is_nfs else 'one host'}, attributes {attribute_seconds:g} s, "
            f"{'soft' if timeout else 'hard'}, open files {'stay' if self.server.keeps_open else 'go'}"
        )

    # ---- notes

    def tell(self, what: str) -> None:
        self.faults.append(f"{self.world.now:8.3f} {what}")
        self._trace(f"** {what}")

    def _trace(self, text: str) -> None:
        if self.is_traced and len(self.trace) < TRACE_LINES_MAX:
            self.trace.append(f"{self.world.now:10.4f} {text}")

    def notified(self, broker: str, epoch: int, frame: Frame) -> None:
        """Note a frame that a broker sent."""
        if isinstance(frame, Receipt):
            self.figures["receipts"] += 1
            verb, *ids = frame.name.split()
            if verb == "send":
                self.promises.stored(ids[1:], f"{broker} in epoch {epoch}")
            else:
                self.promises.removed(ids, epoch)
            self._trace(f"{broker}/{epoch} receipt {frame.name}")
        elif isinstance(frame, Refusal):
            # Whether its client gets it or not: later messages may have been accepted.
            self.promises.may_be_reordered((frame.receipt or "").split())
        elif isinstance(frame, Delivery):
            self.figures["deliveries"] += 1
            self.promises.gave(frame.message_id, epoch, f"{broker} in epoch {epoch}")
            self._trace(f"{broker}/{epoch} message {frame.message_id}")

    def happened(self, broker: str, kind: str, facts: dict[str, object]) -> None:
        """Note a step or a trouble of a broker."""
        self._trace(f"{broker} {kind} {facts}")
        if kind == "store-open":
            self.figures["promotions"] += 1
        if kind == "demoted":
            self.figures["demotions"] += "trouble" in facts
        if kind == "lock-released":
            self.figures["handovers"] += 1
        self._bounds.notified(next(node for node in self.nodes if node.name == broker), kind, facts)
        if facts.get("trouble") in NEVER:
            self.problems.append(f"{broker}: {facts['trouble']}: {facts.get('reason')}")

    def fences(self, node: Node) -> None:
        """Check a promotion that is about to make its fence."""
        self._bounds.fences(node)

    def linked(self, node: Node, path: str) -> None:
        """Note that a broker gave a journal file its name."""
        is_late = is_below_others(node.host.server, path)
        if is_late:
            self.tally.add("late links", "links")
            self._late_links += 1
        if self._site.on_link is not None:
            self._site.on_link(node, path, is_late)

    def wrote(self, batch: bytes) -> None:
        """Note what a broker wrote to the journal."""
        self._bounds.written.note(self.world.now, batch)

    # ---- the seed

    def run(self) -> Outcome:
        contained = _Contained(self.world.bugs)
        log = logging.getLogger(__name__.partition(".")[0])
        log.addHandler(contained)
        try:
            return self._run()
        finally:
            log.removeHandler(contained)

    def _run(self) -> Outcome:
        world = self.world
        chance = world.random
        for node in self.nodes:
            world.after(chance.random(), node.start)
        clients = self._clients()
        producers = [client for client in clients if isinstance(client, Producer)]
        site = self._site
        self._bounds.sample_often()
        faults = self._faults()
        seconds = LATE_STORMS * self.storm_seconds if self._has_late_links else self.storm_seconds
        world.run(seconds, lambda: self._is_broken() or self._is_storm_over(faults))
        faults.mend()
        if self._may_have_one_hang() and chance.random() < ONE_HANGS_SHARE:
            self._one_hangs(site)
        if chance.random() < self.peace_share and not self._is_broken():
            self._bring_back()
            world.run(world.now + PEACE_SECONDS, self._is_broken)
        self.tell("calm")
        self._calm(producers)
        for client in clients:
            client.stop()
        # Their messages come back to the queues, also if the broker takes time to notice.
        world.run(world.now + BROKER_NOTICES_SECONDS + 1.0, lambda: not any(node.is_connected for node in self.nodes))
        if not self._is_broken():
            self._drain()
            self._end()
        self._look_back()
        self._finish(clients)
        self.problems += self.promises.broken + world.bugs
        counts = self.tally.counts()
        return Outcome(
            self.seed, self.problems, world.fingerprint, world.now, self.faults, self.figures, counts, self.trace
        )

    def _faults(self) -> Faults:
        seconds = self.storm_seconds * (LATE_SHARE if self._has_late_links else 1.0)
        faults = Faults(self._site, self.kinds, KINDS, self.world.random.randint(1, 6), seconds)
        if self._has_late_links:
            faults.plan(LATE_LINK, self.world.random.uniform(*LATE_LINK_SECONDS))
        return faults

    def _is_storm_over(self, faults: Faults) -> bool:
        """Return whether the storm can show nothing more."""
        site = self._site
        until = max(LATE_SHARE * self.storm_seconds, site.disturbed_at + AFTER_LATE_LINKS_SECONDS)
        return self._has_late_links and site.on_link is None and self.world.now > until

    def _is_broken(self) -> bool:
        """Return whether a problem was found already: then the run ends."""
        return bool(self.problems or self.promises.broken or self.world.bugs)

    def _clients(self) -> list[Client]:
        chance = self.world.random
        clients: list[Client] = []
        for number in range(chance.randint(1, 3)):
            queue = QUEUES[number % len(QUEUES)]
            clients.append(
                Producer(
                    self.world,
                    f"producer-{number}",
                    self.nodes,
                    self.promises,
                    queues=(queue,) if chance.random() < SPREAD_SHARE else QUEUES,
                    interval_seconds=chance.choice(LATE_INTERVALS if self._has_late_links else INTERVALS),
                    window=chance.choice((1, 5, 20)),
                    transacted=chance.choice((0.0, 0.2)),
                    abandons=chance.choice((0.0, 0.5)),
                )
            )
        clients += [
            Consumer(
                self.world,
                f"consumer-{number}",
                self.nodes,
                self.promises,
                queue=QUEUES[number % len(QUEUES)],
                mode=chance.choice((AckMode.INDIVIDUAL, AckMode.CLIENT)),
                prefetch=chance.choice((1, 10, 100)),
                think_seconds=chance.choice((0.01, 0.2, 1.0)),
                transacted=chance.choice((0.0, 0.2)),
            )
            for number in range(chance.randint(len(QUEUES) if self._has_late_links else 1, 3))
        ]
        return clients

    def _may_have_one_hang(self) -> bool:
        """Return whether a single host may hang: on one host all would hang, and without a lock some broker always
        serves."""
        hosts = {node.host.name for node in self.nodes}
        return "hang" in self.kinds and len(hosts) > 1 and self.parts.lock.use_lock and not self._is_broken()

    def _one_hangs(self, site: Site) -> None:
        world = self.world
        self._bring_back()
        world.run(world.now + SERVES_SECONDS_MAX, lambda: self._serves(()) or self._is_broken())
        if not self._serves(()):
            return  # the calm has its own bound
        faults = Faults(site, (), KINDS, 0, 0.0)
        met: list[Node] = []
        what, step = world.random.choice(HANGING), world.random.choice(HANGS_AT)
        set_hang(faults, what, step, None, goes=GOES_AND_COMES, told=met.append)
        world.run(world.now + MET_SECONDS_MAX, lambda: bool(met) or self._is_broken())
        if met and not self._is_broken():
            began = world.now
            # A master that had to go has finished by then.
            world.run(world.now + GOES_SECONDS_MAX)
            world.run(began + SERVES_SECONDS_MAX, lambda: self._serves(met) or self._is_broken())
            if self._serves(met):
                self.tally.add("served while one hung", f"{step.value}: {what}")
            elif not self._is_broken():
                self.problems.append(
                    f"no other broker serves {SERVES_SECONDS_MAX:g} s after the {what} hung for {met[0].name}, "
                    f"{step.value}"
                )
        faults.mend()

    def _serves(self, hung: Sequence[Node]) -> bool:
        return any(node.is_master for node in self.nodes if node not in hung)

    def _calm(self, producers: list[Producer]) -> None:
        for producer in producers:
            producer.is_producing = False
        world = self.world
        began = world.now
        self._bring_back()
        deadline = began + CALM_SECONDS_MAX

        def is_calm() -> bool:
            return any(node.is_master for node in self.nodes) and all(producer.is_done for producer in producers)

        world.run(deadline, lambda: is_calm() or self._is_broken())
        self._trace(f"calm after {world.now - began:.1f} s")
        if self._is_broken():
            return
        if not any(node.is_master for node in self.nodes):
            self.problems.append(f"no broker is master {CALM_SECONDS_MAX:g} s after the last fault")
        elif not is_calm():
            self.problems.append(f"a producer still waits for receipts {CALM_SECONDS_MAX:g} s after the last fault")

    def _bring_back(self) -> None:
        """Start the brokers. Without a lock they would depose each other forever: then only one is started."""
        for number, node in enumerate(self.nodes):
            if number == 0 or self.parts.lock.use_lock:
                node.start()
            else:
                node.stop()

    def _drain(self) -> None:
        world = self.world
        # A master that waits for its volume delivers nothing from there, although messages are left.
        world.run(max(world.now, *(node.host.link.stalls_until for node in self.nodes)))
        queues = sorted({queue for queue, _, _ in self.promises.sent.values()})
        drains = [Drain(world, f"drain-{queue}", self.nodes, self.promises, queue=queue) for queue in queues]
        world.run(world.now + DRAIN_SECONDS_MAX, lambda: all(drain.quiet_seconds > QUIET_SECONDS for drain in drains))
        if any(drain.quiet_seconds <= QUIET_SECONDS for drain in drains):
            self.problems.append(f"the queues are not empty after {DRAIN_SECONDS_MAX:g} s")
        for drain in drains:
            drain.stop()
        self.promises.check()

    def _end(self) -> None:
        """Check that the journal is small and the store is sound, after all messages were consumed."""
        world = self.world
        self._clean_up()
        for node in self.nodes:
            node.stop()
        world.run(world.now + END_SECONDS_MAX, lambda: all(node.process is None for node in self.nodes))
        for node in self.nodes:
            if node.process is not None:
                self.problems.append(f"{node.name} did not end within {END_SECONDS_MAX:g} s")
        self._check_store()

    def _clean_up(self) -> None:
        """Let the brokers reclaim what is no longer needed."""
        world = self.world
        world.run(world.now + 2 * self.parts.store.cleanup_interval + self.parts.store.checkpoint_interval + 1.0)

    def _check_store(self) -> None:
        self._check_directory(self.server.find(DIRECTORY), "the store")

    def _check_directory(self, directory: File, what: str, *, is_bounded: bool = True) -> None:
        stores = [directory, *(file for file in (directory.entries or {}).values() if file.entries is not None)]
        bound = self._drained_bytes_max
        self.figures.setdefault("journal_files", 0)
        for sizes in map(journal_sizes, stores):
            self.figures["journal_files"] += len(sizes)
            taken = sum(sizes.values())
            if taken > bound and is_bounded:
                self.problems.append(f"the journal of {what} takes {taken} bytes for nothing, in files {sorted(sizes)}")
        with tempfile.TemporaryDirectory(prefix="tandemmq-simulate-", dir=_memory()) as target:
            _copy_out(directory, target)
            report = check_all(target, scratch=_memory())
            self.problems += [f"{what} is not sound: {problem}" for problem in report.problems]
            strangers = unexplained(inventory(target))
            self.problems += [f"{thing.name} has no known purpose" for thing in strangers]

    @property
    def _drained_bytes_max(self) -> int:
        """Largest size of a journal without live messages. The length of a file is a soft bound: a batch is never
        split."""
        return FILES_BEYOND * (self.parts.store.journal_max_file_length + BATCH_BYTES_MAX)

    def _look_back(self) -> None:
        """Count the results of the seed."""
        if self._late_links:
            self.tally.add("late links", "seeds")

    def _finish(self, clients: list[Client]) -> None:
        """End all clients and brokers: no greenlet outlives the seed."""
        for client in clients:
            client.is_stopped = True
        for node in self.nodes:
            node.kill(None)
        self.database.close()


def _memory() -> str | None:
    """Return a directory in memory, where a file costs no disk."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None  # nosec B108


def _copy_out(directory: File, target: str) -> None:
    for name, file in (directory.entries or {}).items():
        path = os.path.join(target, name)
        if file.entries is not None:
            os.mkdir(path)
            _copy_out(file, path)
        else:
            with open(path, "wb") as out:
                out.write(file.data)
