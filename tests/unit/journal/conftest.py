"""A journal directory, and disks that record calls, fail, or do only a part of a call."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.writer import JournalWriter

FILE_LENGTH = 4096


class WatchedDisk:
    """The real disk, with a note of each call. The n-th call (from 1) of a verb in ``failing`` raises instead."""

    def __init__(self, failing: Iterable[str] = (), nth: int = 0, error: int = errno.EIO) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.failing = frozenset(failing)
        self.countdown = nth
        self.error = error
        self.has_failed = False

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        real = getattr(os, verb)

        def call(*arguments: Any) -> Any:
            self.calls.append((verb, arguments))
            if verb in self.failing:
                self.countdown -= 1
                if self.countdown == 0:
                    self.has_failed = True
                    raise OSError(self.error, os.strerror(self.error))
            return real(*arguments)

        return call

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.calls]


@pytest.fixture
def watched_disk() -> type[WatchedDisk]:
    return WatchedDisk


@pytest.fixture
def files(tmp_path: Path) -> JournalFiles:
    return JournalFiles(str(tmp_path))


@pytest.fixture
def new_writer(tmp_path: Path) -> Iterator[Callable[..., JournalWriter]]:
    """A master: it fences with the next free file and writes there."""
    writers: list[JournalWriter] = []

    def promote(broker: str = "a", disk: Any = os, file_length: int = FILE_LENGTH) -> JournalWriter:
        files = JournalFiles(str(tmp_path), disk)
        following = max(files.list(), default=0) + 1
        files.prepare(broker, file_length)
        own = files.publish(broker, following)
        writers.append(JournalWriter(files, broker, own, file_length_max=file_length))
        return writers[-1]

    yield promote
    for writer in writers:
        writer.close()
