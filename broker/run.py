"""Life of a broker process: standby, master, and a clean end on request."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import uvloop

from tandemmq import __version__, compiled, log_events
from tandemmq.broker.admin.notify import Watchdog, watchdog_period_seconds
from tandemmq.broker.admin.port import AdminPort
from tandemmq.broker.core import selector, slices
from tandemmq.broker.core.access import OpenAccess
from tandemmq.broker.core.clock import milliseconds
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.slicing import Slices
from tandemmq.broker.ha.service import AnyStore
from tandemmq.broker.ha.stall_detector import hung_threads
from tandemmq.broker.ha.states import Phase, Role, Trouble, classify
from tandemmq.broker.process import switch_interval
from tandemmq.broker.process.log import Log
from tandemmq.broker.process.memory import FreeMemory, LongLived, give_back_long_blocks
from tandemmq.broker.settings.policies import policies_of
from tandemmq.broker.start_checks import demand
from tandemmq.broker.wiring import Parts
from tandemmq.config.addresses import Address
from tandemmq.config.changes import changed_at_once, changed_for_the_next_start
from tandemmq.config.errors import SettingsError
from tandemmq.config.settings import Settings
from tandemmq.modes import umask_of

if TYPE_CHECKING:
    from tandemmq.broker.admin.guard import Guard
    from tandemmq.broker.admin.server import AdminServer

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
LIFE_SECONDS = 0.05
# Maximum time that a handover waits for receipts that are due.
PENDING_SECONDS_MAX = 1.0

# Messages and their objects make no cycles: reference counts free them, and the collector must only be rare enough not
# to scan a full window for nothing.
GC_ALLOCATIONS = 10_000
# The middle generation is scanned often, as the delay grows with the objects since the last scan; the old one seldom.
GC_MIDDLE_ROUNDS, GC_OLD_ROUNDS = 2, 200

#: Log event of a demotion, if it is not `demoted`.
_DEMOTED_BY: Final = {
    Trouble.DEPOSED: log_events.DEPOSED,
    **dict.fromkeys((Trouble.LOCK_LOST, Trouble.PROOF_EXPIRED), log_events.LOCK_LOST),
    **dict.fromkeys(
        (Trouble.STORAGE_HUNG, Trouble.NO_SPACE, Trouble.READ_ONLY, Trouble.GONE, Trouble.DISK_FAILED, Trouble.DAMAGED),
        log_events.STORE_FAILED,
    ),
}


def run_broker(
    settings: Settings, read_again: Callable[[], Settings] | None = None, process_log: Log | None = None
) -> None:
    """Run a broker until SIGTERM or SIGINT; returns after the handover. Raises errors that the operator must correct.
    At SIGHUP ``read_again`` returns the present settings, or raises SettingsError. ``process_log``: None if the caller
    handles the log.

    Threads that hang may be left (broker.ha.stall_detector).
    """
    os.umask(umask_of(int(settings.store.file_mode, 8)))
    give_back_long_blocks()
    selector.postpone()
    slices.CLOCK.now = time.monotonic
    # Objects from before the first message stay, and need no repeated scans.
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, GC_MIDDLE_ROUNDS, GC_OLD_ROUNDS)
    switch_interval.start()
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        runner.run(Broker(settings, read_again, process_log).run())
    finally:
        if not hung_threads():  # otherwise it would wait for them
            runner.close()


@contextmanager
def _room_awaited() -> Iterator[None]:
    """Ignore a full disk: the mastership tries again, and waits for room."""
    try:
        yield
    except OSError as error:
        if classify(error) is not Trouble.NO_SPACE:
            raise


class Broker:
    """Broker process. All methods run on the loop's thread."""

    def __init__(
        self,
        settings: Settings,
        read_again: Callable[[], Settings] | None = None,
        process_log: Log | None = None,
    ) -> None:
        warnings = demand(settings)
        self._parts = parts = Parts(settings, process_log)
        self._settings = settings  # as of the last read
        self._read_again = read_again
        self._engine: Engine | None = None
        self._last_life = time.monotonic()
        self._is_rest_made = False  # or being made
        self._awaited: set[str] = set()  # events to note once per term
        self._mastership = parts.mastership(self, self._on_role)
        self._scrubber = parts.scrubber(self._mastership)
        self._report = parts.report(self._mastership, lambda: self._engine, self._scrubber)
        self._report.warnings = warnings
        self._report.files = self._wrong_files
        self._report.certificates = parts.expiries.figures
        self._settings_problem: str | None = None  # of the last read of the file
        self._admin = self._admin_port()
        if not isinstance(parts.access, OpenAccess):
            parts.access.on_removed = self._hang_up_users
            parts.access.on_changed = self._end_sessions

    def _admin_port(self) -> AdminPort | None:
        """Make the port of the admin server. None: there is none."""
        address = self._settings.admin.address
        if address is None:
            return None
        return AdminPort(address.host, address.port, self._parts.token_file, partial(self._make_admin, address))

    def _make_admin(self, address: Address, listener: socket.socket) -> tuple[AdminServer, Guard]:
        from tandemmq.broker.wiring_admin import make_admin

        return make_admin(self._parts, address, self._report, self._mastership, listener)

    async def run(self) -> None:
        """Start, be standby or master, and end cleanly on request."""
        with _room_awaited():
            self._parts.make_directory()  # else later, when there is room, like all that follows
        self._parts.ring.start()  # first of all: a refused broker has changed nothing
        loop = asyncio.get_running_loop()
        loop.set_default_executor(self._parts.asking)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal, signal.Signals(number).name)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        version = f"{__version__} ({compiled.description()})"
        log.info(
            "%s starts, %s, pid %d, store %s",
            self._parts.name,
            version,
            os.getpid(),
            self._parts.directory,
            extra=log_events.STARTED,
        )
        for warning in self._report.warnings:
            log.warning("%s", warning, extra=log_events.UNSAFE)
        self._parts.expiries.refresh()
        if self._admin is not None:
            self._admin.start()
        replica = self._parts.replica
        if replica is not None:
            replica.on_yield = lambda: loop.call_soon_threadsafe(self._yield)
            with _room_awaited():
                self._parts.make_directory()  # if there was no room before: without it the node ends
                await loop.run_in_executor(None, replica.start)
        else:
            self._scrubber.start()
        helpers = [asyncio.create_task(self._live(), name="life")]
        period = watchdog_period_seconds()
        if period is not None:
            signs = {
                "event loop": lambda: self._last_life,
                "storage thread": self._mastership.storage_seen_alive,
                "lock": self._mastership.lock_seen_alive,
            }
            helpers.append(asyncio.create_task(Watchdog(self._parts.notifier, period, signs).run(), name="watchdog"))
        try:
            await self._mastership.run()
        finally:
            for helper in helpers:
                helper.cancel()
            await loop.run_in_executor(None, self._scrubber.end if replica is None else replica.end)
            await self._parts.server.lingered()
            if self._admin is not None:
                await self._admin.stop()
            self._parts.server.unbind()
            self._parts.notifier.close()
            self._parts.ring.close()
            self._parts.access.close()
            for threads in (self._parts.asking, self._parts.working, self._parts.preparing):
                threads.shutdown(wait=False, cancel_futures=True)
        log.info("%s ended", self._parts.name, extra=log_events.ENDED)

    def _on_stop_signal(self, name: str) -> None:
        what = "handing over" if self._mastership.role is Role.MASTER else "ending"
        log.info("%s: %s", name, what, extra=log_events.STOP_ASKED)
        self._parts.notifier.stopping()
        self._mastership.stop()

    def _yield(self) -> None:
        """Hand over to a preferred node of the set."""
        yielding = asyncio.ensure_future(self._mastership.handover())
        yielding.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _reload(self) -> None:
        """SIGHUP: read settings, users and certificates again, whether their files look changed or not."""
        log.info("SIGHUP: settings, users and certificates are read again", extra=log_events.SETTINGS_READ)
        if self._read_again is not None:
            reading = asyncio.get_running_loop().run_in_executor(self._parts.asking, self._read, self._read_again)
            reading.add_done_callback(self._take_over)
        self._parts.access.reload()
        for tls in self._parts.tls:
            tls.reload()

    def _read(self, read_again: Callable[[], Settings]) -> Settings:
        """Read the settings, and apply those that need a disk; on a thread. Raises SettingsError, and nothing has
        changed."""
        settings = read_again()
        policies_of(settings)
        if self._parts.log is not None:
            self._parts.log.take(settings.logging)
        return settings

    def _take_over(self, reading: asyncio.Future[Settings]) -> None:
        """Apply those of the new settings that can change while a broker runs."""
        if reading.cancelled():
            return
        try:
            settings = reading.result()
        except SettingsError as error:
            self._settings_problem = f"the settings stay as they were: {error}"
            log.error("SIGHUP: %s", self._settings_problem, extra=log_events.SETTINGS_REFUSED)
            return
        self._settings_problem = None
        changed = list(changed_at_once(self._settings, settings))
        for change in changed:
            log.warning("SIGHUP: %s", change, extra=log_events.SETTING_CHANGED)
        for key in changed_for_the_next_start(self._parts.settings, settings):
            log.warning("SIGHUP: %s was changed and applies from the next start", key, extra=log_events.RESTART_NEEDED)
        self._settings = settings
        self._parts.policies.take_prefetches(policies_of(settings))
        log.info("SIGHUP: log and prefetches follow the settings%s", "" if changed else ": nothing new")
        if self._engine is not None:
            self._engine.take_prefetches()

    def _refresh_files(self) -> None:
        """Apply changed users and certificates."""
        self._parts.access.refresh()
        for tls in self._parts.tls:
            tls.refresh()
        if self._admin is not None:
            self._admin.refresh()
        self._parts.expiries.refresh()

    def _wrong_files(self) -> list[str]:
        found = [self._settings_problem, self._parts.access.problem, *(tls.problem for tls in self._parts.tls)]
        return [*(each for each in found if each is not None), *self._parts.expiries.sentences()]

    def _end_sessions(self, names: frozenset[str]) -> None:
        """End the sessions of users whose password, groups or certificate changed, or that were removed."""
        if self._admin is not None:
            self._admin.end_sessions(names)

    def _hang_up_users(self, names: frozenset[str]) -> None:
        """Close the connections of users that were removed."""
        if self._engine is not None:
            self._engine.hang_up_users(names)

    def _make_rest(self) -> None:
        """Make, in a thread, the parts that a start need not wait for: first those that clients need later, then the
        admin server. Only once."""
        if self._is_rest_made:
            return
        self._is_rest_made = True
        switch_interval.shorten()
        making = asyncio.get_running_loop().run_in_executor(self._parts.asking, _prepare_parts)
        making.add_done_callback(self._rest_made)

    def _rest_made(self, _: asyncio.Future[None]) -> None:
        switch_interval.restore()
        if self._admin is not None:
            self._admin.open()

    async def _live(self) -> None:
        """Give the loop's sign of life, and the engine's clock for expiry."""
        last_tick = time.monotonic()
        lag = self._report.loop_lag
        free_memory = FreeMemory()
        while True:
            await asyncio.sleep(LIFE_SECONDS)
            now = time.monotonic()
            lag.note(now - self._last_life - LIFE_SECONDS)
            self._last_life = now
            store = self._mastership.store
            confirmed = 0 if store is None else store.figures.confirmed
            self._parts.ring.alive(confirmed)
            self._note_firsts(confirmed)
            if now - last_tick >= TICK_SECONDS:
                last_tick = now
                self._refresh_files()
                self._parts.advertise_members()
                if self._engine is not None:
                    self._engine.tick(milliseconds())
            if self._engine is not None:
                self._make_rest()  # here, so that the first clients come before it
                self._long_lived.update(self._engine.memory.used)
            free_memory.update(0 if self._engine is None else self._engine.memory.used)

    def _note_firsts(self, confirmed: int) -> None:
        """Record when the first client is back and when it has its first answer: then the outage is over for
        clients."""
        if "first-client" in self._awaited and self._parts.server.connections:
            self._awaited.discard("first-client")
            self._parts.ring.record("first-client")
        if "first-receipt" in self._awaited and confirmed:
            self._awaited.discard("first-receipt")
            self._parts.ring.record("first-receipt")

    # ---- interface to mastership (broker.ha.mastership.Service)

    async def bind(self) -> None:
        self._parts.server.bind()

    async def serve(self, store: AnyStore) -> None:
        self._slices = Slices(asyncio.get_running_loop())
        self._long_lived = LongLived()
        self._engine = engine = await self._parts.engine(store, self._slices)
        store.start(engine, asyncio.get_running_loop())
        self._parts.mqtt.begin(engine)
        await self._parts.pauses.begin(engine)  # before a client takes from a paused queue
        await self._parts.server.listen(engine, f"ID:{self._parts.name}-{store.epoch}")
        self._parts.bridges.begin(engine, f"ID:bridge-{self._parts.name}-{store.epoch}")
        self._parts.ring.record("listening")
        self._awaited = {"first-client", "first-receipt"}

    async def abort(self) -> None:
        engine, self._engine = self._engine, None
        self._parts.mqtt.end()  # the departure of all clients does not end their sessions
        self._parts.bridges.end()
        await self._parts.server.abort()
        self._end(engine)

    def _end(self, engine: Engine | None) -> None:
        """End the term."""
        self._engine = None
        if engine is not None:
            self._slices.end()
            self._parts.pauses.end()
            engine.end()
            self._long_lived.end()

    def cut(self) -> None:
        self._parts.server.cut()

    async def finish(self) -> None:
        self._parts.server.stop_reading()
        store = self._mastership.store
        deadline = time.monotonic() + PENDING_SECONDS_MAX
        # Polled: an Event would cost time in every batch, and only the last one needs it
        while store is not None and time.monotonic() < deadline:
            if not store.has_pending and self._slices.is_idle:
                break
            await asyncio.sleep(0.002)
        self._parts.mqtt.end()
        self._parts.bridges.end()
        await self._parts.bridges.ended()
        await self._parts.server.close()
        self._end(self._engine)

    # ---- report

    def _on_role(self, role: Role, reason: str) -> None:
        if role is Role.STANDBY:
            self._make_rest()
        phase = self._mastership.phase
        level = logging.WARNING if phase is Phase.DEMOTED else logging.INFO
        event = log_events.ROLE_CHANGED
        if phase is Phase.DEMOTED and self._mastership.trouble is not None:
            event = _DEMOTED_BY.get(self._mastership.trouble, log_events.DEMOTED)
        log.log(level, "%s (%s): %s", self._parts.name, phase.value, reason, extra=event)
        line = f"{phase.value}: {reason}"
        if role in (Role.MASTER, Role.STANDBY):
            self._parts.notifier.ready(line)
        else:
            self._parts.notifier.status(line)


def _prepare_parts() -> None:
    """Import modules that the loop would otherwise import for the first client that needs them: the parsers of
    selectors, and the advisories, which a broker without an OpenWire connector publishes, too."""
    selector.prepare()
    import tandemmq.broker.protocols.openwire.advisories  # noqa: F401
