"""Signals that end a job as exceptions in the main thread, where that is possible."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """A signal requested the end of the process. Not an Exception: no code on the way handles it as a failure."""


def stop_on_sigterm() -> None:
    """Have SIGTERM raise Stopped, once. For jobs that may end anywhere; call it from the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stopped

    signal.signal(signal.SIGTERM, stop)


@contextmanager
def signals_held(interrupt: Callable[[], object]) -> Iterator[None]:
    """Run handlers of SIGINT and SIGTERM after the block, where they may raise, in place of the block's error. Within
    it, ``interrupt`` is called instead. For code that loses exceptions of handlers. Only the main thread has handlers.
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
