"""Search for message ids in damaged bytes of a journal file. Pure.

The results are not trusted: they only show an operator which messages the damage concerns. A record is found by the
size of the previous one while sizes are plausible; otherwise the next bytes that may begin a record are searched.
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

# Possible lengths of the hints after a command in its record (store.records.hints)
HINT_BYTES = (0, 9, 21)
# Limit of the ids of each kind that are kept.
IDS_MAX = 10_000
# Beginning of a record of less than 16 MiB with one of KahaDB's commands
_RECORD = re.compile(rb"(?=\x00.{3}\x01[\x00-\x0f])", re.DOTALL)
# Message id in the usual form of brokers and JMS clients, in an incomplete record. Without '"', the tag of the next
# field.
_LOOSE_ID = re.compile(rb"ID:[!#-~]{3,250}")
# Tag of the field of a command that has the id. The length after the tag shows where the id ends.
_KEY_FIELD = re.compile(rb"\x1a(?=[\x08-\x7f])")

# Beginning of a stored OpenWire message: its length, then its type
_FRAME = re.compile(rb"(?=(\x00.{3})[\x17-\x1d])", re.DOTALL)


@dataclass(slots=True)
class Shown:
    """Result of a search: ids and keys in damaged bytes.

    added     ids of messages that complete records stored
    removed   ids of messages that complete records removed
    ended     keys of transactions that complete records ended
    loose     pieces of text outside complete records that look like message ids
    spoilt    damaged ids: texts in the place of an id that do not look like one
    is_whole  the sizes in the first batch are consistent: bytes may be wrong, but none is missing
    """

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    spoilt: list[str] = field(default_factory=list)
    is_whole: bool = False

    @property
    def message_ids(self) -> list[str]:
        """All message ids, each once."""
        return list(dict.fromkeys((*self.added, *self.removed, *self.loose)))


def salvage(data: bytes) -> Shown:
    """Search the bytes of a damaged range, which begins where a batch should begin."""
    shown = Shown(is_whole=_is_whole(data))
    at = 0
    torn = 0  # from here to ``at`` no complete record was found
    is_sought = False  # ``at`` was found by a search, not by the size of the previous record
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
    """Return the command of the record at ``at`` and the offset of the next record, or None. The size in the record
    header or that in the command may be damaged."""
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
    # Hints may follow the command; only the record's size includes them. The size is trusted if a record follows there.
    is_next = is_size_sane and framed <= by_size and (by_size == framed or _may_begin(data, by_size))
    return command, (by_size if is_next else framed)


def _may_begin(data: bytes, at: int) -> bool:
    """Return whether a record or a batch may begin at ``at``, or the bytes end there."""
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
    """Return the id in the bytes of the message if it differs from the id in the command. One of them is damaged, so
    both are reported."""
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
    """Return ``loose`` without texts that are only the beginning of another id, for example the id of a producer."""
    beginnings: set[str] = set()
    for message_id in shown.message_ids:
        words = message_id.split(":")
        beginnings.update(":".join(words[:count]) for count in range(2, len(words)))
    return [piece for piece in dict.fromkeys(shown.loose) if piece not in beginnings]


def differences(one: str, other: str) -> int:
    """Return the number of bits in which two ids differ; if their lengths differ, more bits than an id has."""
    if len(one) != len(other):
        return 8 * max(len(one), len(other))
    return sum((ord(a) ^ ord(b)).bit_count() for a, b in zip(one, other, strict=True))
