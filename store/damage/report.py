"""Report of damage in a journal: the messages concerned, the copy in quarantine, and the mark in the journal.

Damage stops a start, unless the operator has configured that it is skipped. Then its bytes are copied into
``<directory>/quarantine`` with a report, and a trace record marks the range as lost:

    TANDEMMQ-LOST {"file": 7, "start": 1042, "stop": 2048}

Later readers skip a marked range without an error. Nothing is deleted. A second kind of trace, the end marker, is
written after the end of each rotated file. If the next file was the last one and is missing, the marker proves it:

    TANDEMMQ-NEXT {"file": 8}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice

from tandemmq.disk import opened, sync_directory, write_fully
from tandemmq.journal.errors import JournalCorrupt, JournalError, JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.scan import FileSource, Scan
from tandemmq.store.damage.salvage import Shown, differences, salvage
from tandemmq.store.records.marks import NEXT, decode_mark, encode_mark
from tandemmq.store.state.keys import Entry
from tandemmq.store.state.state import State

# Limit of the ids in an error or a log line; the report in quarantine has all ids.
IDS_LISTED_MAX = 20
# Limit of the bytes of a damaged range that are searched for ids.
SEARCHED_BYTES_MAX = 64 << 20
# Limit of the live messages that are compared with damaged ids.
SEARCHED_MESSAGES_MAX = 100_000
COPY_BYTES = 1 << 20
QUARANTINE = "quarantine"
WHOLE_FILE = 1 << 32

_LOST = "TANDEMMQ-LOST "


@dataclass(frozen=True, slots=True)
class Concerned:
    """Live message whose record was in a damaged range. ``holder`` describes its queue or subscription."""

    holder: str
    message_id: str


@dataclass(slots=True)
class Damage:
    """Damaged range of a journal file, from offset ``start`` to before ``stop``; or (``is_lost``) a missing file.

    ``known``: the live messages whose records were there, by the index or the replay. ``shown``: the ids that the
    damaged bytes still contain. ``may_be_collected``: ActiveMQ may have removed the missing file, which it does without
    a record.
    """

    file: int
    start: int
    stop: int
    reason: str
    is_lost: bool = False
    may_be_collected: bool = True
    known: list[Concerned] = field(default_factory=list)
    shown: Shown = field(default_factory=Shown)

    @property
    def place(self) -> str:
        if self.is_lost:
            return f"journal file db-{self.file}.log is missing"
        return f"journal file db-{self.file}.log is corrupt from offset {self.start} to {self.stop}"

    @property
    def message_ids(self) -> list[str]:
        """Ids of the messages that are or may be concerned, each once."""
        return list(dict.fromkeys((*(concerned.message_id for concerned in self.known), *self.shown.message_ids)))

    def __str__(self) -> str:
        parts = [f"{self.place}: {self.reason}"]
        if self.known:
            parts.append(
                f"live messages in it: {listed([f'{each.message_id} ({each.holder})' for each in self.known])}"
            )
        if doubtful := self.doubtful:
            parts.append(f"messages that its bytes may concern: {listed(doubtful)}")
        if not self.known and not doubtful:
            parts.append("no message is known to have been in it")
        return "; ".join(parts)

    @property
    def doubtful(self) -> list[str]:
        """Ids in the damaged bytes that are not in ``known``."""
        sure = {each.message_id for each in self.known}
        return [message_id for message_id in self.shown.message_ids if message_id not in sure]


def listed(ids: Sequence[str]) -> str:
    """Return a text with the first IDS_LISTED_MAX ids, and the number of the rest."""
    text = ", ".join(ids[:IDS_LISTED_MAX])
    return text if len(ids) <= IDS_LISTED_MAX else f"{text} and {len(ids) - IDS_LISTED_MAX} more"


def describe_damages(damages: Sequence[Damage]) -> str:
    """Return a text that describes the damage. Files that are missing for the same reason share one sentence."""
    together: dict[tuple[bool, str], list[Damage]] = {}
    for number, damage in enumerate(damages):
        together.setdefault((damage.is_lost, damage.reason if damage.is_lost else str(number)), []).append(damage)
    return "; ".join(str(group[0]) if len(group) == 1 else _describe_missing(group) for group in together.values())


def _describe_missing(damages: Sequence[Damage]) -> str:
    files = listed([f"db-{damage.file}.log" for damage in damages])
    known = [f"{each.message_id} ({each.holder})" for damage in damages for each in damage.known]
    messages = f"live messages in them: {listed(known)}" if known else "no message is known to have been in them"
    return f"journal files {files} are missing: {damages[0].reason}; {messages}"


def _sentences(damages: Sequence[Damage]) -> str:
    more = f" (and {len(damages) - 1} more damaged places)" if len(damages) > 1 else ""
    return f"{damages[0]}{more}"


class StoreCorrupt(JournalCorrupt):
    """JournalCorrupt with all damaged ranges and the messages concerned."""

    def __init__(self, damages: Sequence[Damage]) -> None:
        first = damages[0]
        super().__init__(first.file, first.start, first.stop, first.reason)
        self.damages = tuple(damages)
        self.message_ids = list(dict.fromkeys(each for damage in damages for each in damage.message_ids))

    def __str__(self) -> str:
        return _sentences(self.damages)


class JournalLost(Exception):
    """A needed journal file is missing, and no record states that it was removed."""

    def __init__(self, damages: Sequence[Damage]) -> None:
        super().__init__(describe_damages(damages))
        self.damages = tuple(damages)
        self.message_ids = list(dict.fromkeys(each for damage in damages for each in damage.message_ids))


def files_of(error: Exception) -> list[int]:
    """Return the journal files that ``error`` reports as damaged or missing; empty for other errors."""
    damages: Sequence[Damage] = getattr(error, "damages", ())
    if not damages and isinstance(error, JournalCorrupt):
        return [error.file]
    return sorted({damage.file for damage in damages})


# ---- the messages concerned


def holder_name(state: State, owner: int) -> str:
    """Return a text that describes a queue or subscription."""
    return str(state.owners.get(owner) or f"owner {owner}")


def named(state: State, dropped: Iterable[tuple[int, int, Entry]]) -> list[Concerned]:
    """Return the messages that ``State.drop_range`` or ``lose_file`` dropped, with descriptions of their owners."""
    return [Concerned(holder_name(state, owner), entry.message_id) for owner, _, entry in dropped]


def held_in_range(state: State, file: int, start: int, stop: int) -> list[tuple[int, int, Entry]]:
    """Return the live messages whose newest record is in the range, as (owner, order key, entry)."""
    held = state.files.get(file)
    if held is None:
        return []
    return [
        (owner, order_key, entry)
        for owner in list(held.holders)
        for order_key, entry in state.held_in(owner, file)
        if start <= entry.location & 0xFFFFFFFF < stop
    ]


def examine(files: JournalFiles, state: State, damage: Damage) -> Damage:
    """Set ``damage.known`` from the state and ``damage.shown`` from the bytes, and return ``damage``. The state is not
    changed."""
    damage.known = named(state, held_in_range(state, damage.file, damage.start, damage.stop))
    if not damage.is_lost:
        damage.shown = shown_in(files, state, damage.file, damage.start, damage.stop)
    return damage


def shown_in(files: JournalFiles, state: State, file: int, start: int, stop: int) -> Shown:
    """Return the ids in the bytes of a range. If the bytes end a transaction, the ids of its messages are included."""
    try:
        with closing(FileSource(files, file)) as source:
            shown = salvage(source.read(start, min(stop - start, SEARCHED_BYTES_MAX)).rstrip(b"\0"))
    except JournalMissing:
        return Shown()
    shown.loose += _similar_ids(state, shown)
    for key in shown.ended:
        transaction = state.transactions.get(key)
        if transaction is not None:
            shown.loose += [operation.message_id for operation in transaction.operations]
    return shown


def _similar_ids(state: State, shown: Shown) -> list[str]:
    """Return ids of live messages that differ only by a few bits from ids in the bytes: an acknowledgement has the id
    of its message only once, and the damage may be in that id."""
    near = [*((each, 8) for each in shown.spoilt), *((each, 1) for each in shown.removed if shown.is_whole)]
    if not near:
        return []
    lengths = {len(each) for each, _ in near}
    entries = (entry for owner in state.owners for _, entry in state.entries(owner, 0))
    return [
        entry.message_id
        for entry in islice(entries, SEARCHED_MESSAGES_MAX)
        if len(entry.message_id) in lengths
        and any(0 < differences(entry.message_id, each) <= bits for each, bits in near)
    ]


# ---- quarantine


def quarantine(files: JournalFiles, damage: Damage) -> str:
    """Copy the damaged bytes into quarantine, with a report; durable on return. Return the path of the report.

    Existing files of the same names are not overwritten, because the first copy is the evidence. Raises OSError.
    """
    directory = os.path.join(files.directory, QUARANTINE)
    os.makedirs(directory, exist_ok=True)
    name = f"db-{damage.file}.lost" if damage.is_lost else f"db-{damage.file}.{damage.start}-{damage.stop}"
    report = os.path.join(directory, f"{name}.json")
    if not damage.is_lost:
        _write_once(files, os.path.join(directory, f"{name}.bin"), _pieces(files, damage))
    _write_once(files, report, [json.dumps(as_json(damage), indent=1, ensure_ascii=False).encode()])
    for path in (directory, files.directory):
        sync_directory(files.disk, path)
    return report


def as_json(damage: Damage) -> dict[str, object]:
    """Return the report as it is written in quarantine and by ``store check --json``."""
    return {
        "file": f"db-{damage.file}.log",
        "start": damage.start,
        "stop": damage.stop,
        "is_lost": damage.is_lost,
        "reason": damage.reason,
        "lost": [{"held_by": each.holder, "message_id": each.message_id} for each in damage.known],
        "doubtful": {
            "stored": damage.shown.added,
            "removed": damage.shown.removed,
            "ended_transactions": damage.shown.ended,
            "pieces_of_text": damage.shown.loose,
        },
    }


def _pieces(files: JournalFiles, damage: Damage) -> Iterable[bytes]:
    with closing(FileSource(files, damage.file)) as source:
        for at in range(damage.start, damage.stop, COPY_BYTES):
            yield source.read(at, min(COPY_BYTES, damage.stop - at))


def _write_once(files: JournalFiles, path: str, pieces: Iterable[bytes]) -> None:
    disk = files.disk
    if os.path.exists(path):
        return
    new = f"{path}.new"  # a crash may leave this file; it is no evidence, and is overwritten
    with opened(disk, new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        offset = 0
        for piece in pieces:
            write_fully(disk, fd, piece, offset)
            offset += len(piece)
        disk.fsync(fd)
    os.rename(new, path)


# ---- the mark in the journal


def encode_lost(file: int, start: int, stop: int) -> bytes:
    """Return the payload of the record that marks a range as lost."""
    return encode_mark(_LOST, {"file": file, "start": start, "stop": stop})


def decode_lost(payload: bytes) -> tuple[int, int, int] | None:
    """Return (file, start, stop) of a record that marks a range as lost, or None for any other trace."""
    body = decode_mark(_LOST, payload)
    return None if body is None else (int(body["file"]), int(body["start"]), int(body["stop"]))


def encode_next(file: int) -> bytes:
    """Return the payload of the end marker. It is written after the end of a rotated file when ``file``, the next file,
    has its header."""
    return encode_mark(NEXT, {"file": file})


def decode_next(payload: bytes) -> int | None:
    """Return the next file that an end marker states, or None for any other trace."""
    body = decode_mark(NEXT, payload)
    return None if body is None else int(body["file"])


class DeclaredLosses:
    """Marks of lost ranges in a journal. The mark of a range is in a later file; files are read when they are
    needed."""

    def __init__(self, files: JournalFiles) -> None:
        self._files = files
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        self._read_to: dict[int, int] = {}

    def note(self, file: int, start: int, stop: int) -> None:
        """Note a mark that another reader found."""
        self._ranges.setdefault(file, []).append((start, stop))

    def covers(self, file: int, start: int, stop: int, later: Mapping[int, int | None]) -> bool:
        """Return whether a mark covers the range. ``later``: {file: its end} of the later files, which are read if
        needed."""
        if self._is_covered(file, start, stop):
            return True
        for number, end in later.items():
            self._read_marks(number, end)
        return self._is_covered(file, start, stop)

    def _is_covered(self, file: int, start: int, stop: int) -> bool:
        return any(first <= start and stop <= last for first, last in self._ranges.get(file, ()))

    def _read_marks(self, file: int, end: int | None) -> None:
        known = self._read_to.get(file, 0)
        scan = Scan(lambda: FileSource(self._files, file), file, known, end, on_corrupt=lambda _: None)
        try:
            for batch in scan:
                for _, payload in batch.records:
                    lost = None if payload[:1] != b"\0" else decode_lost(payload)
                    if lost is not None:
                        self.note(*lost)
                self._read_to[file] = batch.end
        except JournalError:
            pass  # readers of that file itself report the error
