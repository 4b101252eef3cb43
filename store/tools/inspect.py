"""Description of the records of a journal: place, meaning, and whether each is valid. Reads only.

Other parts are shown in their place: damage, a torn tail, batches that a deposed master wrote after the end. Every byte
of a file belongs to a record, the header of a batch, one of those parts, or unused space (Summary).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from tandemmq.disk import NotRegular
from tandemmq.journal.errors import JournalCorrupt, JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import CONTROL_SIZE, RECORD_HEADER_SIZE
from tandemmq.journal.scan import Batch, scan
from tandemmq.store.damage.report import decode_lost, decode_next
from tandemmq.store.records import commands
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.headers import MARK, EpochHistory, Header, decode_header, ranges, read_epoch_history
from tandemmq.store.records.hints import CopyHint, UserHint, hint_of, user_in
from tandemmq.store.records.marks import OUR_TRACES, clock_of, decode_connections, decode_gone, decode_settled
from tandemmq.store.records.message import Message
from tandemmq.store.records.openwire import decode_any, decode_message
from tandemmq.store.recovery.header_reader import first_batch

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# The last millisecond of the year 9999, which is the latest time that datetime supports.
_LAST_MS: Final = 253_402_300_799_999

DAMAGED: Final = "damaged"
TORN: Final = "torn"
BEHIND_THE_END: Final = "behind the end"

# Name of a share of the bytes in a summary -> the kinds of records in it.
_SHARES: Final = {
    "messages": ("add", "update"),
    "copies": ("copy",),
    "removes": ("remove",),
    "transactions": ("prepare", "commit", "rollback"),
    "subscriptions and destinations": ("subscribe", "unsubscribe", "remove-destination"),
    "bookkeeping": ("header", "mark", "trace", "audit", "ack-map", "rewritten"),
    "schedules": ("schedule",),
    "unreadable": ("unreadable",),
}
SHARES: Final = {kind: share for share, kinds in _SHARES.items() for kind in kinds}
KINDS: Final = tuple(SHARES)


@dataclass(frozen=True, slots=True)
class Seen:
    """A record. ``offset`` and ``batch``: offsets of the record and of its batch in ``file``. ``size``: its bytes with
    its header.

    ``counts`` is False after the end that a successor named: the writer was deposed. ``hint_bytes``: number of bytes
    after the command, which ActiveMQ ignores. ``text``: text of a header or trace. ``says``: the meaning of the record,
    or a remark, in words.
    """

    file: int
    offset: int
    batch: int
    size: int
    kind: str
    payload: bytes = field(repr=False)
    counts: bool = True
    destination: str | None = None
    message_id: str | None = None
    subscription: str | None = None
    transaction: str | None = None
    hint_bytes: int = 0
    moved_from: tuple[int, int] | None = None  # (file, offset) of the record that this one is a copy of
    text: str | None = None
    says: str | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes from ``start`` to before ``stop`` of ``file`` that have no valid records. ``what`` is DAMAGED, TORN or
    BEHIND_THE_END."""

    file: int
    start: int
    stop: int
    what: str
    reason: str


Item = Seen | Gap


def read_headers(files: JournalFiles) -> EpochHistory:
    """Return the epoch history of all files, from their headers."""
    return read_epoch_history(files.list(), lambda file: _header_of(files, file))


def _header_of(files: JournalFiles, file: int) -> Header | None:
    try:
        batch = first_batch(files, file)
    except (JournalMissing, NotRegular):
        return None
    return decode_header(batch.records[0][1]) if batch is not None and batch.records else None


def walk(files: JournalFiles, epoch_history: EpochHistory, file: int, *, is_live: bool = False) -> Iterator[Item]:
    """Iterate over all items of one file, in order. ``is_live``: a broker writes the file now, so an unfinished write
    is its end.

    Raises JournalMissing if the file does not exist.
    """
    damage: list[JournalCorrupt] = []
    end = epoch_history.ends.get(file)
    if end != 0:
        found = scan(files, file, 0, end, is_live=is_live and end is None, on_corrupt=damage.append)
        for batch in found:
            yield from _gaps(damage)
            yield from _records(batch, counts=True)
        yield from _gaps(damage)
        if end is None:
            if found.ending.is_torn and not is_live:
                size = files.size(file)
                yield Gap(file, found.ending.offset, size, TORN, "an incomplete write, which got no receipt")
            return
    assert end is not None, "without a known end, all records of the file were read"
    for batch in scan(files, file, end, is_live=True):
        if all(decode_next(payload) is not None for _, payload in batch.records):
            yield from _records(batch, counts=True)  # a rotation writes this mark after the end
            continue
        yield Gap(file, batch.offset, batch.end, BEHIND_THE_END, f"a successor's header ends the file at {end}")
        yield from _records(batch, counts=False)


def _gaps(damage: list[JournalCorrupt]) -> Iterator[Gap]:
    for corruption in damage:
        yield Gap(corruption.file, corruption.start, corruption.stop, DAMAGED, corruption.reason)
    damage.clear()


def _records(batch: Batch, *, counts: bool) -> Iterator[Seen]:
    for offset, payload in batch.records:
        yield describe(batch.file, offset, batch.offset, payload, counts=counts)


def describe(file: int, offset: int, batch: int, payload: bytes, *, counts: bool = True) -> Seen:
    """Return the description of one record. If it cannot be decoded, its kind is "unreadable", and ``says`` is the
    reason."""
    size = len(payload) + RECORD_HEADER_SIZE
    try:
        command = commands.decode(payload)
        hint_bytes = len(commands.trailing(payload))
        hint = hint_of(payload) if hint_bytes else None
    except RecordDamaged as error:
        return Seen(file, offset, batch, size, "unreadable", payload, counts, says=str(error))
    kind = _kind(command)
    if isinstance(hint, CopyHint):
        kind = "copy"
    stored = commands.added(command) or command
    transaction = getattr(stored, "transaction", None)
    destination = getattr(stored, "destination", None)
    return Seen(
        file,
        offset,
        batch,
        size,
        kind,
        payload,
        counts,
        None if destination is None else str(destination),
        getattr(stored, "message_id", None),
        getattr(stored, "subscription_key", None),
        None if transaction is None else transaction.key,
        hint_bytes,
        None
        if hint is None or isinstance(hint, UserHint)
        else (hint.old_location >> 32, hint.old_location & 0xFFFFFFFF),
        command.message if isinstance(command, commands.Trace) else None,
        _says(command, payload),
    )


_KIND_OF: Final[dict[type, str]] = {
    commands.AddMessage: "add",
    commands.UpdateMessage: "update",
    commands.RemoveMessage: "remove",
    commands.Prepare: "prepare",
    commands.Commit: "commit",
    commands.Rollback: "rollback",
    commands.RemoveDestination: "remove-destination",
    commands.ProducerAudit: "audit",
    commands.AckMap: "ack-map",
    commands.Rewritten: "rewritten",
    commands.Schedule: "schedule",
}


def _kind(command: commands.Command) -> str:
    if isinstance(command, commands.Trace):
        text = command.message or ""
        return "header" if text.startswith(MARK) else "mark" if text.startswith(OUR_TRACES) else "trace"
    if isinstance(command, commands.Subscription):
        return "unsubscribe" if command.info is None else "subscribe"
    return _KIND_OF[type(command)]


def _says(command: commands.Command, payload: bytes) -> str | None:
    match command:
        case commands.Trace():
            header = decode_header(payload)
            return _mark_says(payload, command.message or "") if header is None else _header_says(header)
        case commands.Subscription(_, _, info) if info is not None:
            user = user_in(payload)
            parts = (f"user {user}" if user is not None else "", f"selector {info.selector}" if info.selector else "")
            return ", ".join(filter(None, parts)) or None
        case commands.ProducerAudit(blob) | commands.AckMap(blob):
            return f"{len(blob)} bytes"
        case commands.Rewritten(source):
            return f"copies from db-{source}.log"
        case commands.Schedule(kind):
            return f"command {kind} of the scheduler"
    return None


def _header_says(header: Header) -> str:
    parts = [f"epoch {header.epoch} of {header.holder}, by {header.reason}"]
    if header.ends:
        parts.append("ends " + ", ".join(f"db-{file}.log at {end}" for file, end in sorted(header.ends.items())))
    parts.append(f"there are {_files(header.files)}, written with sync {header.sync}")
    return "; ".join(parts)


def _mark_says(payload: bytes, text: str) -> str | None:
    clock = clock_of(text)
    if clock is not None and clock <= _LAST_MS:
        shown = _EPOCH + timedelta(milliseconds=clock)
        return f"the clock showed {shown:%Y-%m-%d %H:%M:%S}.{clock % 1000:03} UTC"
    pairs = decode_connections(payload)
    if pairs:
        return f"users of connections: {', '.join(f'{id} of {user}' for id, user in pairs)}"
    gone = decode_gone(payload)
    if gone:
        return f"gives up {_files(gone)}"
    settled = decode_settled(payload)
    if settled is not None:
        topic, key = settled
        of = "" if topic is None else f" of topic {topic}"
        return f"all messages of {key}{of} are behind its newest record"
    following = decode_next(payload)
    if following is not None:
        return f"db-{following}.log follows, and has its header"
    lost = decode_lost(payload)
    return None if lost is None else f"db-{lost[0]}.log does not count from {lost[1]} to {lost[2]}: it was lost"


def _files(files: Iterable[int]) -> str:
    return ", ".join(f"db-{a}.log" if a == b else f"db-{a}.log to db-{b}.log" for a, b in ranges(files))


def message_of(seen: Seen, epoch_history: EpochHistory) -> Message | None:
    """Return the message in an add, update or copy; None for other kinds. Raises RecordDamaged."""
    if seen.kind not in ("add", "update", "copy"):
        return None
    stored = commands.added(commands.decode(seen.payload))
    assert stored is not None, "an add stores a message"
    if epoch_history.headers:
        return decode_message(stored.message, epoch_history.version_at(seen.file))
    return decode_any(stored.message)


class Trail:
    """Filter for the records about one message id: those that store, move or remove the message, and the outcome of its
    transactions."""

    def __init__(self, message_id: str) -> None:
        self._message_id = message_id
        self._transactions: set[str] = set()
        self._destinations: set[str] = set()

    def concerns(self, seen: Seen) -> bool:
        """Return whether this record belongs to the message. Must be called for all records in order."""
        if seen.message_id == self._message_id:
            if seen.transaction is not None:
                self._transactions.add(seen.transaction)
            if seen.kind != "remove" and seen.destination is not None:
                self._destinations.add(seen.destination)
            return True
        if seen.kind in ("prepare", "commit", "rollback"):
            return seen.transaction in self._transactions
        return seen.kind in ("remove-destination", "unsubscribe") and seen.destination in self._destinations


@dataclass(slots=True)
class Summary:
    """Number of records and their bytes for each kind. ``bytes``, the size of all files, is the sum of the bytes of all
    kinds, ``batch_bytes``, ``dead_bytes`` and ``unused_bytes``. ``dead_bytes``: damage, torn tails, bytes after an
    end."""

    records: dict[str, int] = field(default_factory=dict)
    record_bytes: dict[str, int] = field(default_factory=dict)
    files: int = 0
    batches: int = 0
    bytes: int = 0
    dead_bytes: int = 0
    _last_batch: tuple[int, int] = (0, -1)

    @property
    def batch_bytes(self) -> int:
        return self.batches * CONTROL_SIZE

    @property
    def unused_bytes(self) -> int:
        """Bytes that are allocated and not written yet, or that no reader uses."""
        return self.bytes - self.dead_bytes - self.batch_bytes - sum(self.record_bytes.values())

    def file(self, size: int) -> None:
        """Note that a file of ``size`` bytes begins."""
        self.files += 1
        self.bytes += size

    def add(self, item: Item) -> None:
        """Count an item of ``walk``."""
        if isinstance(item, Gap):
            self.dead_bytes += item.stop - item.start
            return
        if not item.counts:
            return  # the Gap after the end has its bytes
        self.records[item.kind] = self.records.get(item.kind, 0) + 1
        self.record_bytes[item.kind] = self.record_bytes.get(item.kind, 0) + item.size
        if (item.file, item.batch) != self._last_batch:
            self._last_batch = (item.file, item.batch)
            self.batches += 1

    def shares(self) -> dict[str, int]:
        """Return the bytes by purpose (``SHARES``). "bookkeeping" has the records that a broker writes for itself."""
        found: dict[str, int] = {}
        for kind, size in self.record_bytes.items():
            found[SHARES[kind]] = found.get(SHARES[kind], 0) + size
        return found
