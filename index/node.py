"""Leaves and branches: sorted keys in a page's body.

    leaf    | prefix | key lengths u16 ... | value lengths u16 ... | keys without prefix | values |
    branch  | prefix | key lengths u16 ... | pages u32 ... | checksums u32 ... | generations u64 ...
            | keys without prefix |

If all lengths in a row are equal, one length is stored, and a flag is set; this is the usual case. A branch of n
children has n-1 separators; child i holds the keys k with separator[i-1] <= k < separator[i].

Pure: no I/O. A node is not changed after it was made, so threads may share it.
"""

import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import add
from typing import TypeAlias

from tandemmq.index.page import BRANCH, HEADER_BYTES, LEAF, Header, Pointer, seal

KEYS_EQUAL = 1  # flag: all keys have the same length, stored once
VALUES_EQUAL = 2  # flag: all values have the same length, stored once

KEY_BYTES_MAX = 1000
LENGTH_BYTES = 2
POINTER_BYTES = 4 + 4 + 8
# Most bytes of a node besides its entries: the header, and one length for each of two rows of equal lengths.
FIXED_BYTES = HEADER_BYTES + 2 * LENGTH_BYTES


def key_bytes_max(page_size: int) -> int:
    """Return the limit of a key's length in bytes. Four such keys always fit into a branch, and two entries with the
    longest key and value into a leaf."""
    return min(KEY_BYTES_MAX, page_size // 4 - 24)


def value_bytes_max(page_size: int) -> int:
    """Return the limit of a value's length in bytes."""
    return page_size // 4


@dataclass(slots=True, eq=False)
class Leaf:
    """Sorted keys and their values."""

    keys: list[bytes]
    values: list[bytes]


@dataclass(slots=True, eq=False)
class Branch:
    """Children and the separators between them."""

    separators: list[bytes]
    pointers: list[Pointer]


Node: TypeAlias = Leaf | Branch


def shared(first: bytes, last: bytes) -> int:
    """Return the number of leading bytes that two keys have in common. All keys between them, in sorted order, have
    these bytes too."""
    length = min(len(first), len(last))
    difference = int.from_bytes(first[:length], "big") ^ int.from_bytes(last[:length], "big")
    return length - (difference.bit_length() + 7) // 8


def separator(left: bytes, right: bytes) -> bytes:
    """Return the shortest key s with left < s <= right."""
    return right[: shared(left, right) + 1]


def _lengths(keys: list[bytes]) -> tuple[list[int], bool]:
    lengths = list(map(len, keys))
    if lengths and lengths.count(lengths[0]) == len(lengths):
        return lengths[:1], True
    return lengths, False


def encode(node: Node, page: int, generation: int, incarnation: int, page_size: int) -> tuple[bytes, int]:
    """Return the bytes and the checksum of the node's page."""
    is_leaf = type(node) is Leaf
    keys = node.keys if isinstance(node, Leaf) else node.separators
    prefix = shared(keys[0], keys[-1]) if keys else 0
    suffixes = [key[prefix:] for key in keys] if prefix else keys
    lengths, is_equal = _lengths(suffixes)
    flags = KEYS_EQUAL if is_equal else 0
    parts = [keys[0][:prefix] if prefix else b""]
    if isinstance(node, Leaf):
        count = len(keys)
        value_lengths, is_equal = _lengths(node.values)
        flags |= VALUES_EQUAL if is_equal else 0
        lengths += value_lengths
        parts.append(struct.pack(f"<{len(lengths)}H", *lengths))
        parts += suffixes
        parts += node.values
    else:
        count = len(node.pointers)
        pages, generations, checksums = zip(*node.pointers, strict=True)
        parts.append(struct.pack(f"<{len(lengths)}H{count}I{count}I", *lengths, *pages, *checksums))
        parts.append(struct.pack(f"<{count}Q", *generations))
        parts += suffixes
    header = Header(LEAF if is_leaf else BRANCH, flags, count, page, prefix, 0, generation, incarnation)
    return seal(header, b"".join(parts), page_size)


def _cut(data: bytes, at: int, lengths: tuple[int, ...], is_equal: bool, count: int, prefix: bytes) -> list[bytes]:
    if is_equal:
        step = lengths[0]
        if not step:
            return [prefix] * count
        if prefix:
            return [prefix + data[i : i + step] for i in range(at, at + count * step, step)]
        return [data[i : i + step] for i in range(at, at + count * step, step)]
    stops = list(accumulate(lengths, initial=at))
    if prefix:
        return [prefix + data[i:j] for i, j in pairwise(stops)]
    return [data[i:j] for i, j in pairwise(stops)]


def decode(header: Header, data: bytes) -> Node:
    """Return the node in a verified page."""
    flags = header.flags
    count = header.entries
    at = HEADER_BYTES + header.prefix_bytes
    prefix = data[HEADER_BYTES:at]
    if header.kind == LEAF:
        key_row = 1 if flags & KEYS_EQUAL else count
        value_row = 1 if flags & VALUES_EQUAL else count
        lengths = struct.unpack_from(f"<{key_row + value_row}H", data, at)
        at += LENGTH_BYTES * (key_row + value_row)
        key_lengths = lengths[:key_row]
        keys = _cut(data, at, key_lengths, bool(flags & KEYS_EQUAL), count, prefix)
        at += key_lengths[0] * count if flags & KEYS_EQUAL else sum(key_lengths)
        return Leaf(keys, _cut(data, at, lengths[key_row:], bool(flags & VALUES_EQUAL), count, b""))
    key_row = 1 if flags & KEYS_EQUAL else count - 1
    lengths = struct.unpack_from(f"<{key_row}H", data, at)
    at += LENGTH_BYTES * key_row
    pages = struct.unpack_from(f"<{count}I", data, at)
    checksums = struct.unpack_from(f"<{count}I", data, at + 4 * count)
    generations = struct.unpack_from(f"<{count}Q", data, at + 8 * count)
    at += POINTER_BYTES * count
    separators = _cut(data, at, lengths, bool(flags & KEYS_EQUAL), count - 1, prefix)
    return Branch(separators, list(map(Pointer._make, zip(pages, generations, checksums, strict=True))))


class Cutter:
    """Cuts a long row of entries into pieces that fit into pages. Sizes include the effect of prefix compression."""

    __slots__ = ("_base", "_keys", "_room", "_skip", "_sums")

    def __init__(self, keys: list[bytes], weights: list[int], skip: int, base: int, page_size: int) -> None:
        self._keys = keys
        self._sums = list(accumulate(weights, initial=0))
        self._skip = skip  # 1 in a branch: the first child's key is not stored
        self._base = base
        self._room = page_size

    @classmethod
    def of_leaf(cls, keys: list[bytes], values: list[bytes], page_size: int) -> "Cutter":
        """Return a cutter for a row of keys and values."""
        lengths = list(map(len, keys))
        value_lengths = list(map(len, values))
        weights = list(map(add, lengths, value_lengths))
        # A row of unequal lengths takes LENGTH_BYTES for each entry. If all lengths are equal, so are those of a piece.
        extra = sum(LENGTH_BYTES for row in (lengths, value_lengths) if row and row.count(row[0]) != len(row))
        if extra:
            weights = [weight + extra for weight in weights]
        return cls(keys, weights, 0, FIXED_BYTES, page_size)

    @classmethod
    def of_branch(cls, lows: list[bytes], page_size: int) -> "Cutter":
        """Return a cutter for a row of children. `lows` are the low ends of their key ranges."""
        each = POINTER_BYTES + LENGTH_BYTES
        return cls(lows, [len(low) + each for low in lows], 1, FIXED_BYTES + each, page_size)

    def size(self, start: int, stop: int) -> int:
        """Return the largest number of bytes that the entries from start to before stop need in a page."""
        first = start + self._skip
        count = stop - first
        prefix = shared(self._keys[first], self._keys[stop - 1]) if count > 0 else 0
        return self._base + prefix + self._sums[stop] - self._sums[min(first, stop)] - count * prefix

    def fill(self, start: int) -> int:
        """Return the stop (entry after the last) of the fullest page that begins at start."""
        low, high = start + 1 + self._skip, len(self._keys)
        low = min(low, high)
        step = 64
        while low + step < high and self.size(start, low + step) <= self._room:
            low += step
            step *= 2
        high = min(high, low + step)
        while low < high:
            middle = (low + high + 1) // 2
            if self.size(start, middle) <= self._room:
                low = middle
            else:
                high = middle - 1
        return low

    def even(self) -> list[int]:
        """Return the stops of pages that are about equally full."""
        count = len(self._keys)
        total = self.size(0, count)
        pages = -(-total // self._room)
        if pages <= 1:
            return [count]
        sums = self._sums
        target = sums[-1] / pages
        stops: list[int] = []
        start = 0
        while start < count:
            stop = bisect_left(sums, sums[start] + target, start + 1 + self._skip, count)
            stop = max(min(stop, self.fill(start)), start + 1)
            stops.append(stop)
            start = stop
        return stops

    def run(self, stable: int) -> list[int]:
        """Return the stops of full pages, for a run of new entries that ends at `stable`. Entries after the run begin a
        new page unless they fit into the last page of the run: the next run will continue at `stable`."""
        count = len(self._keys)
        stops: list[int] = []
        start = 0
        while start < count:
            stop = self.fill(start)
            if stop < count and start < stable < stop:
                stop = stable
            stops.append(stop)
            start = stop
        return stops


def size(node: Node, page_size: int) -> int:
    """Return the number of bytes that a node needs in a page."""
    if isinstance(node, Leaf):
        return Cutter.of_leaf(node.keys, node.values, page_size).size(0, len(node.keys))
    return Cutter.of_branch([b"", *node.separators], page_size).size(0, len(node.pointers))


def join(left: Node, low: bytes, right: Node) -> Node:
    """Join two neighbours; `low` is the separator between them."""
    if isinstance(left, Leaf):
        assert isinstance(right, Leaf), "a leaf has a branch as neighbour"
        return Leaf(left.keys + right.keys, left.values + right.values)
    assert isinstance(right, Branch), "a branch has a leaf as neighbour"
    return Branch([*left.separators, low, *right.separators], left.pointers + right.pointers)


def merge(keys: list[bytes], values: list[bytes], new_keys: list[bytes], new_values: list[bytes | None]) -> bool:
    """Apply sorted changes to the sorted rows, in place; a new value of None deletes. Return True if all new keys were
    inserted at one place.

    A queue has three patterns of changes, each with its own algorithm: a run of new keys, a run of deletions, and
    mixed changes.
    """
    first = bisect_left(keys, new_keys[0])
    last = bisect_right(keys, new_keys[-1], first)
    deletions = new_values.count(None)
    if first == last:
        if deletions:
            if deletions == len(new_keys):
                return False
            new_keys = [key for key, value in zip(new_keys, new_values, strict=True) if value is not None]
        keys[first:first] = new_keys
        values[first:first] = [value for value in new_values if value is not None]
        return True
    if deletions == len(new_keys) and keys[first:last] == new_keys:
        del keys[first:last]
        del values[first:last]
        return False
    if len(new_keys) * 4 < last - first:
        for key, value in zip(new_keys, new_values, strict=True):
            first = bisect_left(keys, key, first)
            is_there = first < len(keys) and keys[first] == key
            if value is None:
                if is_there:
                    del keys[first], values[first]
            elif is_there:
                values[first] = value
            else:
                keys.insert(first, key)
                values.insert(first, value)
        return False
    table: dict[bytes, bytes | None] = dict(zip(keys[first:last], values[first:last], strict=True))
    table.update(zip(new_keys, new_values, strict=True))
    kept = sorted(key for key, value in table.items() if value is not None)
    keys[first:last] = kept
    values[first:last] = [value for value in map(table.__getitem__, kept) if value is not None]
    return False
