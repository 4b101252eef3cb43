"""Checker of an index. It verifies every promise of the format:

- at least one root slot is whole; the pages of each whole root match their pointers
- keys ascend and are in the range of their branch; their number is the root's key count; all leaves have the same depth
- a root reaches each page once; reached + free + waiting pages = all pages; no free page is reached by either root

The checker only reads, and holds the directory's lock while it runs. `store check` and the tests run it.
"""

import os
from dataclasses import dataclass, field
from itertools import pairwise

from tandemmq.disk import Disk, open_regular
from tandemmq.index.errors import IndexDamaged
from tandemmq.index.freelist import FreeSlot, Run
from tandemmq.index.index import DATA_NAME, FREE_NAME
from tandemmq.index.lock import lock_directory
from tandemmq.index.node import Branch
from tandemmq.index.page import Pointer
from tandemmq.index.pages import DataFile, read_free_slot, read_slots
from tandemmq.index.recovery import is_list_of
from tandemmq.index.roots import Root, decode_roots, slot_of

PROBLEMS_MAX = 100  # a badly damaged index would fill the screen
CACHE_PAGES = 64


@dataclass(slots=True)
class Report:
    """Result of a check."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    generation: int = 0
    keys: int = 0
    pages: int = 0
    free_pages: int = 0
    waiting_pages: int = 0

    @property
    def is_sound(self) -> bool:
        """Return whether no problem was found. Notes do not count: they describe states after a crash that the next
        opening or checkpoint repairs."""
        return not self.problems

    def problem(self, text: str) -> None:
        """Add a problem; dropped if there are already PROBLEMS_MAX."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


def check(directory: str, disk: Disk = os) -> Report:
    """Check the index in a directory. Raises IndexInUse if the index is open, OSError if the disk fails."""
    report = Report()
    opened = [lock_directory(disk, directory)]
    try:
        try:
            opened.append(open_regular(disk, os.path.join(directory, DATA_NAME), os.O_RDONLY))
        except FileNotFoundError:
            report.problem(f"there is no {DATA_NAME}")
            return report
        roots = decode_roots(read_slots(disk, opened[-1]))
        if not roots:
            report.problem("no root slot is valid")
            return report
        root = roots[0]
        data = DataFile(disk, opened[-1], root.page_size, CACHE_PAGES)
        slot = None
        try:
            opened.append(open_regular(disk, os.path.join(directory, FREE_NAME), os.O_RDONLY))
            slot = read_free_slot(disk, opened[-1], slot_of(root.generation))
        except FileNotFoundError:
            report.notes.append(f"there is no {FREE_NAME}")
        _inspect(report, data, roots, slot)
    finally:
        for fd in reversed(opened):
            disk.close(fd)
    return report


def _inspect(report: Report, data: DataFile, roots: list[Root], slot: FreeSlot | None) -> None:
    root = roots[0]
    report.generation = root.generation
    report.pages = root.page_count
    reached, keys = _tree(report, data, root)
    report.keys = keys
    if keys != root.key_count:
        report.problem(f"the root states {root.key_count} keys, the leaves hold {keys}")
    before: set[int] = set()
    if len(roots) > 1:
        before, _ = _tree(report, data, roots[1])
    else:
        report.notes.append("one root slot is invalid")
    if root.page_count == 0:
        return
    if slot is None or not is_list_of(slot, root):
        report.notes.append("the list of free pages does not belong to the root: the next start makes a new one")
        return
    free, waiting = _pages(report, slot.free), _pages(report, slot.waiting)
    report.free_pages = len(free)
    report.waiting_pages = len(waiting)
    for pages, text in (
        (free & reached, "reached and free"),
        (free & before, "reached by the older root and free"),
        (waiting & reached, "reached and waiting to be free"),
        (free & waiting, "free and waiting to be free"),
        (before - reached - waiting, "reached only by the older root and not waiting"),
        ((free | waiting) - set(range(1, root.page_count + 1)), "free and beyond the end"),
        (set(range(1, root.page_count + 1)) - reached - free - waiting, "neither reached nor free: leaked"),
    ):
        if pages:
            some = ", ".join(map(str, sorted(pages)[:10]))
            report.problem(f"{len(pages)} pages are {text}: {some}")


def _pages(report: Report, runs: list[Run]) -> set[int]:
    pages: set[int] = set()
    for start, stop in runs:
        run = range(start, stop)
        if not pages.isdisjoint(run):
            report.problem(f"pages {start} to {stop - 1} are listed twice in {FREE_NAME}")
        pages.update(run)
    return pages


def _tree(report: Report, data: DataFile, root: Root) -> tuple[set[int], int]:
    """Walk a root's tree. Return the pages reached and the number of keys."""
    reached: set[int] = set()
    keys = 0
    if root.pointer is None:
        return reached, keys
    stack: list[tuple[Pointer, int, bytes, bytes | None]] = [(root.pointer, root.depth, b"", None)]
    while stack:
        pointer, level, low, high = stack.pop()
        if pointer.page in reached:
            report.problem(f"page {pointer.page} is reached twice from root {root.generation}")
            continue
        if not 0 < pointer.page <= root.page_count:
            report.problem(f"page {pointer.page} is beyond the end of root {root.generation}")
        reached.add(pointer.page)
        try:
            node = data.load(pointer)
        except IndexDamaged as error:
            report.problem(f"root {root.generation}: {error}")
            continue
        is_branch = isinstance(node, Branch)
        if is_branch != (level > 1):
            report.problem(f"page {pointer.page} is on the wrong level")
            continue
        row = node.separators if isinstance(node, Branch) else node.keys
        if any(left >= right for left, right in pairwise(row)):
            report.problem(f"the keys in page {pointer.page} do not ascend")
        if row and (row[0] < low or (high is not None and row[-1] >= high)):
            report.problem(f"page {pointer.page} holds keys outside its range")
        if isinstance(node, Branch):
            lows = [low, *row]
            highs = [*row, high]
            stack += zip(node.pointers, [level - 1] * len(lows), lows, highs, strict=True)
        else:
            keys += len(row)
    return reached, keys
