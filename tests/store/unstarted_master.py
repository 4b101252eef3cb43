"""A master whose storage thread was never started: a test does its work, step by step."""

from __future__ import annotations

from typing import cast

from noting_disk import NotingDisk

from store.journal_end import JournalEnd
from store.marks import encode_clock
from store.settings import StoreSettings
from store.standby import Disk, Standby
from store.threads import OsThreads, Threads

PAYLOAD = encode_clock(1)


class HandThreads(OsThreads):
    """Its boot time stands still until it is told to go on."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 1000.0

    def boottime(self) -> float:
        return self.now


class Master:
    """A store whose thread was never started: the test does its work."""

    def __init__(self, directory: str, settings: StoreSettings) -> None:
        self.disk = NotingDisk()
        self.threads = HandThreads()
        self.has_proof = True
        threads = cast(Threads, self.threads)
        standby = Standby(directory, f"{directory}/index", "a", settings, disk=cast(Disk, self.disk), threads=threads)
        self.store = standby.promote(
            has_proof=lambda: self.has_proof,
            call_soon=lambda _: None,
            call_later_this_turn=lambda _: None,
            on_lost=lambda _: None,
        )
        self.end: JournalEnd = self.store._thread._end
        self.disk.steps.clear()

    def write(self, **said: bool) -> list[str]:
        """What one batch of upkeep does to the journal's files."""
        self.disk.steps.clear()
        self.end.write([PAYLOAD], len(PAYLOAD), is_upkeep=True, **said)
        return list(self.disk.steps)
