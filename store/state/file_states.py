"""Use of the journal files: owners with messages in each file, pins, and files that can be removed. Pure.

KahaDB: kahadb.md 4.7.
"""

# proofs: live-files

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Protocol

from tandemmq.store.state import keys


class Snapshot(Protocol):
    """Interface of the index for the state: the last published root."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]: ...


class FileUse(Protocol):
    """Facts that determine whether a file is needed: the number of its live messages, and the files that it pins."""

    @property
    def live(self) -> int: ...

    @property
    def pins(self) -> Set[int]: ...


class FileState:
    """Use of one journal file.

    holders     owner -> [number of live messages whose newest record is in this file, their bytes, whether this has
                changed since the last checkpoint]
    live        number of live messages of all owners
    live_bytes  bytes of the live records; a record that several subscriptions have counts once
    pins        files with messages, subscriptions and transactions that records of this file ended: this file is needed
                as long as they exist
    """

    __slots__ = ("holders", "live", "live_bytes", "pins")

    def __init__(self, live_bytes: int = 0, pins: Iterable[int] = ()) -> None:
        self.holders: dict[int, list[int]] = {}
        self.live = 0
        self.live_bytes = live_bytes
        self.pins = set(pins)


def file_changes(index: Snapshot, file: int, held: FileState | None) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the changes of the index for one changed file. ``held`` None: the file was removed."""
    # The scan finds the chunks of a removed file, or of a file that has fewer pins than before.
    before = [key for key, _ in index.scan(*_range(keys.FILE, file))]
    if held is None:
        yield from ((key, None) for key in before)
        yield from ((key, None) for key, _ in index.scan(*_range(keys.HOLDER, file)))
        return
    values = dict(keys.file_values(file, held.live_bytes, held.pins))
    yield from values.items()
    yield from ((key, None) for key in before if key not in values)
    # If the state has dropped a file and added it again, the index may still have its former holders.
    for key, _ in index.scan(*_range(keys.HOLDER, file)):
        if keys.holder_owner(key) not in held.holders:
            yield key, None
    for owner, holder in list(held.holders.items()):
        if holder[2]:
            holder[2] = False
            key = keys.holder_key(file, owner)
            yield key, keys.holder_value(holder[0], holder[1]) if holder[0] else None
        if holder[0] == 0:
            del held.holders[owner]


def reclaimable(
    files: Mapping[int, FileUse],
    held_by_records: Set[int],
    first_of_epoch: Callable[[int], bool],
    before: int,
    emptied: Set[int] = frozenset(),
) -> tuple[int, ...]:
    """Return the files below ``before`` that are not needed, oldest first.

    A file is needed if it has a live message, the record of a subscription or an operation of an open transaction; if
    it pins a file that is needed; or if it is the fence of an epoch and an earlier file is needed. ``emptied``: files
    whose live messages and records do not count, because a compaction copies them.
    """
    going: list[int] = []
    gone: set[int] = set()
    is_oldest_kept = False
    for file in sorted(files):
        if file >= before:  # prove: current-file-stays
            break
        held = files[file]
        stays = (
            (file not in emptied and (held.live > 0 or file in held_by_records))  # prove: live-file-stays
            or any(pin in files and pin not in gone for pin in held.pins)  # prove: pins-stay
            or (is_oldest_kept and first_of_epoch(file))  # prove: fence-stays
        )
        if stays:
            is_oldest_kept = True
        else:
            going.append(file)
            gone.add(file)
    return tuple(going)


def _range(kind: bytes, file: int) -> tuple[bytes, bytes]:
    return keys.numbered(kind, file), keys.numbered(kind, file + 1)
