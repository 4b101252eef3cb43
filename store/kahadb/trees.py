"""Readers of ActiveMQ's B+trees, lists and sets of numbers in the pages of db.data (BTreeNode, ListNode). Pure.

    tree node   count i2, keys, is branch u1;  branch: count + 1 children i8;  leaf: values, next leaf i8
    list node   next i8 (-1: none), count i2, (key, value) ...
    set         count i4, (is range u1, first i8, [last i8]) ...

Child n of a branch holds the keys below key n. Iterators keep one path from the root in memory. They do not use the
``next`` of a leaf, so that a damaged one hides no entries.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tandemmq.store.kahadb.page_file import KahaIndexDamaged, PageFile
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.utf import decode_modified

K = TypeVar("K")
V = TypeVar("V")

_BOOL = struct.Struct(">?")
_I8 = struct.Struct(">b")
_I16 = struct.Struct(">h")
_U16 = struct.Struct(">H")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


@dataclass(slots=True, eq=False)
class Cursor:
    """Reader of bytes that a Java DataOutput wrote. Raises IndexError or struct.error if they end too early."""

    data: bytes
    at: int = 0

    def _read(self, layout: struct.Struct) -> Any:
        self.at += layout.size
        return layout.unpack_from(self.data, self.at - layout.size)[0]

    def boolean(self) -> bool:
        return bool(self._read(_BOOL))

    def i8(self) -> int:
        return int(self._read(_I8))

    def i16(self) -> int:
        return int(self._read(_I16))

    def i32(self) -> int:
        return int(self._read(_I32))

    def i64(self) -> int:
        return int(self._read(_I64))

    def utf(self) -> str:
        return decode_modified(self.take(self._read(_U16)))

    def take(self, length: int) -> bytes:
        if not 0 <= length <= len(self.data) - self.at:
            raise IndexError("the bytes end too early")
        self.at += length
        return self.data[self.at - length : self.at]

    @property
    def is_end(self) -> bool:
        return self.at == len(self.data)


class SequenceSet:
    """Set of numbers: ranges (first, last), ascending; adjacent ranges are joined."""

    __slots__ = ("_firsts", "ranges")

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self.ranges: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if self.ranges and first <= self.ranges[-1][1] + 1:
                self.ranges[-1] = self.ranges[-1][0], max(last, self.ranges[-1][1])
            else:
                self.ranges.append((first, last))
        self._firsts = [first for first, _ in self.ranges]

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self.ranges[at][1]


def read_sequence_set(cursor: Cursor) -> SequenceSet:
    ranges = []
    for _ in range(_count(cursor.i32())):
        is_range = cursor.boolean()
        first = cursor.i64()
        last = cursor.i64() if is_range else first
        if last < first:
            raise ValueError(f"the range from {first} to {last} is invalid")
        ranges.append((first, last))
    return SequenceSet(ranges)


def _count(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} entries")
    return number


@dataclass(frozen=True, slots=True)
class Tree(Generic[K, V]):
    """B+tree with its root in page ``root``. Iteration raises KahaIndexDamaged if a node is invalid."""

    _pages: PageFile
    root: int
    _read_key: Callable[[Cursor], K]
    _read_value: Callable[[Cursor], V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        """Yield all entries (key, value) in the order of their keys."""
        path: list[Iterator[int]] = [iter((self.root,))]
        nodes = 0
        while path:
            page = next(path[-1], None)
            if page is None:
                path.pop()
                continue
            nodes += 1
            if nodes > self._pages.pages:
                raise KahaIndexDamaged(f"{self._pages.path}: the tree of page {self.root} has a cycle")
            keys, children, values = self._node(page)
            if children is None:
                yield from zip(keys, values, strict=True)
            else:
                path.append(iter(children))

    def _node(self, page: int) -> tuple[list[K], list[int] | None, list[V]]:
        def read(cursor: Cursor) -> tuple[list[K], list[int] | None, list[V]]:
            count = _count(cursor.i16())
            keys = [self._read_key(cursor) for _ in range(count)]
            if cursor.boolean():
                return keys, [cursor.i64() for _ in range(count + 1)], []
            values = [self._read_value(cursor) for _ in range(count)]
            cursor.i64()  # the next leaf
            return keys, None, values

        return read_whole(self._pages, page, read)


def read_list(
    pages: PageFile, head: int, read_key: Callable[[Cursor], K], read_value: Callable[[Cursor], V]
) -> Iterator[tuple[K, V]]:
    """Yield the entries (key, value) of the list that begins in page ``head``. Raises KahaIndexDamaged."""

    def read(cursor: Cursor) -> tuple[int, list[tuple[K, V]]]:
        following = cursor.i64()
        return following, [(read_key(cursor), read_value(cursor)) for _ in range(_count(cursor.i16()))]

    page, nodes = head, 0
    while page >= 0:
        nodes += 1
        if nodes > pages.pages:
            raise KahaIndexDamaged(f"{pages.path}: the list of page {head} has a cycle")
        page, entries = read_whole(pages, page, read)
        yield from entries


def read_whole(pages: PageFile, page: int, read: Callable[[Cursor], V]) -> V:
    """Return the object that begins in ``page``, read with ``read``. Raises KahaIndexDamaged if it is invalid, or if
    bytes are left over."""
    cursor = Cursor(pages.read_chain(page))
    try:
        found = read(cursor)
    except (IndexError, struct.error, ValueError, RecordDamaged) as reason:
        raise KahaIndexDamaged(f"{pages.path}: the object in page {page} is invalid: {reason}") from None
    if not cursor.is_end:
        rest = len(cursor.data) - cursor.at
        raise KahaIndexDamaged(f"{pages.path}: {rest} bytes follow the object in page {page}")
    return found
