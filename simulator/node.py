"""A simulated broker: a host's process with the real mastership, lock, store and engine in it.

It is started again whenever it ends, as by a supervisor. Frames to clients go to the ``Simulation``, which checks that
the broker keeps its promises.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandemmq.broker.core.commands import Command
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.part import Loop
from tandemmq.broker.ha.mastership import Mastership
from tandemmq.broker.ha.service import AnyStandby, AnyStore
from tandemmq.broker.ha.states import Trouble
from tandemmq.locker.contract import Clock, Holder, Locker, LockRequest, LockSettings
from tandemmq.simulator.connection import Connection, Frame
from tandemmq.simulator.disk import SimulatedDisk
from tandemmq.simulator.host import Host
from tandemmq.simulator.kernel import Process, World, call_all
from tandemmq.simulator.loop import SimulatedLoop
from tandemmq.simulator.steps import Steps, Traps
from tandemmq.simulator.threads import SimulatedClock, SimulatedThreads
from tandemmq.store.settings import StoreSettings
from tandemmq.store.several.filters import Filters
from tandemmq.store.several.standbys import SeveralStandbys
from tandemmq.store.standby import Standby
from tandemmq.store.threads import Threads

if TYPE_CHECKING:
    from tandemmq.simulator.clients import Client
    from tandemmq.simulator.simulation import Simulation

TICK_SECONDS = 1.0
#: Limit of the wait for receipts on their way at a handover.
PENDING_SECONDS_MAX = 1.0
#: Time after which a supervisor starts a broker again.
RESTART_SECONDS = 1.0
#: Largest difference between the rates of two machines' clocks.
CLOCK_DRIFT_MAX = 0.002

#: The last argument is called when the lock's server, if that is not the volume, has given it the lock.
MakeLocker = Callable[[LockRequest, Process, Host, Callable[[], None]], Locker]


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of every broker of a simulation."""

    directory: str
    store: StoreSettings
    engine: EngineSettings
    lock: LockSettings
    make_locker: MakeLocker
    filters: Filters
    """Of several stores; empty: there is one."""

    def open_standby(self, broker: str, disk: SimulatedDisk, threads: Threads) -> AnyStandby:
        if self.filters.entries:
            return SeveralStandbys(self.directory, None, broker, self.store, self.filters, disk=disk, threads=threads)
        return Standby(self.directory, f"{self.directory}/index", broker, self.store, disk=disk, threads=threads)


class Node:
    """A simulated broker. ``start`` starts it; the other methods are faults and commands from outside."""

    def __init__(self, world: World, host: Host, name: str, parts: Parts, watcher: Simulation, traps: Traps) -> None:
        self.world = world
        self.host = host
        self.name = name
        self.process: Process | None = None
        self.mastership: Mastership | None = None
        self.engine: Engine | None = None
        self.steps: Steps | None = None
        self.is_reachable = True  # by clients
        self.is_wanted = False
        self._parts = parts
        self._watcher = watcher
        self._traps = traps
        self._clock_rate = 1 + CLOCK_DRIFT_MAX * (world.random.random() - 0.5)
        self._disk: SimulatedDisk | None = None
        self._loop: SimulatedLoop | None = None
        self._locker: Locker | None = None
        self._connections: list[Connection] = []
        self._connections_made = 0
        self._epoch = 0
        self._lives = 0
        self._held: list[Callable[[], object]] = []
        self._ticking: asyncio.Task[None] | None = None

    # ---- a process

    def start(self) -> None:
        """Run the broker, and run it again whenever it ends, until ``stop`` or ``kill``."""
        self.is_wanted = True
        if self.process is None:
            self._begin()

    def _begin(self) -> None:
        if self.process is not None or not self.is_wanted:
            return
        self._lives += 1
        process = Process(
            self.world, self.name, clock_rate=self._clock_rate, clock_began=1000.0 * (1 + self.world.random.random())
        )
        self.process = process
        watcher = self._watcher
        self.steps = Steps(
            process, self._traps, watcher.wrote, lambda: watcher.fences(self), lambda path: watcher.linked(self, path)
        )
        process.thread(lambda: self._live(process), "loop").start()

    def _live(self, process: Process) -> None:
        try:
            self._complete(process)
        except Exception as error:  # reported to the supervisor
            self._happened(process, "exited", {"reason": f"{type(error).__name__}: {error}"})
        self.world.after(0.0, lambda: self._ended(process))

    def _complete(self, process: Process) -> None:
        """Do the work of the main thread."""
        assert self.steps is not None, "a process takes steps"
        self._loop = loop = SimulatedLoop(process)
        self._disk = disk = SimulatedDisk(process, self.host, f"/scratch/{self.name}-{self._lives}", self.steps)
        loop.complete(self._run(process, disk, SimulatedThreads(process, self.host.wall)))

    async def _run(self, process: Process, disk: SimulatedDisk, threads: SimulatedThreads) -> None:
        parts = self._parts
        assert self.steps is not None, "a process takes steps"
        chance = random.Random(self.world.random.getrandbits(64))
        # The real clock's wait takes a threading.Event; the simulated one takes an event of ``threads``.
        clock: Clock = SimulatedClock(process)  # type: ignore[assignment]
        holder = Holder(self.name, pid=self._lives, host=self.host.name)
        request = LockRequest(parts.directory, holder, parts.lock, clock=clock, random=chance, volume=disk)
        self._locker = self._make_locker(request, process)
        self.mastership = Mastership(
            self._locker,
            lambda: self._open_standby(disk, threads),
            self,
            on_role=lambda role, reason: self._happened(process, role.value, {"reason": reason}),
            record=lambda kind, **facts: self._happened(process, kind, facts),
            threads=threads,
            chance=chance,
        )
        await self.mastership.run()

    def _make_locker(self, request: LockRequest, process: Process) -> Locker:
        assert self.steps is not None, "a process takes steps"
        return self._parts.make_locker(request, process, self.host, self.steps.granted)

    def _open_standby(self, disk: SimulatedDisk, threads: Threads) -> AnyStandby:
        return self._parts.open_standby(self.name, disk, threads)

    def _ended(self, process: Process) -> None:
        self._gone(process)
        if self.is_wanted:
            self.world.after(RESTART_SECONDS, self._begin)

    def _gone(self, process: Process) -> None:
        if self.process is not process:
            return
        process.kill()
        if self._disk is not None:
            self._disk.died()
        if self.steps is not None:
            self._traps.died(self.steps)
        self.process = self.mastership = self.steps = self._locker = self._disk = self._loop = None
        self._cut_all()

    def kill(self, restart_seconds: float | None) -> None:
        """Kill the process (SIGKILL). It is started again after ``restart_seconds``, or (None) by ``start``."""
        if self.process is not None:
            self._gone(self.process)
        self.is_wanted = restart_seconds is not None
        if restart_seconds is not None:
            self.world.after(restart_seconds, self._begin)

    def stop(self) -> None:
        """Stop the process (SIGTERM): it hands over and ends; it is not started again."""
        self.is_wanted = False
        self._on_loop(lambda mastership: mastership.stop())

    def hand_over(self) -> None:
        """Request a handover to another broker."""

        async def ask(mastership: Mastership) -> None:
            try:
                await mastership.handover()
            except Exception as reason:  # a fault came in between
                self._watcher.happened(self.name, "no-handover", {"reason": str(reason)})

        loop = self._loop
        self._on_loop(lambda mastership: loop and loop.create_task(ask(mastership)))

    def _on_loop(self, function: Callable[[Mastership], object]) -> None:
        mastership = self.mastership
        if mastership is not None:
            self.call_on_loop(lambda: function(mastership))

    # ---- service of the mastership (broker.ha.mastership.Service)

    async def bind(self) -> None:
        """Do nothing: there are no ports."""

    async def serve(self, store: AnyStore) -> None:
        self._epoch = store.epoch
        self.engine = engine = Engine(store, self._parts.engine, Loop(self._milliseconds))
        store.start(engine)
        self._ticking = asyncio.create_task(self._tick(engine))

    async def abort(self) -> None:
        self._end_service(after_flush=False)

    async def finish(self) -> None:
        mastership = self.mastership
        assert mastership is not None, "a broker that hands over has a mastership"
        store = mastership.store
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PENDING_SECONDS_MAX
        while store is not None and store.has_pending and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        self._end_service(after_flush=True)

    def cut(self) -> None:
        self._cut_all()

    def _end_service(self, *, after_flush: bool) -> None:
        self.engine = None
        if self._ticking is not None:
            self._ticking.cancel()
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.close(after_flush)

    async def _tick(self, engine: Engine) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            engine.tick(self._milliseconds())
            for connection in self._connections:
                connection.beat()

    def _milliseconds(self) -> int:
        return int(self.host.wall() * 1000)

    def _cut_all(self) -> None:
        self.engine = None
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.broke()

    # ---- for connections

    def connect(self, peer: Client) -> Connection | None:
        """Connect a client. None: refused, or no answer."""
        if self.engine is None or not self.is_reachable or self.process is None or self.process.is_paused:
            return None
        self._connections_made += 1
        name = f"ID:{self.name}-{self._epoch}-{self._connections_made}"
        engine = self.engine
        connection = Connection(self.world, self, peer, name, self._epoch, engine.memory)
        self._connections.append(connection)
        self.call_on_loop(lambda: engine.opened(connection))
        return connection

    def call_on_loop(self, function: Callable[[], object]) -> None:
        if self._loop is not None and self.process is not None:
            self._loop.call_soon_threadsafe(function)

    def lose_clients(self) -> None:
        """Reset the clients' connections on the way: the clients connect to another broker."""
        for connection in self._connections:
            connection.reset()

    def when_reachable(self, function: Callable[[], None]) -> None:
        if self.is_reachable:
            function()
        else:
            self._held.append(function)

    def become_reachable(self) -> None:
        """Open the network to the clients again."""
        self.is_reachable = True
        call_all(self._held)

    def handle(self, connection: Connection, command: Command) -> None:
        if self.engine is not None and connection in self._connections:
            self.engine.handle(connection, command)

    def closed(self, connection: Connection) -> None:
        def close() -> None:
            if self.engine is not None and connection in self._connections:
                self._connections.remove(connection)
                self.engine.closed(connection)

        self.call_on_loop(close)

    def sent(self, connection: Connection, frame: Frame) -> None:
        self._watcher.notified(self.name, connection.epoch, frame)

    # ---- reports

    def _happened(self, process: Process, kind: str, facts: dict[str, object]) -> None:
        if not process.is_dead:  # otherwise its threads unwind, and the report would be wrong
            self._watcher.happened(self.name, kind, facts)
            if self.steps is not None:
                self.steps.notified(kind)

    def has_proof(self) -> bool:
        """Return whether the broker can prove now that the lock is its own."""
        return self._locker is not None and self._locker.proof().holds_at(self._locker.clock.now())

    @property
    def is_connected(self) -> bool:
        """Return whether the broker has a client, as far as it knows."""
        return bool(self._connections)

    @property
    def is_master(self) -> bool:
        """Return whether the broker serves clients."""
        return self.engine is not None


#: Troubles that no fault of the simulation explains: the broker, or its data, is wrong.
NEVER = frozenset({Trouble.BUG.name, Trouble.DAMAGED.name})
