"""The journal's steps in C, compiled so that they ask a disk of the tests (recorded_disk.h): one that records, fails or
sleeps meets the calls of this code, too."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.journal.journal_native import loaded

HEADER = Path(__file__).with_name("recorded_disk.h")


@cache
def _module() -> tuple[ModuleType, Callable[[Any], None]]:
    """The module, and the function that sets the disk of the calling thread; None: the system."""
    module, library = loaded("-include", str(HEADER))
    use_disk = library.tandemmq_use_disk
    use_disk.argtypes, use_disk.restype = [ctypes.py_object], None
    return module, use_disk


class _OnDisk:
    """``it``, whose ``commit`` and ``serve`` ask ``disk``."""

    def __init__(self, it: Any, disk: Any) -> None:
        self._it = it
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._it, name)

    def CommitQueue(self, *bounds: tuple[float, ...]) -> _OnDisk:
        return _OnDisk(self._it.CommitQueue(*bounds), self._disk)

    def commit(self, *arguments: Any) -> Any:
        return self._asking(self._it.commit, arguments)

    def serve(self, *arguments: Any) -> Any:
        return self._asking(self._it.serve, arguments)

    def _asking(self, step: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        use_disk = _module()[1]
        use_disk(self._disk)
        try:
            return step(*arguments)
        finally:
            use_disk(None)


class HasSteps:
    """A disk on which the journal is written in C while steps ``are_recorded``. Of several, the outermost is asked."""

    are_in_c = False

    @property
    def journal_steps(self) -> _OnDisk | None:
        return _OnDisk(_module()[0], self) if HasSteps.are_in_c else None


@contextmanager
def are_recorded() -> Iterator[None]:
    """Writers that are made meanwhile use the steps in C. Skips the test where there is no compiler."""
    _module()
    HasSteps.are_in_c = True
    try:
        yield
    finally:
        HasSteps.are_in_c = False
