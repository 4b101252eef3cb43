"""Base of the parts of the engine: their shared objects (store, settings, loop and other parts)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, tzinfo

from mypy_extensions import mypyc_attr

from tandemmq.broker.core.access import PrivateAccess
from tandemmq.broker.core.destinations import Destinations
from tandemmq.broker.core.policies import Policies
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.slices import at_once
from tandemmq.broker.engine.limits import StoredBytes
from tandemmq.broker.engine.ports import CallLater, InThread, Start, Store


def at_once_on_the_loop(work: Callable[[], object], then: Callable[[], None]) -> None:
    """Do work at once, for a broker without threads."""
    work()
    then()


@dataclass(frozen=True, slots=True)
class Loop:
    """Clocks, and functions for long work. ``clock`` returns milliseconds since 1970. ``call_later(seconds, function)``
    is the method of the event loop. ``start`` does long work in slices; ``start_first`` (None: ``start``) does work for
    which all clients wait. ``in_thread(work, then)`` does work that takes too long for the loop, and then calls
    ``then`` on the loop; ``prepare_in_thread`` does work that takes very long. ``zone``: time zone of cron entries.
    ``monotonic`` returns seconds, for measurements."""

    clock: Callable[[], int]
    call_later: CallLater = lambda seconds, function: None
    start: Start = at_once
    in_thread: InThread = at_once_on_the_loop
    prepare_in_thread: InThread = at_once_on_the_loop
    zone: tzinfo = UTC
    monotonic: Callable[[], float] = time.monotonic
    start_first: Start | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """Arguments of each part of the engine. ``stored`` counts the bytes of each user that are passed to the store;
    None: they are not limited."""

    store: Store
    settings: EngineSettings
    policies: Policies
    access: PrivateAccess
    destinations: Destinations
    loop: Loop
    stored: StoredBytes | None = None


class Timer:
    """Calls ``function`` on the loop after a delay: once for all requests that come before."""

    def __init__(self, call_later: CallLater, function: Callable[[], object]) -> None:
        self._call_later = call_later
        self._function = function
        self._is_set = False

    def set(self, seconds: float) -> None:
        """Call the function after this time, unless a call is already due."""
        if not self._is_set:
            self._is_set = True
            self._call_later(seconds, self._is_due)

    def _is_due(self) -> None:
        self._is_set = False
        self._function()


@mypyc_attr(allow_interpreted_subclasses=True)  # only some parts are compiled
class Part:
    """A part of the engine, with the shared state as attributes."""

    def __init__(self, shared: Shared) -> None:
        self._store = shared.store
        self._stored = shared.stored
        self._append = shared.store.append if shared.stored is None else shared.stored.append
        self._settings = shared.settings
        self._policies = shared.policies
        self._access = shared.access
        self._destinations = shared.destinations
        self._memory = shared.destinations.memory
        self._clock = shared.loop.clock
        self._call_later = shared.loop.call_later
        self._start = shared.loop.start
