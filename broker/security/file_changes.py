"""Detection of changed files."""

from __future__ import annotations

import os
from collections.abc import Sequence

Stamp = tuple[int, int, int, int] | None


class Watched:
    """Files that are watched for changes of inode, length, and times of modification and of the inode (chmod). A
    missing file does not count as changed: a program that replaces a file may move the old one away first. A file that
    changed since the last call does not count as changed yet: it may be incomplete."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._stamps: dict[str, Stamp] = {path: _stamp(path) for path in paths}
        self._seen = dict(self._stamps)  # stamps at the last call

    def has_changed(self) -> bool:
        """Return whether a file has changed since the last call that returned True (or since the beginning), and no
        file has changed since the last call. Costs one stat for each file."""
        before, self._seen = self._seen, {path: _stamp(path) for path in self._stamps}
        if self._seen != before:
            return False
        changed = {path: now for path, now in self._seen.items() if now not in (None, self._stamps[path])}
        self._stamps |= changed
        return bool(changed)

    def mark_changed(self) -> None:
        """Make the next call of ``has_changed`` return True. Call it if the files could not be read: no stamp shows
        when they become readable."""
        self._stamps = dict.fromkeys(self._stamps)


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
