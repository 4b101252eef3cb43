"""A store that is dropped while its storage thread hangs in the volume."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from tandemmq.index.errors import IndexInUse
from tandemmq.index.lock import lock_directory
from tandemmq.store.tools.check import check
from tests.support.store.store_harness import Term


class HangingDisk:
    """The real disk; its syncs hang while ``goes_on`` is not set."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.hangs = threading.Event()

    def _wait(self) -> None:
        if not self.goes_on.is_set():
            self.hangs.set()
            self.goes_on.wait(30)

    def fdatasync(self, descriptor: int) -> None:
        self._wait()
        os.fdatasync(descriptor)

    def fsync(self, descriptor: int) -> None:
        self._wait()
        os.fsync(descriptor)

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


def is_locked(index: str) -> bool:
    try:
        os.close(lock_directory(os, index))
    except IndexInUse:
        return True
    return False


def test_it_lets_go_of_everything_when_it_wakes_up(tmp_path: Path) -> None:
    """Else each such demotion costs the process one more index directory, until it ends."""
    disk = HangingDisk()
    term = Term(str(tmp_path), "a", disk=disk)
    term.add_durably(3)
    index = f"{tmp_path}/index/a"
    disk.goes_on.clear()
    term.add()
    term.end_turn()
    assert disk.hangs.wait(10), "the sync is asked for"
    dropping = threading.Thread(target=term.store.drop)
    dropping.start()
    dropping.join(0.2)
    assert dropping.is_alive(), "it waits for the thread that hangs"
    assert is_locked(index)
    disk.goes_on.set()
    dropping.join(10)
    assert not dropping.is_alive()
    assert not is_locked(index)
    assert check(str(tmp_path)).is_clean


def test_a_store_that_is_closed_is_never_silent(tmp_path: Path) -> None:
    """Of several that are being closed, the one that is done first is not taken for hung."""
    term = Term(str(tmp_path), "a")
    term.add_durably(3)
    term.store.close()
    closed = time.monotonic()
    time.sleep(0.05)
    assert term.store.seen_alive() > closed
