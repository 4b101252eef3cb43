"""System calls of journal/native.c: the same as those of the code that it replaces, in the same order."""

# proves: native-*

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tandemmq.journal.errors import JournalFailed
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.scan import scan
from tandemmq.journal.writer import JournalWriter
from tandemmq.store.threads import OS_THREADS
from tests.support.crash.unwilling_disk import ENDS_WITH, MOODS, UnwillingDisk
from tests.support.journal.recorded_steps import HasSteps, are_recorded
from tests.unit.journal.test_commit import WAYS, Commit, call_by_call

PAYLOADS = [b"a payload of some length", b"x" * 300]
SERVED_SECONDS = 0.05


@pytest.fixture(autouse=True)
def in_c() -> Iterator[None]:
    with are_recorded():
        yield


class CallsOfADisk(HasSteps):
    """``calls``: the names of what was asked. Time goes on by a second with each of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            return getattr(os, name)(*arguments)

        return call

    def boottime(self) -> int:
        return 10**9 + len(self.calls)


@contextmanager
def writing(directory: Path, disk: Any) -> Iterator[JournalWriter]:
    files = JournalFiles(str(directory), disk)
    files.prepare("a", 1 << 16)
    writer = JournalWriter(files, "a", files.publish("a", 1))
    try:
        yield writer
    finally:
        writer.close()


@pytest.mark.parametrize("way", WAYS)
def test_each_step_asks_the_disk_for_the_same_in_the_same_order(tmp_path: Path, way: Commit) -> None:
    asked = []
    for commit in (call_by_call, way):
        (tmp_path / commit.__name__).mkdir()
        disk = CallsOfADisk()
        with writing(tmp_path / commit.__name__, disk) as writer:
            disk.calls.clear()
            _, checked_at = commit(writer, PAYLOADS)
            asked.append(disk.calls[:])
    assert asked[0] == asked[1] == ["pwrite", "fdatasync", "stat", "open", "fstat", "close"]
    assert checked_at == 10**9 + asked[1].index("stat"), "by the clock that counts a suspension, from before the looks"


@pytest.mark.parametrize("mood", [mood for mood in MOODS if mood != "interrupted"])  # of which ``os`` says nothing
@pytest.mark.parametrize("commit", WAYS)
def test_a_batch_is_whole_or_the_journal_has_failed(tmp_path: Path, commit: Commit, mood: str) -> None:
    disk = UnwillingDisk(mood)
    disk.is_unwilling = False
    with writing(tmp_path, disk) as writer:
        commit(writer, [b"before"])
        disk.is_unwilling, disk.calls = True, 0
        if mood in ENDS_WITH:
            with pytest.raises(JournalFailed) as failure:
                commit(writer, PAYLOADS)
            assert failure.value.errno == ENDS_WITH[mood]
            assert disk.calls <= 2, "nothing is tried again"
            return
        commit(writer, PAYLOADS)
        commit(writer, [b"after"])
        found = [[payload for _, payload in batch.records] for batch in scan(JournalFiles(str(tmp_path)), 1)]
        assert found == [[b"before"], PAYLOADS, [b"after"]]


# proves: native-serves-so-long
def test_its_time_ends_it_though_a_batch_comes_in_each_step(tmp_path: Path) -> None:
    disk = CallsOfADisk()
    with writing(tmp_path, disk) as writer, ThreadPoolExecutor(1) as pool:
        queue = writer.commit_queue()
        assert queue is not None

        def fdatasync(fd: int) -> None:
            if queue.reserve([b"x"]):
                queue.submit()
            OS_THREADS.sleep(2 * SERVED_SECONDS)

        disk.fdatasync = fdatasync  # type: ignore[attr-defined]
        batches = 0
        while not batches:  # on a busy machine its time may be over before there is a place
            serving = pool.submit(writer.serve, queue, 1 << 20, 10, SERVED_SECONDS)
            while not serving.done():
                if queue.reserve([b"x"]):
                    queue.submit()
                    break
            batches = serving.result().batches
        assert batches == 2, "what has a place is still done, and nothing more gets one"
