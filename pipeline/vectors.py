"""Vectorized reads of numbers and strings at many places of a buffer: the basis of the lockstep decoder.

A place may be outside of the buffer; the values read there are meaningless. So a decoder must check at its end that it
is at the expected place: until then no value is valid.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

# Limit of a layout. Shorter buffers are padded to this length, so that every layout can be read.
LAYOUT_BYTES_MAX: Final = 64
# Limit of the bytes of a varint, which then has 28 bits. Lengths in a journal file do not need more.
VARINT_BYTES_MAX: Final = 4

BYTE: Final = np.dtype("u1")
_WORD: Final = np.dtype("<i8")

Spans = tuple[np.ndarray, np.ndarray]  # begin and end of each span; equal: absent


class Optional(NamedTuple):
    """An optional field. If it is absent, its span is empty and ``is_there`` is False; an empty field has ``is_there``
    True."""

    is_there: np.ndarray
    spans: Spans


class Bytes:
    """A buffer for reads at many places. A layout that begins before ``limit`` is completely inside the buffer."""

    __slots__ = ("_arrow", "_buffer", "bytes", "limit", "size")

    def __init__(self, buffer: bytes) -> None:
        self._buffer = buffer if len(buffer) >= LAYOUT_BYTES_MAX else buffer.ljust(LAYOUT_BYTES_MAX, b"\0")
        self._arrow = pa.py_buffer(self._buffer)
        self.bytes = np.frombuffer(self._buffer, np.uint8)
        self.size = len(self._buffer)
        self.limit = self.size - LAYOUT_BYTES_MAX

    def at(self, layout: np.dtype, places: np.ndarray) -> np.ndarray:
        """Return the values of ``layout`` at ``places``. The fields of a layout must have no gaps between them."""
        last = self.size - layout.itemsize
        # Copied as raw bytes, which is five times as fast in numpy as copying fields.
        everywhere = np.ndarray((last + 1,), f"V{layout.itemsize}", self._buffer, strides=(1,))
        return everywhere[np.minimum(np.maximum(places, 0), last)].view(layout)

    def words(self, places: np.ndarray) -> np.ndarray:
        """Return the eight bytes at each of ``places`` as a little-endian number."""
        return self.at(_WORD, places)

    def slices(self, spans: Spans) -> pa.Array:
        """Return the bytes of each span as an Arrow binary array."""
        starts, stops = spans
        count = len(starts)
        # Offsets of an Arrow array. The bytes between the spans become additional elements, which are not used.
        edges = np.empty(2 * count + 1, np.int32)
        edges[0 : 2 * count : 2] = first = np.minimum(np.maximum(starts, 0), self.size)
        edges[1 : 2 * count : 2] = np.minimum(np.maximum(stops, first), self.size)
        edges[2 * count] = self.size
        between = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(edges), self._arrow])
        return between.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))

    def is_ascii(self, *spans: Spans) -> np.ndarray:
        """Return for each row whether all its spans contain only ASCII."""
        found = np.ones(len(spans[0][0]), np.bool_)
        for each in spans:
            found &= is_ascii(self.slices(each))
        return found


def varints(words: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decode the varint at the beginning of each word. Return the values, their lengths, and whether each has at most
    VARINT_BYTES_MAX bytes."""
    values = words & 0x7F
    sizes = np.ones(len(words), np.int64)
    goes_on = (words & 0x80) != 0
    for number in range(1, VARINT_BYTES_MAX):
        if not goes_on.any():
            break
        words = words >> 8
        values += np.where(goes_on, (words & 0x7F) << 7 * number, 0)
        sizes += goes_on
        goes_on &= (words & 0x80) != 0
    return values, sizes, ~goes_on


def only(is_there: np.ndarray, spans: Spans) -> Spans:
    """Return ``spans``, with empty spans where ``is_there`` is False."""
    return np.where(is_there, spans[0], 0), np.where(is_there, spans[1], 0)


def is_ascii(slices: pa.Array) -> np.ndarray:
    """Return for each element of ``slices`` (from ``Bytes.slices``) whether it contains only ASCII."""
    found = np.ones(len(slices), np.bool_)
    _, offsets, content = slices.buffers()
    if content is None or not content.size:
        return found
    data = np.frombuffer(content, np.uint8)
    if data.max() < 0x80:
        return found
    edges = np.frombuffer(offsets, np.int32, len(slices) + 1)
    found[np.searchsorted(edges, np.flatnonzero(data > 0x7F), "right") - 1] = False
    return found


def strings(slices: pa.Array, is_there: np.ndarray | None = None) -> pa.Array:
    """Return ``slices`` as a string array; they must be UTF-8. Null where ``is_there`` is False. Shares their
    memory."""
    _, offsets, content = slices.buffers()
    return pa.Array.from_buffers(pa.string(), len(slices), [_validity(is_there), offsets, content])


def filled(slices: pa.Array) -> pa.Array:
    """Return ``slices`` with null in place of empty elements. Shares their memory."""
    _, offsets, content = slices.buffers()
    is_filled = np.diff(np.frombuffer(offsets, np.int32, len(slices) + 1)) > 0
    return pa.Array.from_buffers(pa.binary(), len(slices), [_validity(is_filled), offsets, content])


def numbers(values: np.ndarray, type: pa.DataType, is_there: np.ndarray | None = None) -> pa.Array:
    """Return an Arrow array of numbers or times; null where ``is_there`` is False."""
    whole = np.ascontiguousarray(values, np.dtype(f"i{type.bit_width // 8}"))
    return pa.Array.from_buffers(type, len(whole), [_validity(is_there), pa.py_buffer(whole)])


def booleans(values: np.ndarray, is_there: np.ndarray | None = None) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(values), [_validity(is_there), _bits(values)])


def _validity(is_there: np.ndarray | None) -> pa.Buffer | None:
    return None if is_there is None or is_there.all() else _bits(is_there)


def _bits(values: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
