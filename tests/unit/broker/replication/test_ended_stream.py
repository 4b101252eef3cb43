"""The journal on its way to a follower whose link ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tandemmq.broker.replication.network import Member
from tandemmq.broker.replication.pace import Pace
from tandemmq.broker.replication.stream import Stream
from tandemmq.journal.files import JournalFiles
from tandemmq.store.threads import OS_THREADS

LOOKS_MAX = 100


class EndedLink:
    member = Member("a" * 32, "b", 1, None, "b:1")
    is_ours = False
    unsent_bytes = 0

    def __init__(self) -> None:
        self.looks = 0

    def send(self, message: object) -> None:
        pass

    def wait_sent(self, below: int, timeout: float) -> bool:
        self.looks += 1
        assert self.looks < LOOKS_MAX, "it spins"
        return False

    def close(self, reason: str) -> None:
        pass


class OneFile:
    epoch = 1
    written = (1, 20)
    pace = Pace(OS_THREADS.monotonic)

    def __init__(self, path: Path) -> None:
        self.files = JournalFiles(str(path))
        (path / "db-1.log").write_bytes(b"x" * 20)

    def end_of(self, file: int) -> int | None:
        return None

    def after(self, file: int) -> int | None:
        return None


def test_a_stream_whose_link_ended_waits_until_it_is_ended(tmp_path: Path) -> None:
    """It would take all of the processor, for as long as a disk holds the replica up."""
    link = EndedLink()
    slept = []

    class Sleeping:
        def __getattr__(self, name: str) -> Any:
            return getattr(OS_THREADS, name)

        def sleep(self, seconds: float) -> None:
            slept.append(seconds)
            stream.end()

    stream = Stream(link, OneFile(tmp_path), (1, 0), (), Sleeping(), rate=0)  # type: ignore[arg-type]
    stream._run()
    assert len(slept) == 1
    assert link.looks == 1
