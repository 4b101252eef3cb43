"""A master without a running storage thread: a test does the thread's work, step by step."""

from __future__ import annotations

from typing import cast

from tandemmq.disk import Disk
from tandemmq.store.authority import SHARED_VOLUME, Authority
from tandemmq.store.records.marks import encode_clock
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tandemmq.store.threads import OsThreads, Threads
from tandemmq.store.writer.journal_end import JournalEnd
from tests.support.store.noted_authority import NotedAuthority
from tests.support.store.noting_disk import NotingDisk

PAYLOAD = encode_clock(1)


class ManualThreads(OsThreads):
    """Threads with a boot time that only the test advances."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 1000.0

    def boottime(self) -> float:
        return self.now


class Master:
    """A store without a running thread: the test does its work."""

    def __init__(self, directory: str, settings: StoreSettings, authority: Authority = SHARED_VOLUME) -> None:
        self.disk = NotingDisk()
        self.authority = NotedAuthority(authority, [])
        self.threads = ManualThreads()
        self.has_proof = True
        threads = cast(Threads, self.threads)
        standby = Standby(
            directory,
            f"{directory}/index",
            "a",
            settings,
            authority=self.authority,
            disk=cast(Disk, self.disk),
            threads=threads,
        )
        self.store = standby.promote(
            has_proof=lambda: self.has_proof,
            call_soon=lambda _: None,
            call_later=lambda _, function: None,
            on_lost=lambda _: None,
        )
        self.end: JournalEnd = self.store._storage._end
        self.disk.steps.clear()

    def write(self, **options: bool) -> list[str]:
        """Run one batch of maintenance; return its calls on the journal's files."""
        self.disk.steps.clear()
        self.end.write([PAYLOAD], len(PAYLOAD), is_upkeep=True, **options)
        return list(self.disk.steps)
