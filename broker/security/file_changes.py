"""Detection of changed files."""

from __future__ import annotations

import os
from collections.abc import Sequence

Stamp = tuple[int, int, int, int] | None


class Watched:
    """Set of files, identified by inode, length and times of change (chmod changes only that of the inode). A file that
    is missing now has not changed: a program that replaces a file may move the old one away first. Nor has a file that
    still changes: it may be half written."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._stamps: dict[str, Stamp] = {path: _stamp(path) for path in paths}
        self._seen = dict(self._stamps)  # at the last call

    def has_changed(self) -> bool:
        """Return whether a file changed since the last True, or since the beginning, and none since the last call.
        Costs one stat per file."""
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
