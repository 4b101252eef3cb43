"""Progress of a long command: a bar, the speed and the time left, on stderr, if that is a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

REFRESH_SECONDS = 0.2


class Advance(Protocol):
    """Called with the bytes done, further text to show, and the total number of bytes if that has changed."""

    def __call__(self, done_bytes: int, detail: str = "", total_bytes: int | None = None) -> None: ...


def unseen(done_bytes: int, detail: str = "", total_bytes: int | None = None) -> None:
    """An Advance that shows nothing."""


@contextmanager
def progress(what: str, total_bytes: int) -> Iterator[Advance]:
    """Yield a function to call with the bytes done, out of ``total_bytes``. Shows nothing without a terminal."""
    if not sys.stderr.isatty():
        yield unseen
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total_bytes, detail="")

        def advance(done_bytes: int, detail: str = "", total_bytes: int | None = None) -> None:
            bar.update(task, completed=done_bytes, detail=detail, total=total_bytes)

        yield advance


@contextmanager
def watched(
    what: str, total_bytes: int, done_bytes: Callable[[], int], records: Callable[[], int] | None = None
) -> Iterator[None]:
    """Show progress as ``progress`` does, for work that another thread polls while it runs.

    With ``records``, the records done per second are shown as well.
    """
    with progress(what, total_bytes) as advance:
        has_ended = threading.Event()
        started = time.monotonic()

        def look() -> None:
            while not has_ended.wait(REFRESH_SECONDS):
                rate = "" if records is None else f"{records() / (time.monotonic() - started):,.0f} records/s"
                advance(done_bytes(), rate)

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            has_ended.set()
            watcher.join()
