"""Find message ids in damaged bytes of a journal file. Pure.

The results are not trusted: they only show an operator which messages the damage concerns. Records are followed by
their sizes while these are plausible; otherwise the next place that could be a record is tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tandemmq.journal.format import (
    CONTROL,
    CONTROL_MARK,
    CONTROL_SIZE,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    USER_RECORD,
    decode_records,
)
from tandemmq.store.records.commands import AddMessage, Command, Commit, RemoveMessage, Rollback, added, decode
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.openwire import decode_message
from tandemmq.store.records.protobuf import decode_varint

# What may be after a command in its record (store.records.hints)
HINT_BYTES = (0, 9, 21)
# Maximum of ids of one range that are remembered.
IDS_MAX = 10_000
# Beginning of a record of less than 16 MiB that holds one of KahaDB's commands
_RECORD = re.compile(rb"(?=\x00.{3}\x01[\x00-\x0f])", re.DOTALL)
# Message ids as brokers and JMS clients make them, in a record that is not whole. No '"': a field begins with it.
_LOOSE_ID = re.compile(rb"ID:[!#-~]{3,250}")
# The field of a command that holds the id: its length tells where the id ends, even if the bytes after it are damaged.
_KEY_FIELD = re.compile(rb"\x1a(?=[\x08-\x7f])")

# An OpenWire message as the store keeps it: its length, then its type
_FRAME = re.compile(rb"(?=(\x00.{3})[\x17-\x1d])", re.DOTALL)


@dataclass(slots=True)
class Shown:
    """Ids of messages that records in the bytes stored or removed, and keys of transactions that they ended.

    ``loose``: pieces of text outside whole records that look like message ids. ``spoilt``: texts in the place of an id
    that are no ids any more. ``is_whole``: the first batch has all its records, so that no byte is missing in it, and
    at least one is wrong.
    """

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    spoilt: list[str] = field(default_factory=list)
    is_whole: bool = False

    @property
    def message_ids(self) -> list[str]:
        """All ids, each once."""
        return list(dict.fromkeys((*self.added, *self.removed, *self.loose)))


def salvage(data: bytes) -> Shown:
    """Scan the bytes of a damaged range, which begins where a batch should."""
    shown = Shown(is_whole=_is_whole(data))
    at = 0
    torn = 0  # from here to ``at`` no whole record was found
    is_sought = False  # ``at`` was found by a search: then the whole record must be plausible
    while at + RECORD_HEADER_SIZE < len(data):
        if data.startswith(CONTROL_MARK, at):
            _note_loose(shown, data[torn:at])
            at = torn = at + CONTROL_SIZE
            is_sought = False
            continue
        found = _command_at(data, at, is_sought)
        if found is not None:
            _note_loose(shown, data[torn:at])
            command, at = found
            torn = at
            is_sought = False
            _note(shown, command)
            continue
        following = _RECORD.search(data, at + 1)
        control = data.find(CONTROL_MARK, at + 1)
        places = [place for place in (-1 if following is None else following.start(), control) if place >= 0]
        if not places:
            break
        at = min(places)
        is_sought = True
    _note_loose(shown, data[torn:])
    shown.loose = _without_beginnings(shown)
    return shown


def _is_whole(data: bytes) -> bool:
    if len(data) < CONTROL_SIZE or not data.startswith(CONTROL_MARK):
        return False
    stop = CONTROL_SIZE + int(CONTROL.unpack_from(data)[1])
    return CONTROL_SIZE < stop <= len(data) and decode_records(data, CONTROL_SIZE, stop, 0) is not None


def _command_at(data: bytes, at: int, is_sought: bool) -> tuple[Command, int] | None:
    """Return the command of the record at ``at`` and the place of the next record; either size may be damaged."""
    size, kind = RECORD_HEADER.unpack_from(data, at)
    start = at + RECORD_HEADER_SIZE
    by_size = at + size
    is_size_sane = start < by_size <= len(data)
    if not is_size_sane and (is_sought or kind != USER_RECORD):
        return None
    try:
        length, body = decode_varint(data, start + 1)
        framed = body + length
        command = decode(data[start:framed]) if framed <= len(data) else None
    except (RecordDamaged, IndexError, ValueError):
        return None
    if command is None or (is_sought and by_size - framed not in HINT_BYTES):
        return None
    # Hints may follow the command, which only the size shows; the size is trusted if a record follows there.
    is_next = is_size_sane and framed <= by_size and (by_size == framed or _may_begin(data, by_size))
    return command, (by_size if is_next else framed)


def _may_begin(data: bytes, at: int) -> bool:
    """Return whether a record or a batch may begin there, or the bytes end."""
    return at + RECORD_HEADER_SIZE >= len(data) or data.startswith(CONTROL_MARK, at) or bool(_RECORD.match(data, at))


def _note(shown: Shown, command: Command) -> None:
    add = added(command)
    if add is not None:
        _remember(shown.added, (add.message_id, *_inner_id(add)))
    match command:
        case RemoveMessage():
            _remember(shown.removed, (command.message_id,))
        case Commit(transaction) | Rollback(transaction):
            _remember(shown.ended, (transaction.key,))


def _inner_id(add: AddMessage) -> tuple[str, ...]:
    """Return the id in the message's own bytes if it differs: if either id is damaged, both are reported."""
    return tuple(inner for inner in _id_in(add.message) if inner != add.message_id)


def _id_in(frame: bytes) -> tuple[str, ...]:
    try:
        return (decode_message(frame).message_id,)
    except (RecordDamaged, ValueError, IndexError):
        return ()


def _note_loose(shown: Shown, data: bytes) -> None:
    if not data:
        return
    for tag in _KEY_FIELD.finditer(data):
        length = data[tag.end()]
        key = data[tag.end() + 1 : tag.end() + 1 + length].decode("latin-1")
        if len(key) == length and key.isascii() and key.isprintable() and key.startswith("ID:"):
            _remember(shown.loose, (key,))
        elif len(key) == length:
            _remember(shown.spoilt, (key,))
    for frame in _FRAME.finditer(data):
        stop = frame.start() + 4 + int.from_bytes(frame[1], "big")
        if stop <= len(data):
            _remember(shown.loose, _id_in(data[frame.start() : stop]))
    _remember(shown.loose, (found.decode("ascii") for found in _LOOSE_ID.findall(data)))


def _remember(ids: list[str], more: Iterable[str]) -> None:
    for message_id in more:
        if len(ids) < IDS_MAX:
            ids.append(message_id)


def _without_beginnings(shown: Shown) -> list[str]:
    """Return ``loose`` without those that are only the beginning of another id: of a connection, of a producer."""
    beginnings: set[str] = set()
    for message_id in shown.message_ids:
        words = message_id.split(":")
        beginnings.update(":".join(words[:count]) for count in range(2, len(words)))
    return [piece for piece in dict.fromkeys(shown.loose) if piece not in beginnings]


def differences(one: str, other: str) -> int:
    """Return the number of bits in which two ids differ; a high number if their lengths differ."""
    if len(one) != len(other):
        return 8 * max(len(one), len(other))
    return sum((ord(a) ^ ord(b)).bit_count() for a, b in zip(one, other, strict=True))
