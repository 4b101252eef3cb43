"""The journal's steps in C, compiled to call a disk of the tests (recorded_disk.h), so that disks that record, fail or
stop calls also work with this code."""

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
    """Return the module, and the function that sets the disk of the calling thread; None: the system."""
    module, library = loaded("-include", str(HEADER))
    use_disk = library.tandemmq_use_disk
    use_disk.argtypes, use_disk.restype = [ctypes.py_object], None
    return module, use_disk


class _OnDisk:
    """``it``, with ``commit`` and ``serve`` that use ``disk``."""

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
    """A disk on which the journal is written in C while steps ``are_recorded``. If several are nested, the outermost is
    used."""

    are_in_c = False

    @property
    def journal_steps(self) -> _OnDisk | None:
        return _OnDisk(_module()[0], self) if HasSteps.are_in_c else None


@contextmanager
def are_recorded() -> Iterator[None]:
    """Writers created in this context use the steps in C. Skips the test if there is no compiler."""
    _module()
    HasSteps.are_in_c = True
    try:
        yield
    finally:
        HasSteps.are_in_c = False
