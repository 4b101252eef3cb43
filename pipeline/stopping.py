"""SIGTERM ends a job that goes on for ever, as an exception in the main thread."""

from __future__ import annotations

import signal
from types import FrameType


class Stopped(BaseException):
    """The process was asked to end. Not an Exception: nothing on the way takes it for a failure."""


def stop_on_sigterm() -> None:
    """From now on SIGTERM raises Stopped, once. For jobs that may end anywhere; call it from the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
