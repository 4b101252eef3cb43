"""Volumes for `shared-file` with each call as a step, for brokers in one process, and in one process each."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

from tandemmq.disk import Identity
from tandemmq.locker.volume import OS_VOLUME
from tests.support.locker.steps import answered, step, stepping

VERBS: Final = (
    *("open", "close", "stat", "fstat", "pread", "pwrite", "ftruncate", "fsync", "touch", "makedirs"),
    *("lock", "holder_pid"),
)
#: A guard that is not free for this time is held by a hanging actor.
GUARD_SECONDS_MAX: Final = 60.0


class SteppedVolume:
    """One process's view of a volume. `make` makes the calls in that process. It records its own locks."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.held: dict[Identity, Any] = {}
        self.wall_ms = OS_VOLUME.wall_ms
        self._guard = threading.Lock()
        for verb in VERBS:
            setattr(self, verb, stepping(_named(make, verb), verb))

    @property
    @contextmanager
    def guard(self) -> Iterator[None]:
        """Take the guard; while it waits, other actors continue."""
        step("guard", lambda: not self._guard.locked())
        assert self._guard.acquire(timeout=GUARD_SECONDS_MAX), "a volume is guarded for ever"
        try:
            yield
        finally:
            self._guard.release()
            answered("guard")


def here(verb: str, *arguments: Any) -> Any:
    """Make a call in this process."""
    return getattr(OS_VOLUME, verb)(*arguments)


class Elsewhere:
    """A process that makes the calls, because POSIX record locks belong to processes."""

    def __init__(self) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawning.Pipe()
        self._process = spawning.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def __call__(self, verb: str, *arguments: Any) -> Any:
        plain = [
            bytes(each) if isinstance(each, memoryview) else each for each in arguments
        ]  # a memoryview cannot be sent
        self._pipe.send((verb, *plain))
        answer = self._pipe.recv()
        if isinstance(answer, OSError):
            raise answer
        return answer

    def close(self) -> None:
        self._pipe.close()
        self._process.join()
        self._process.close()


def _serve(pipe: Connection) -> None:
    with contextlib.suppress(EOFError):
        while True:
            call = pipe.recv()
            try:
                pipe.send(here(*call))
            except OSError as error:
                pipe.send(error)


def _named(make: Callable[..., Any], verb: str) -> Callable[..., Any]:
    return lambda *arguments: make(verb, *arguments)
