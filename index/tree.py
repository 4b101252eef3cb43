"""Merge of sorted changes into a copy-on-write B+tree, from left to right; each changed page is rewritten once.

No page that a published root reaches is overwritten: changed nodes, and all their ancestors, are written to free pages.
Small leaves are joined with a neighbour; empty leaves are removed. A run of new keys fills its pages; scattered new
keys split pages evenly.

index/index.py publishes the new root. One merge at a time, in one thread.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable
from dataclasses import InitVar, dataclass
from itertools import islice
from operator import lt
from typing import NamedTuple, TypeAlias

from tandemmq.index import node as nodes
from tandemmq.index.freelist import FreePages
from tandemmq.index.node import Branch, Cutter, Leaf, Node
from tandemmq.index.page import Pointer
from tandemmq.index.pages import DataFile

CHANGES_PER_STEP = 256  # changes that are read from the caller and merged in one step
SMALL_FRACTION = 3  # a node that fills less than 1/3 of a page is joined with a neighbour, if both fit into one page

Child: TypeAlias = Pointer | Leaf | Branch  # Leaf, Branch: small, and not written yet
# The low end of a child's key range, and the child. The low end of the first child in a list is b"": its parent has it.
Entry: TypeAlias = tuple[bytes, Child]
Steps: TypeAlias = Generator[None, None, list[Entry]]


class Changes:
    """Sorted changes of the caller, read in chunks of CHANGES_PER_STEP. Raises ValueError for changes that are not
    sorted, or too long for a page."""

    __slots__ = ("_at", "_key_max", "_keys", "_last", "_source", "_value_max", "_values")

    def __init__(self, changes: Iterable[tuple[bytes, bytes | None]], page_size: int) -> None:
        self._source = iter(changes)
        self._key_max = nodes.key_bytes_max(page_size)
        self._value_max = nodes.value_bytes_max(page_size)
        self._keys: list[bytes] = []
        self._values: list[bytes | None] = []
        self._at = 0
        self._last: bytes | None = None

    def peek(self) -> bytes | None:
        """Return the key of the next change, or None at the end."""
        if self._at == len(self._keys):
            chunk = list(islice(self._source, CHANGES_PER_STEP))
            if not chunk:
                return None
            keys, values = zip(*chunk, strict=True)
            self._keys = list(keys)
            self._values = list(values)
            self._at = 0
            self._inspect()
        return self._keys[self._at]

    def _inspect(self) -> None:
        keys = self._keys
        if not all(map(lt, keys, keys[1:])) or (self._last is not None and keys[0] <= self._last):
            raise ValueError("the changes of a checkpoint are not sorted by key")
        if max(map(len, keys)) > self._key_max:
            raise ValueError(f"a key is longer than {self._key_max} bytes")
        if any(len(value) > self._value_max for value in self._values if value):
            raise ValueError(f"a value is longer than {self._value_max} bytes")
        self._last = keys[-1]

    def take(self, high: bytes | None) -> tuple[list[bytes], list[bytes | None]]:
        """Return keys and values of the next changes below `high`, at most one chunk. Empty lists: there are no
        more."""
        if self.peek() is None:
            return [], []
        start = self._at
        stop = len(self._keys) if high is None else bisect_left(self._keys, high, start)
        self._at = stop
        return self._keys[start:stop], self._values[start:stop]


class Merged(NamedTuple):
    """Result of a merge: the new root page, the tree's depth, and how many more keys it has (negative: fewer)."""

    pointer: Pointer | None
    depth: int
    keys_added: int


@dataclass(eq=False)
class Merge:
    """Merge of changes into the tree under a root page. ``replaced`` are the pages that the new tree does not have."""

    _data: DataFile
    _space: FreePages
    changes: InitVar[Iterable[tuple[bytes, bytes | None]]]
    _generation: int
    _incarnation: int

    def __post_init__(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        self._page_size = self._data.page_size
        self._small = self._page_size // SMALL_FRACTION
        self._changes = Changes(changes, self._page_size)
        self._keys_added = 0
        self.replaced: list[Pointer] = []

    def run(self, pointer: Pointer | None, depth: int) -> Generator[None, None, Merged]:
        """Merge all changes; each step handles about one leaf. The new pages are written or buffered, not synced."""
        if self._changes.peek() is None:
            return Merged(pointer, depth, 0)
        if pointer is None:
            entries = yield from self._leaf(Leaf([], []), None)
            depth = 1
        else:
            entries = yield from self._subtree(pointer, depth, None)
        while len(entries) > 1:
            entries = yield from self._settle(entries)
            if len(entries) > 1:
                entries = self._branches(entries, is_at_edge=True)
                depth += 1
        if not entries:
            return Merged(None, 0, self._keys_added)
        child = entries[0][1]
        while depth > 1:  # a branch with one child is not used as the root
            branch = self._node(child)
            assert isinstance(branch, Branch), "a leaf above the lowest level"
            if len(branch.pointers) > 1:
                break
            if isinstance(child, Pointer):
                self._space.replace(child.page)
            child = branch.pointers[0]
            depth -= 1
        if not isinstance(child, Pointer):
            child = self._write(child)
        return Merged(child, depth, self._keys_added)

    def _subtree(self, pointer: Pointer, level: int, high: bytes | None) -> Steps:
        """Merge the changes below `high` into the subtree at `pointer`. Return the nodes that replace it."""
        is_hot = pointer in self._data.cache
        node = self._data.load(pointer)
        self.replaced.append(pointer)
        self._space.replace(pointer.page)
        if level == 1:
            assert isinstance(node, Leaf), "a branch on the lowest level"
            entries = yield from self._leaf(node, high, is_hot)
            return entries
        assert isinstance(node, Branch), "a leaf above the lowest level"
        lows = [b"", *node.separators]
        pointers = node.pointers
        entries = []
        done = 0
        while True:
            key = self._changes.peek()
            if key is None or (high is not None and key >= high):
                break
            at = bisect_right(node.separators, key)
            entries += zip(lows[done:at], pointers[done:at], strict=True)
            below = lows[at + 1] if at + 1 < len(lows) else high
            made = yield from self._subtree(pointers[at], level - 1, below)
            if made:
                entries.append((lows[at], made[0][1]))
                entries += made[1:]
            done = at + 1
        entries += zip(lows[done:], pointers[done:], strict=True)
        entries = yield from self._settle(entries)
        return self._branches(entries, is_at_edge=high is None) if entries else []

    def _leaf(self, leaf: Leaf, high: bytes | None, is_hot: bool = False) -> Steps:
        keys = leaf.keys[:]
        values = leaf.values[:]
        self._keys_added -= len(keys)
        entries: list[Entry] = []
        before: bytes | None = None  # last key of the previous piece
        is_run = True
        stable = 0
        while True:
            new_keys, new_values = self._changes.take(high)
            if not new_keys:
                break
            if not nodes.merge(keys, values, new_keys, new_values):
                is_run = False
            stable = bisect_right(keys, new_keys[-1])  # later changes go after the first `stable` keys
            following = self._changes.peek()
            if following is None or (high is not None and following >= high):
                break
            cutter = Cutter.of_leaf(keys, values, self._page_size)
            start = 0
            while (stop := cutter.fill(start)) < stable:
                piece = Leaf(keys[start:stop], values[start:stop])
                entries.append((_low(before, piece), self._write(piece)))
                before = keys[stop - 1]
                self._keys_added += stop - start
                start = stop
            del keys[:start], values[:start]
            yield
        self._keys_added += len(keys)
        if keys:
            cutter = Cutter.of_leaf(keys, values, self._page_size)
            start = 0
            for stop in cutter.run(stable) if is_run else cutter.even():
                piece = Leaf(keys[start:stop], values[start:stop])
                low = _low(before, piece)
                if cutter.size(start, stop) < self._small:
                    entries.append((low, piece))
                else:
                    pointer = self._write(piece)
                    if is_hot:
                        self._data.cache.put(pointer, piece)
                    entries.append((low, pointer))
                before = keys[stop - 1]
                start = stop
        yield
        return entries

    def _branches(self, entries: list[Entry], is_at_edge: bool) -> list[Entry]:
        """Return the branches over children that are all written. A small branch is not written: `_settle` joins it
        with a neighbour."""
        lows = [low for low, _ in entries]
        pointers = [child for _, child in entries if isinstance(child, Pointer)]
        assert len(pointers) == len(lows), "a branch over a child that was not written"
        cutter = Cutter.of_branch(lows, self._page_size)
        result: list[Entry] = []
        start = 0
        for stop in cutter.run(len(lows)) if is_at_edge else cutter.even():
            branch = Branch(lows[start + 1 : stop], pointers[start:stop])
            child = branch if cutter.size(start, stop) < self._small else self._write(branch)
            result.append((lows[start], child))
            start = stop
        return result

    def _settle(self, entries: list[Entry]) -> Steps:
        """Join small nodes with neighbours, and write all nodes that are not written yet."""
        if all(isinstance(child, Pointer) for _, child in entries):
            return entries
        settled: list[Entry] = []
        at = 0
        while at < len(entries):
            low, child = entries[at]
            at += 1
            if isinstance(child, Pointer):
                settled.append((low, child))
                continue
            while nodes.size(child, self._page_size) < self._small:
                if at < len(entries):
                    right_low, right = entries[at]
                    joined = nodes.join(child, right_low, self._node(right))
                    if nodes.size(joined, self._page_size) <= self._page_size:
                        self._drop(right)
                        child = joined
                        at += 1
                        continue
                if settled:
                    left_low, left = settled[-1]
                    joined = nodes.join(self._node(left), low, child)
                    if nodes.size(joined, self._page_size) <= self._page_size:
                        self._drop(left)
                        child = joined
                        low = left_low
                        settled.pop()
                        continue
                break
            settled.append((low, self._write(child)))
            yield
        return settled

    def _node(self, child: Child) -> Node:
        if not isinstance(child, Pointer):
            return child
        if child.generation == self._generation:
            self._data.flush()  # its page may be in the write buffer
        return self._data.load(child)

    def _drop(self, child: Child) -> None:
        if isinstance(child, Pointer):
            self._space.replace(child.page)

    def _write(self, node: Node) -> Pointer:
        page = self._space.allocate()
        data, checksum = nodes.encode(node, page, self._generation, self._incarnation, self._page_size)
        self._data.write(page, data)
        pointer = Pointer(page, self._generation, checksum)
        if isinstance(node, Branch):
            self._data.cache.put(pointer, node)
        return pointer


def _low(before: bytes | None, piece: Leaf) -> bytes:
    return b"" if before is None else nodes.separator(before, piece.keys[0])
