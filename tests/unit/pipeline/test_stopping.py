"""Signals that raise, and code that would lose what they raise."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from tandemmq.pipeline.stopping import Stopped, signals_held, stop_on_sigterm


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_stops_behind_the_block_and_interrupts_what_runs_in_it() -> None:
    stop_on_sigterm()
    told: list[str] = []

    def act() -> None:
        with signals_held(lambda: told.append("interrupt")):
            os.kill(os.getpid(), signal.SIGTERM)
            told.append("goes on")
            raise RuntimeError("interrupted")

    with pytest.raises(Stopped):
        act()
    assert told == ["interrupt", "goes on"]


def test_without_a_signal_nothing_changes() -> None:
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    signal.signal(signal.SIGTERM, note)
    with signals_held(lambda: None):
        pass
    assert signal.getsignal(signal.SIGTERM) is note
    os.kill(os.getpid(), signal.SIGTERM)
    assert seen == [signal.SIGTERM]
