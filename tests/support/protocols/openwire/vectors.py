"""Frames written by ActiveMQ 5.17.2: every type of command, in versions 1 to 12, in both encodings.

Each line is a JSON object with name, version, tight, cache (the negotiated value), optionally stackTrace, and hex (a
frame with its size) or hexFrames (several frames in one direction, of which later ones use the cache of the earlier
ones). All other frames have an empty cache. ``fields``: the content.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tandemmq.broker.protocols.openwire.codec import WireFormat

_FILE = Path(__file__).with_name("vectors.jsonl.gz")
CACHE_SIZE = 1024


class Vector(NamedTuple):
    name: str
    version: int
    is_tight: bool
    is_cached: bool
    has_stack_traces: bool
    frames: tuple[bytes, ...]
    fields: dict[str, Any]

    def __str__(self) -> str:
        form = ("tight" if self.is_tight else "loose") + (" cached" if self.is_cached else "")
        return f"{self.name} v{self.version} {form}"

    def wire_format(self) -> WireFormat:
        """Return the negotiated wire format of the vector, with an empty cache."""
        return WireFormat(
            self.version,
            is_tight=self.is_tight,
            is_cached=self.is_cached,
            has_stack_traces=self.has_stack_traces,
            cache_size=CACHE_SIZE,
        )


@cache
def vectors() -> tuple[Vector, ...]:
    return tuple(_read())


def _read() -> Iterator[Vector]:
    with gzip.open(_FILE, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield Vector(
                row["name"],
                row["version"],
                row["tight"],
                row["cache"],
                row.get("stackTrace", False),
                tuple(bytes.fromhex(text) for text in row.get("hexFrames") or [row["hex"]]),
                row["fields"],
            )
