"""Whether files changed since the last check."""

from __future__ import annotations

import os
from collections.abc import Sequence

Stamp = tuple[int, int, int, int] | None


class Watched:
    """Some files, known by inode, length and times of change (chmod changes that of the inode alone). One that is
    missing, for now, has not changed: a program that replaces a file may move the old one away first. Nor has one that
    still changes: it may be half written."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._stamps: dict[str, Stamp] = {path: _stamp(path) for path in paths}
        self._seen = dict(self._stamps)  # by the last call

    def has_changed(self) -> bool:
        """Whether one did since this was last true, or since the beginning, and none did since the last call. Costs
        one stat a file."""
        before, self._seen = self._seen, {path: _stamp(path) for path in self._stamps}
        if self._seen != before:
            return False
        changed = {path: now for path, now in self._seen.items() if now not in (None, self._stamps[path])}
        self._stamps |= changed
        return bool(changed)

    def look_again(self) -> None:
        """Count the files as changed at the next call: they could not be read, and no stamp shows when they can."""
        self._stamps = dict.fromkeys(self._stamps)


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
