"""Blocks (records of a file in one buffer, the input of the lockstep decoder), and Python values as Arrow arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from tandemmq.journal.format import RECORD_HEADER_SIZE
from tandemmq.pipeline.record_rows import Malformed
from tandemmq.pipeline.vectors import BYTE, Bytes
from tandemmq.pipeline.walk import Stretch


def array(values: Sequence[Any], type: pa.DataType) -> pa.Array:
    """Return an array. A lone surrogate, which Java permits in its strings, becomes a question mark."""
    try:
        return pa.array(values, type)
    except UnicodeEncodeError:
        return pa.array([_whole(value) for value in values], type)


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_whole(entry) for entry in value]
    return tuple(map(_whole, value)) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class Block:
    """Records in one buffer. Record ``i``, with its header, is ``buffer[starts[i]:stops[i]]``; its offset in the file
    is ``base + starts[i]``, and the offset of its batch is ``batches[i]``."""

    buffer: bytes
    data: Bytes
    base: int
    starts: np.ndarray
    stops: np.ndarray
    batches: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def record(self, index: int) -> tuple[int, int, bytes]:
        """Return the offset of the record's batch, the offset of its header, and its payload."""
        start = int(self.starts[index])
        payload = self.buffer[start + RECORD_HEADER_SIZE : int(self.stops[index])]
        return int(self.batches[index]), self.base + start, payload

    def of_kinds(self, kinds: Collection[int]) -> Block:
        """Return a block with only the records whose commands have one of these numbers."""
        payloads = self.starts + RECORD_HEADER_SIZE
        kept = (payloads < self.stops) & np.isin(self.data.at(BYTE, payloads), list(kinds))
        return Block(self.buffer, self.data, self.base, self.starts[kept], self.stops[kept], self.batches[kept])


def blocks(stretches: Iterable[Stretch], rows_max: int) -> Iterator[Block]:
    """Yield all records of the ``stretches`` in order, as blocks of at most ``rows_max`` records."""
    together: list[Stretch] = []
    count = 0
    try:
        for stretch in stretches:
            if not stretch.records:
                continue
            if together and (stretch.records.buffer is not together[0].records.buffer or count >= rows_max):
                yield from _cut(together, rows_max)
                together, count = [], 0
            together.append(stretch)
            count += len(stretch.records)
    except Malformed:
        # Earlier records are yielded first, because one of them may be the first damage.
        if together:
            yield from _cut(together, rows_max)
        raise
    if together:
        yield from _cut(together, rows_max)


def _cut(together: list[Stretch], rows_max: int) -> Iterator[Block]:
    buffer, base = together[0].records.buffer, together[0].records.base
    data = Bytes(buffer)
    counts = [len(stretch.records) for stretch in together]
    starts = np.fromiter(chain.from_iterable(stretch.records.starts for stretch in together), np.int64, sum(counts))
    stops = np.fromiter(chain.from_iterable(stretch.records.stops for stretch in together), np.int64, sum(counts))
    batches = np.repeat(np.array([stretch.start for stretch in together], np.int64), counts)
    for begin in range(0, len(starts), rows_max):
        rows = slice(begin, begin + rows_max)
        yield Block(buffer, data, base, starts[rows], stops[rows], batches[rows])
