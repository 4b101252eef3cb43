"""Search for free pages by a walk from the roots, if no list of free pages can be trusted.

Only branches are read: the page numbers of leaves are in their parents. The walk begins at the roots that were found
when the index was opened. The pages of these roots are not overwritten during the walk, because index/index.py pins
them and allocates new pages at the end. So the result stays valid after any number of checkpoints. A page that such a
checkpoint replaced was reached by the walk, so the page is not listed twice.
"""

from collections.abc import Generator
from dataclasses import dataclass

from tandemmq.index.errors import IndexDamaged
from tandemmq.index.freelist import FreeSlot, Run
from tandemmq.index.node import Branch
from tandemmq.index.page import Pointer
from tandemmq.index.pages import DataFile
from tandemmq.index.roots import Root


@dataclass(frozen=True, slots=True)
class Found:
    """Pages that neither root reaches, and pages that only the older one reaches."""

    free: list[Run]
    waiting: list[Run]


def is_list_of(slot: FreeSlot, root: Root) -> bool:
    """Return whether a slot of db.free is the one that a root names: all their numbers must agree."""
    return (
        root.free_page_unique_id != 0
        and slot.unique_id == root.free_page_unique_id  # prove: free-list-of-this-root
        and slot.generation == root.generation
        and slot.incarnation == root.incarnation
        and slot.page_count == root.page_count
    )


def walk(data: DataFile, root: Root, marks: bytearray) -> Generator[None, None, None]:
    """Set `marks[page]` to 1 for each page that a root reaches. Each step reads one branch."""
    if root.pointer is None:
        return
    stack: list[tuple[Pointer, int]] = [(root.pointer, root.depth)]
    _mark(marks, root.pointer)
    while stack:
        pointer, level = stack.pop()
        if level == 1:
            continue
        branch = data.load(pointer)
        if not isinstance(branch, Branch):
            raise IndexDamaged(f"page {pointer.page} is a leaf where a branch should be")
        for child in branch.pointers:
            _mark(marks, child)
        if level > 2:
            stack += [(child, level - 1) for child in branch.pointers]
        yield


def _mark(marks: bytearray, pointer: Pointer) -> None:
    if not 0 < pointer.page < len(marks):
        raise IndexDamaged(f"page {pointer.page} is beyond the end of the index")
    if marks[pointer.page]:
        raise IndexDamaged(f"page {pointer.page} is reached twice")
    marks[pointer.page] = 1


def find_free_pages(data: DataFile, root: Root, older: Root | None) -> Generator[None, None, Found]:
    """Walk both trees. Return the free pages and the pages that wait. Each step reads one branch."""
    marks = bytearray(root.page_count + 1)
    yield from walk(data, root, marks)
    older_marks = bytearray(len(marks) if older is None else max(len(marks), older.page_count + 1))
    if older is not None:
        try:
            yield from walk(data, older, older_marks)
        except IndexDamaged:
            # The older root is damaged, so no opening can fall back to it. Pages that the walk marked before wait; its
            # other pages may be free.
            pass
    marks[0] = 1
    reached = int.from_bytes(marks, "big")
    before = int.from_bytes(older_marks[: len(marks)], "big")
    waiting = (before & ~reached).to_bytes(len(marks), "big")
    either = (before | reached).to_bytes(len(marks), "big")
    return Found(_runs(either, 0), _runs(waiting, 1))


def _runs(marks: bytes, wanted: int) -> list[Run]:
    """Return the runs of bytes that are `wanted` (0 or 1)."""
    sought, other = bytes([wanted]), bytes([1 - wanted])
    runs: list[Run] = []
    start = marks.find(sought)
    while start >= 0:
        stop = marks.find(other, start)
        if stop < 0:
            stop = len(marks)
        runs.append((start, stop))
        start = marks.find(sought, stop)
    return runs
