"""Handling of signals that end a job: they raise an exception in the main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """A signal requested the end of the process. It is not an Exception, so that code which handles failures does not
    catch it."""


def stop_on_sigterm() -> None:
    """Let the first SIGTERM raise Stopped. For jobs that may end at any point. Call it on the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stopped

    signal.signal(signal.SIGTERM, stop)


@contextmanager
def signals_held(interrupt: Callable[[], object]) -> Iterator[None]:
    """Delay the handlers of SIGINT and SIGTERM until the end of this context; a signal within it only calls
    ``interrupt``. An exception of a handler then replaces an error of the context. Use it for code that would lose the
    exceptions of handlers. Only on the main thread; on others it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append((number, frame))
        interrupt()

    found = {number: signal.getsignal(number) for number in _ENDING}
    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {
        n: each for n, each in found.items() if callable(each)
    }
    for number in handlers:
        signal.signal(number, hold)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in held:
            handlers[number](number, frame)
