"""One seed: brokers, clients and faults for a while, then calm, then everything that was promised is looked at.

storm     clients work, faults come and go
calm      faults are mended; within a bound some broker must serve, and every producer have its receipts
drain     consumers leave; what the queues still hold is taken out
end       brokers end in order; the store is copied out and checked
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.core.commands import AckMode
from broker.simulate.clients import Client, Consumer, Drain, Producer
from broker.simulate.connection import BROKER_NOTICES_SECONDS, Delivery, Frame, Receipt, Refusal
from broker.simulate.database import Database
from broker.simulate.faults import KINDS, Faults, Site
from broker.simulate.host import Host
from broker.simulate.kernel import World
from broker.simulate.link import Link
from broker.simulate.node import NEVER, Node
from broker.simulate.parts import DIRECTORY, PartsOf
from broker.simulate.promises import Promises
from broker.simulate.server import File, Server
from store.check import check

STORM_SECONDS = 20.0
#: Without faults a broker serves within this, and everybody has what is due.
CALM_SECONDS_MAX = 150.0
DRAIN_SECONDS_MAX = 60.0
#: A queue from which nothing came for so long is empty.
QUIET_SECONDS = 2.0
END_SECONDS_MAX = 60.0
DATABASE_TIMEOUT_SECONDS = 2.0
#: A soft mount gives up after so long; so many volumes are mounted so.
SOFT_TIMEOUT_SECONDS = 8.0
SOFT_SHARE = 0.15
#: Room on the volume, in journal files and at least in bytes.
CAPACITY_FILES = 16
CAPACITY_MIN = 4 << 20
TRACE_LINES_MAX = 20_000
#: No batch of these clients is longer.
BATCH_BYTES_MAX = 16 << 10


@dataclass(slots=True)
class Outcome:
    """What became of a seed. ``problems``: sentences, empty when all promises held."""

    seed: int
    problems: list[str]
    fingerprint: int
    virtual_seconds: float
    faults: list[str]
    figures: dict[str, int]
    trace: list[str] = field(default_factory=list)


class Simulation:
    """See the module. Made for one seed; ``run`` once. ``make_parts`` gives what the brokers are made of."""

    def __init__(
        self,
        seed: int,
        make_parts: PartsOf,
        kinds: Sequence[str],
        *,
        brokers: int = 2,
        storm_seconds: float = STORM_SECONDS,
        is_traced: bool = False,
    ) -> None:
        self.world = world = World(seed)
        self._seed = seed
        self._kinds = [kind for kind in kinds if kind in KINDS]
        self._storm_seconds = storm_seconds
        self._is_traced = is_traced
        self.promises = Promises()
        self.problems: list[str] = []
        self.told_faults: list[str] = []
        self.trace: list[str] = []
        self.figures = {"promotions": 0, "demotions": 0, "receipts": 0, "deliveries": 0}
        chance = world.random
        is_nfs = chance.random() < 0.75
        names = [chr(ord("a") + number) for number in range(brokers)]
        self.database = Database(world)
        self._database_links = {name: Link(world, DATABASE_TIMEOUT_SECONDS) for name in names}
        self.parts = parts = make_parts(self.database, self._database_links)
        capacity = max(CAPACITY_MIN, CAPACITY_FILES * parts.store.journal_max_file_length)
        self.server = Server(
            world, capacity=capacity, keeps_open=not is_nfs or chance.random() < 0.5, is_synchronous=is_nfs
        )
        self.server.makedirs(DIRECTORY)
        self.server.makedirs("/scratch")
        self.server.sync_names()
        timeout = SOFT_TIMEOUT_SECONDS if is_nfs and chance.random() < SOFT_SHARE else None
        attribute_seconds = chance.choice((0.0, 3.0, 30.0)) if is_nfs else 0.0
        shared = None if is_nfs else Host(world, "host", self.server, Link(world), attribute_seconds=0.0)
        self.nodes = [
            Node(
                world,
                shared
                or Host(world, f"host-{name}", self.server, Link(world, timeout), attribute_seconds=attribute_seconds),
                name,
                parts,
                self,
            )
            for name in names
        ]
        self.tell(
            f"{'nfs' if is_nfs else 'one host'}, attributes {attribute_seconds:g} s, "
            f"{'soft' if timeout else 'hard'}, open files {'stay' if self.server.keeps_open else 'go'}"
        )

    # ---- what is noted

    def tell(self, what: str) -> None:
        self.told_faults.append(f"{self.world.now:8.3f} {what}")
        self._trace(f"** {what}")

    def _trace(self, text: str) -> None:
        if self._is_traced and len(self.trace) < TRACE_LINES_MAX:
            self.trace.append(f"{self.world.now:10.4f} {text}")

    def told(self, broker: str, epoch: int, frame: Frame) -> None:
        """A frame left a broker."""
        if isinstance(frame, Receipt):
            self.figures["receipts"] += 1
            verb, *ids = frame.name.split()
            if verb == "send":
                self.promises.stored(ids[1:], f"{broker} in epoch {epoch}")
            else:
                self.promises.removed(ids, epoch)
            self._trace(f"{broker}/{epoch} receipt {frame.name}")
        elif isinstance(frame, Refusal):
            # Whether its client hears of it or not: what was sent after it may have been taken.
            self.promises.may_be_reordered((frame.receipt or "").split())
        elif isinstance(frame, Delivery):
            self.figures["deliveries"] += 1
            self.promises.gave(frame.message_id, epoch, f"{broker} in epoch {epoch}")
            self._trace(f"{broker}/{epoch} message {frame.message_id}")

    def happened(self, broker: str, kind: str, facts: dict[str, object]) -> None:
        """A broker took a step, or a trouble."""
        self._trace(f"{broker} {kind} {facts}")
        if kind == "store-open":
            self.figures["promotions"] += 1
        if kind == "demoted":
            self.figures["demotions"] += "trouble" in facts
        if facts.get("trouble") in NEVER:
            self.problems.append(f"{broker}: {facts['trouble']}: {facts.get('reason')}")

    # ---- the seed

    def run(self) -> Outcome:
        world = self.world
        chance = world.random
        for node in self.nodes:
            world.after(chance.random(), node.start)
        clients = self._clients()
        producers = [client for client in clients if isinstance(client, Producer)]
        site = Site(world, self.server, self.nodes, self.database, self._database_links, DIRECTORY, self.tell)
        faults = Faults(site, self._kinds, chance.randint(1, 6), self._storm_seconds)
        world.run(self._storm_seconds, self._is_broken)
        faults.mend()
        self.tell("calm")
        self._calm(producers)
        for client in clients:
            client.stop()
        # What they were given comes back to the queues, also where the broker takes its time to notice.
        world.run(world.now + BROKER_NOTICES_SECONDS + 1.0)
        if not self._is_broken():
            self._drain()
            self._end()
        self._finish(clients)
        self.problems += self.promises.broken + world.bugs
        return Outcome(
            self._seed, self.problems, world.fingerprint, world.now, self.told_faults, self.figures, self.trace
        )

    def _is_broken(self) -> bool:
        """Whether something was found already: there is no need to go on."""
        return bool(self.problems or self.promises.broken or self.world.bugs)

    def _clients(self) -> list[Client]:
        chance = self.world.random
        clients: list[Client] = []
        for number in range(chance.randint(1, 3)):
            queue = f"Q{number % 2}"
            clients.append(
                Producer(
                    self.world,
                    f"producer-{number}",
                    self.nodes,
                    self.promises,
                    queue=queue,
                    interval_seconds=chance.choice((0.1, 0.2, 0.4)),
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
                queue=f"Q{number % 2}",
                mode=chance.choice((AckMode.INDIVIDUAL, AckMode.CLIENT)),
                prefetch=chance.choice((1, 10, 100)),
                think_seconds=chance.choice((0.01, 0.2, 1.0)),
                transacted=chance.choice((0.0, 0.2)),
            )
            for number in range(chance.randint(1, 3))
        ]
        return clients

    def _calm(self, producers: list[Producer]) -> None:
        for producer in producers:
            producer.is_producing = False
        world = self.world
        began = world.now
        # Without a lock they would depose each other for ever: then one is left alone.
        for number, node in enumerate(self.nodes):
            if number == 0 or self.parts.lock.use_lock:
                node.start()
            else:
                node.stop()
        deadline = began + CALM_SECONDS_MAX

        def is_calm() -> bool:
            return any(node.is_master for node in self.nodes) and all(producer.is_done for producer in producers)

        world.run(deadline, lambda: is_calm() or self._is_broken())
        self._trace(f"calm after {world.now - began:.1f} s")
        if self._is_broken():
            return
        if not any(node.is_master for node in self.nodes):
            self.problems.append(f"nobody is master {CALM_SECONDS_MAX:g} s after the last fault")
        elif not is_calm():
            self.problems.append(f"a producer still waits for receipts {CALM_SECONDS_MAX:g} s after the last fault")

    def _drain(self) -> None:
        world = self.world
        queues = sorted({queue for queue, _, _ in self.promises.sent.values()})
        drains = [Drain(world, f"drain-{queue}", self.nodes, self.promises, queue) for queue in queues]
        world.run(world.now + DRAIN_SECONDS_MAX, lambda: all(drain.quiet_seconds > QUIET_SECONDS for drain in drains))
        if any(drain.quiet_seconds <= QUIET_SECONDS for drain in drains):
            self.problems.append(f"the queues are not empty after {DRAIN_SECONDS_MAX:g} s")
        for drain in drains:
            drain.stop()
        self.promises.check()

    def _end(self) -> None:
        """Everything was taken out: the journal is small, and the store is sound."""
        world = self.world
        world.run(world.now + 2 * self.parts.store.cleanup_interval + self.parts.store.checkpoint_interval + 1.0)
        for node in self.nodes:
            node.stop()
        world.run(world.now + END_SECONDS_MAX, lambda: all(node.process is None for node in self.nodes))
        for node in self.nodes:
            if node.process is not None:
                self.problems.append(f"{node.name} did not end within {END_SECONDS_MAX:g} s")
        self._check_store()

    def _check_store(self) -> None:
        directory = self.server.directory(DIRECTORY)
        journal = {
            name: len(file.data)
            for name, file in (directory.entries or {}).items()
            if name.startswith("db-") and name.endswith(".log")
        }
        # The length of a file is a soft bound: a batch is never split.
        bound = 2 * (self.parts.store.journal_max_file_length + BATCH_BYTES_MAX)
        self.figures["journal_files"] = len(journal)
        if sum(journal.values()) > bound:
            self.problems.append(f"the journal takes {sum(journal.values())} bytes for nothing, in {sorted(journal)}")
        with tempfile.TemporaryDirectory(prefix="tandemmq-simulate-", dir=_memory()) as target:
            _copy_out(directory, target)
            report = check(target, scratch=_memory())
            self.problems += [f"the store is not sound: {problem}" for problem in report.problems]

    def _finish(self, clients: list[Client]) -> None:
        """No greenlet outlives the seed."""
        for client in clients:
            client.is_stopped = True
        for node in self.nodes:
            node.kill(None)


def _memory() -> str | None:
    """Where a file costs no disk."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


def _copy_out(directory: File, target: str) -> None:
    for name, file in (directory.entries or {}).items():
        path = os.path.join(target, name)
        if file.entries is not None:
            os.mkdir(path)
            _copy_out(file, path)
        else:
            with open(path, "wb") as out:
                out.write(file.data)
