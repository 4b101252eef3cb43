"""Manifest: the description of an archived journal file, stored beside the file, so that a reader need not open it.

docs/formats/archive-manifest.md describes the fields, and when a manifest is written.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tandemmq.journal.errors import JournalCorrupt
from tandemmq.journal.scan import Scan, Source
from tandemmq.journal.verify import Borrowed
from tandemmq.store.records import commands
from tandemmq.store.records.commands import Trace
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.fields import BROKER_IN_SINCE, read_fields
from tandemmq.store.records.headers import Header, decode_header, header_body, header_of_body
from tandemmq.store.records.loose import I64
from tandemmq.store.records.marks import NEXT, clock_of
from tandemmq.store.records.message import unread
from tandemmq.store.records.openwire import detect_version

FORMAT: Final = 1
SUFFIX: Final = ".manifest.json"
CHUNK_BYTES: Final = 1 << 20
# A writer makes no longer manifest; a reader refuses a longer file.
MANIFEST_BYTES_MAX: Final = 4 << 20

_BROKER_IN: Final = 12  # index of the field brokerInTime in the offsets that read_fields returns


class Place(NamedTuple):
    """Offsets of a batch and of one of its records, in the file."""

    batch: int
    record: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Fields of docs/formats/archive-manifest.md, without ``broker`` and ``epoch``, which are in ``header``."""

    name: str
    file: int
    bytes: int
    sha256: str
    counted: int
    counted_sha256: str
    end: int | None
    header: Header | None
    openwire: int | None
    directory: str
    first: Place | None
    last: Place | None
    batches: int
    records: int
    commands: Mapping[str, int]
    first_time: int | None
    last_time: int | None
    damaged: int


def encode_manifest(manifest: Manifest) -> bytes:
    header = manifest.header
    body: dict[str, Any] = {"format": FORMAT}
    for name in manifest.__slots__:
        value = getattr(manifest, name)
        body[name] = value._asdict() if isinstance(value, Place) else value
        if name == "header":
            body[name] = None if header is None else header_body(header)
            body["broker"] = None if header is None else header.holder
            body["epoch"] = None if header is None else header.epoch
    return json.dumps(body, indent=1).encode() + b"\n"


def decode_manifest(content: bytes) -> Manifest | None:
    """Return the manifest in a file's ``content``, or None if it is no manifest of this format."""
    try:
        body = json.loads(content)
        if body["format"] != FORMAT:
            return None
        header = body["header"]
        values: dict[str, Any] = {name: convert(body[name]) for convert, names in _READ.items() for name in names}
        return Manifest(
            header=None if header is None else header_of_body(header),
            commands={str(name): int(count) for name, count in body["commands"].items()},
            **values,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _place(value: Any) -> Place | None:
    return None if value is None else Place(int(value["batch"]), int(value["record"]))


# Converter of JSON values -> the fields that it converts.
_READ: Final[dict[Callable[[Any], Any], tuple[str, ...]]] = {
    str: ("name", "sha256", "counted_sha256", "directory"),
    int: ("file", "bytes", "counted", "batches", "records", "damaged"),
    _number: ("end", "openwire", "first_time", "last_time"),
    _place: ("first", "last"),
}


def describe(
    source: Source,
    *,
    name: str,
    file: int,
    directory: str,
    end: int | None = None,
    openwire: int | None = None,
    pause: Callable[[], object] = lambda: None,
) -> Manifest:
    """Read a journal file twice from beginning to end, and return its manifest. ``source`` stays open.

    ``end``, ``openwire``: the end of the file and the OpenWire version, by the headers of the journal. Memory: one
    chunk, or one batch if it is longer; ``pause`` is called after each. Raises OSError if the source fails.
    """
    summary = _Summary(openwire)
    damaged = 0

    def on_corrupt(corruption: JournalCorrupt) -> None:
        nonlocal damaged
        damaged += corruption.stop - corruption.start

    size = source.size()
    limit = None if end is None else min(end, size)
    since_pause = 0
    for batch in Scan(lambda: Borrowed(source), file, 0, limit, on_corrupt=on_corrupt, chunk_bytes=CHUNK_BYTES):
        if end is None and _is_end_marker(batch.records):
            continue  # the file ends before the marker, also if no header states its end
        summary.batch(batch.offset, batch.end, batch.records)
        since_pause += batch.end - batch.offset
        if since_pause >= CHUNK_BYTES:
            pause()
            since_pause = 0
    counted = hashlib.sha256()
    at = _digest(source, counted, 0, summary.counted, pause)
    whole = counted.copy()
    size = _digest(source, whole, at, None, pause)
    first_time, last_time = summary.times()
    return Manifest(
        name=name,
        file=file,
        bytes=size,
        sha256=whole.hexdigest(),
        counted=summary.counted,
        counted_sha256=counted.hexdigest(),
        end=end,
        header=summary.header,
        openwire=openwire,
        directory=directory,
        first=summary.first,
        last=summary.last,
        batches=summary.batches,
        records=summary.records,
        commands={commands.NAMES.get(number, str(number)): count for number, count in sorted(summary.commands.items())},
        first_time=first_time,
        last_time=last_time,
        damaged=damaged,
    )


def _digest(source: Source, digest: Any, start: int, stop: int | None, pause: Callable[[], object]) -> int:
    """Add the bytes from ``start`` to ``stop`` (None: the end of the file) to the digest. Return the offset after
    them."""
    at = start
    while stop is None or at < stop:
        data = source.read(at, CHUNK_BYTES if stop is None else min(CHUNK_BYTES, stop - at))
        if not data:
            break
        digest.update(data)
        at += len(data)
        pause()
    return at


@dataclass(slots=True, eq=False)
class _Summary:
    """Sums over the batches of a file."""

    _openwire: int | None
    header: Header | None = None
    first: Place | None = None
    last: Place | None = None
    counted: int = 0
    batches: int = 0
    records: int = 0
    commands: Counter[int] = field(default_factory=Counter)
    _clocks: list[tuple[int, int]] = field(default_factory=list)  # (offset, time) of the first and the last clock mark
    _adds: list[tuple[int, bytes]] = field(default_factory=list)  # (offset, payload) of the first and the last Add

    def batch(self, offset: int, end: int, records: Sequence[tuple[int, bytes]]) -> None:
        self.batches += 1
        self.counted = end
        if not records:
            return
        if self.first is None:
            self.first = Place(offset, records[0][0])
            self.header = _header(records[0][1]) if offset == 0 else None
        self.last = Place(offset, records[-1][0])
        self.records += len(records)
        kinds = [payload[0] if payload else -1 for _, payload in records]
        self.commands.update(kinds)
        if commands.TRACE in kinds:
            for at, payload in records:
                if (shown := clock_of(_text(payload) or "")) is not None:
                    self._clocks[1:] = [(at, shown)]
        if commands.ADD in kinds:
            if not self._adds:
                self._adds.append(records[kinds.index(commands.ADD)])
            self._adds[1:] = [records[len(kinds) - 1 - kinds[::-1].index(commands.ADD)]]

    def times(self) -> tuple[int | None, int | None]:
        """Return the times of the first and the last record that have a time, in ms since 1970; None: no record has."""
        shown = list(self._clocks)
        for at, payload in self._adds:
            time = self._broker_in(payload)
            if time is not None:
                shown.append((at, time))
        return (min(shown)[1], max(shown)[1]) if shown else (None, None)

    def _broker_in(self, payload: bytes) -> int | None:
        try:
            add = commands.added(commands.decode(payload))
            if add is None:
                return None
            version = self._openwire or detect_version([add.message])
            if version is None or version < BROKER_IN_SINCE:
                return None
            marks, _, _ = read_fields(unread(), add.message, version)
            return int(I64.unpack_from(add.message, marks[_BROKER_IN])[0]) or None
        except (RecordDamaged, IndexError, struct.error):
            return None


def _header(payload: bytes) -> Header | None:
    try:
        return decode_header(payload)
    except RecordDamaged:
        return None


def _is_end_marker(records: Sequence[tuple[int, bytes]]) -> bool:
    """Return whether these records are the end marker that a rotation writes after the end of the old file."""
    return len(records) == 1 and (_text(records[0][1]) or "").startswith(NEXT)


def _text(payload: bytes) -> str | None:
    if not payload or payload[0] != commands.TRACE:
        return None
    try:
        trace = commands.decode(payload)
    except RecordDamaged:
        return None
    return trace.message if isinstance(trace, Trace) else None
