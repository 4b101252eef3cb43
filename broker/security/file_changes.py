"""Whether files changed since the last check."""

from __future__ import annotations

import os
from collections.abc import Sequence

Stamp = tuple[int, int, int] | None


class Watched:
    """Some files, known by inode, length and time of change. One that is missing, for now, has not changed: a program
    that replaces a file may move the old one away first."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._stamps: dict[str, Stamp] = {path: _stamp(path) for path in paths}

    def has_changed(self) -> bool:
        """Whether one did since the last call, or since the beginning. Costs one stat a file."""
        has_changed = False
        for path, before in self._stamps.items():
            now = _stamp(path)
            if now is not None and now != before:
                self._stamps[path] = now
                has_changed = True
        return has_changed


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
