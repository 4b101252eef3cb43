"""Free pages, and pages that are not free yet.

A page that generation f replaced is still reached by the roots before f. It waits in quarantine until no root
slot and no reader uses a generation before f. Then it is free, and may be overwritten.

    slot of db.free  | magic 8 | checksum u32 | format u32 | freePageUniqueId u64 | generation u64 | incarnation u64
                     | page count u32 | free runs u32 | waiting runs u32 | (first u32, count u32) ... |

The checksum is CRC-32C of all bytes of the slot after the checksum. Waiting runs are the pages that this generation
replaced. A slot is trusted only if the root has the same freePageUniqueId, generation and incarnation.

Pure: no I/O.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from crcmod.predefined import mkCrcFun

MAGIC = b"TMQFREE1"
FORMAT = 1
CHECKSUM = struct.Struct("<I")
HEAD = struct.Struct("<IQQQIII")  # the fields from the checksum to the runs; the checksum covers them and the runs
RUN = struct.Struct("<II")
HEAD_BYTES = len(MAGIC) + CHECKSUM.size + HEAD.size
PAGE_COUNT_MAX = 2**32 - 2

Run = tuple[int, int]  # first page, page after the last

crc32c = mkCrcFun("crc-32c")


def runs_of(pages: Iterable[int]) -> list[Run]:
    """Return the sorted runs of these page numbers, each a pair (first page, page after the last)."""
    return coalesce([(page, page + 1) for page in pages])


def coalesce(runs: list[Run]) -> list[Run]:
    """Return the runs sorted, with adjacent runs joined. No page may be in two runs (AssertionError)."""
    result: list[Run] = []
    start = stop = 0
    for first, behind in sorted(runs):
        if first == stop and result:
            stop = behind
            result[-1] = (start, stop)
        else:
            assert first >= stop, f"page {first} is free twice"
            start, stop = first, behind
            result.append((first, behind))
    return result


class FreeSlot(NamedTuple):
    """A slot of db.free."""

    unique_id: int
    generation: int
    incarnation: int
    page_count: int
    free: list[Run]
    waiting: list[Run]


def encode_slot(slot: FreeSlot) -> bytes:
    """Return the slot's bytes."""
    numbers = [number for first, behind in (*slot.free, *slot.waiting) for number in (first, behind - first)]
    head = HEAD.pack(FORMAT, *slot[:4], len(slot.free), len(slot.waiting))
    rest = head + struct.pack(f"<{len(numbers)}I", *numbers)
    return MAGIC + CHECKSUM.pack(crc32c(rest)) + rest


def slot_bytes(head: bytes) -> int | None:
    """Return the length in bytes of the slot that begins with `head`; None if no slot begins with it."""
    if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
        return None
    fields = HEAD.unpack_from(head, len(MAGIC) + CHECKSUM.size)
    return int(HEAD_BYTES + RUN.size * (fields[-1] + fields[-2]))


def decode_slot(data: bytes) -> FreeSlot | None:
    """Return the slot in `data`, or None if it is incomplete or does not match its checksum."""
    length = slot_bytes(data)
    if length is None or len(data) < length:
        return None
    at = len(MAGIC)
    if CHECKSUM.unpack_from(data, at)[0] != crc32c(data[at + CHECKSUM.size : length]):
        return None
    form, *numbers, free, waiting = HEAD.unpack_from(data, at + CHECKSUM.size)
    if form != FORMAT:
        return None
    runs = [(first, first + count) for first, count in RUN.iter_unpack(data[HEAD_BYTES:length])]
    return FreeSlot._make((*numbers, runs[:free], runs[free : free + waiting]))


class FreePages:
    """Allocation and quarantine of pages, for one thread. A checkpoint changes a copy, which is dropped if the
    checkpoint fails."""

    __slots__ = ("_next", "_replaced", "_runs", "_stop", "page_count", "quarantine")

    def __init__(self, page_count: int, free: Iterable[Run] = ()) -> None:
        self.page_count = page_count  # pages 1 ... page_count exist
        self._runs = coalesce(list(free))[::-1]  # descending: the lowest run is last
        self._next = self._stop = 0  # rest of the run from which pages are allocated
        self._replaced: list[int] = []
        self.quarantine: list[tuple[int, list[Run]]] = []  # (generation that replaced these pages, their runs)

    def copy(self) -> "FreePages":
        """Return a copy that can be changed separately."""
        twin = FreePages(self.page_count)
        twin._runs = self.free()[::-1]
        twin.quarantine = list(self.quarantine)
        return twin

    def allocate(self) -> int:
        """Return a page that may be overwritten: the lowest free page; if no page is free, a new page at the end."""
        if self._next == self._stop:
            if not self._runs:
                assert self.page_count < PAGE_COUNT_MAX, "the index has no more page numbers"
                self.page_count += 1
                return self.page_count
            self._next, self._stop = self._runs.pop()
        page = self._next
        self._next = page + 1
        return page

    def replace(self, page: int) -> None:
        """Note that the new generation does not reach this page any more."""
        self._replaced.append(page)

    def settle(self, generation: int) -> list[Run]:
        """Put the pages that `generation` replaced into quarantine, and return them."""
        waiting = runs_of(self._replaced)
        self._replaced = []
        if waiting:
            self.quarantine.append((generation, waiting))
        return waiting

    def release(self, oldest_reached: int) -> None:
        """Free the pages that `oldest_reached` or an earlier generation replaced. `oldest_reached` is the oldest
        generation that a root slot or a reader uses."""
        ready = [
            run
            for generation, runs in self.quarantine
            if generation <= oldest_reached  # prove: replaced-pages-wait
            for run in runs
        ]
        if ready:
            self.quarantine = [entry for entry in self.quarantine if entry[0] > oldest_reached]
            self.add(ready)

    def add(self, runs: list[Run]) -> None:
        """Add free pages."""
        self._runs = coalesce(self.free() + runs)[::-1]
        self._next = self._stop = 0

    def trim(self) -> None:
        """Reduce the page count by the free pages at the end."""
        free = self.free()
        if free and free[-1][1] == self.page_count + 1:
            self.page_count = free.pop()[0] - 1
            self._runs = free[::-1]
            self._next = self._stop = 0

    def free(self) -> list[Run]:
        """Return the free pages, ascending."""
        current = [(self._next, self._stop)] if self._next < self._stop else []
        return current + self._runs[::-1]

    def free_count(self) -> int:
        """Number of free pages."""
        return sum(stop - start for start, stop in self.free())

    def waiting_count(self) -> int:
        """Number of pages in quarantine."""
        return sum(stop - start for _, runs in self.quarantine for start, stop in runs)
