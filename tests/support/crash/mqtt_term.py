"""One term of a broker for MQTT clients: the real store, the engine, and the MQTT state that outlives connections. The
test controls its turns, and its time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.part import Loop
from tandemmq.broker.engine.slicing import Slices
from tandemmq.broker.mqtt.clients import MqttClients
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tandemmq.store.store import Store
from tests.support.crash.virtual_loop import VirtualLoop

# No checkpoint is triggered by time. Small files, so that they fill, are checkpointed and reclaimed all the time.
SETTINGS = StoreSettings(
    journal_max_file_length=16 * 1024,
    checkpoint_interval=3600.0,
    checkpoint_records=40,
    cleanup_interval=0.0,
    disk_reserve=0,
)
# Time for immediate work, and for acknowledgements that are collected.
AT_ONCE_SECONDS = 0.02
# Start of virtual time; its clock counts milliseconds since 1970.
BEGIN = 1_000_000.0


class MqttTerm:
    """Raises the exceptions of a promotion. ``engine``, ``now``, ``soon``, ``turn`` and ``connection_id`` are for
    ``MqttWire``. When ``is_lost``, clients get nothing more."""

    def __init__(self, standby: Standby, now: float) -> None:
        self.standby = standby
        self.store: Store | None = None
        self.lost: BaseException | None = None
        self._connections = 0
        self.loop = VirtualLoop(now, self._awaits_report)
        try:
            self.store = standby.promote(
                has_proof=lambda: True,
                call_soon=self.loop.report,
                call_later=self.loop.call_later,
                on_lost=self._on_lost,
            )
        except BaseException:
            standby.close()
            self.loop.close()
            raise
        self.began = now
        self.slices = Slices(self.loop)
        self.mqtt = MqttClients(standby.broker, 100, 1 << 20, 0, clock=lambda: self.now)
        self.loop.do(self._serve)

    def _serve(self) -> None:
        assert self.store is not None
        loop = Loop(
            lambda: self.now, call_later=self.loop.call_later, start=self.slices.start, monotonic=self.loop.time
        )
        self.engine = Engine(self.store, EngineSettings(), loop)
        self.store.start(self.engine)
        self.mqtt.begin(self.engine)
        self._tick()

    def _tick(self) -> None:
        self.engine.tick(self.now)
        self.loop.call_later(1.0, self._tick)

    def _awaits_report(self) -> bool:
        if self.store is None or self.lost is not None or not self.store._pending:
            return False
        handed_over, _ = self.store._pending[-1]
        return handed_over > self.store._reported

    def _on_lost(self, error: BaseException) -> None:
        self.lost = error
        self.loop.stop()

    @property
    def is_lost(self) -> bool:
        return self.lost is not None

    # ---- as MqttWire's harness

    @property
    def now(self) -> int:
        return int(self.loop.time() * 1000)

    def connection_id(self) -> str:
        assert self.store is not None
        self._connections += 1
        return f"ID:{self.standby.broker}-{self.store.epoch}-{self._connections}"

    def soon(self, function: Callable[[], None]) -> None:
        self.loop.call_soon(function)

    def turn(self) -> None:
        """Do all pending work."""
        self.wait(AT_ONCE_SECONDS)

    def wait(self, seconds: float) -> None:
        """Advance the time, unless the store is lost."""
        if not self.is_lost:
            self.loop.pass_time(seconds)

    # ---- its end

    def close(self) -> None:
        """Stop normally. Raises the error that stopped the store."""
        assert self.store is not None
        self._end()
        try:
            self.store.close()
        finally:
            self.store.drop()

    def crash(self) -> None:
        """End like a demotion or a kill: nothing more is written."""
        assert self.store is not None
        self.store.drop()
        self._end()

    def _end(self) -> None:
        self.lost = self.lost or AssertionError("it is over")
        self.mqtt.end()
        self.slices.end()
        self.loop.call_soon(self.engine.end)
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.pass_time(0)
        self.loop.close()
