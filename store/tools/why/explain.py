"""Explanation why each journal file is kept: its holders, the age of their messages, and the cheapest way to free it.

A file stays in each of these cases (State.reclaimable, docs/formats/journal.md):

- It has a live message, a record of a subscription, or a part of an open transaction.
- Its acknowledgements and deletions refer to records in a file that stays.
- It is the fence of an epoch, and a file before it stays.
- The master writes to it.

The facts about the files are copied from the state in short pieces, so this also works with a running store. The
caller's thread reads the disk. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from tandemmq.journal.errors import JournalError, JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import offset_of
from tandemmq.journal.reader import JournalReader
from tandemmq.store.maintenance.compaction import bound_bytes
from tandemmq.store.records.commands import ADD, added, decode
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.records.openwire import decode_any
from tandemmq.store.state.keys import Entry
from tandemmq.store.state.state import State
from tandemmq.store.tools.inspect import Seen, walk
from tandemmq.store.tools.why.facts import Facts, FileFacts, OwnerFacts, TransactionFacts
from tandemmq.store.tools.why.inventory import inventory
from tandemmq.store.tools.why.report import FileWhy, Holder, Oldest, OpenTransaction, Why, action_for
from tandemmq.store.tools.why.verdict import Graph, verdict

# Number of files in one piece. The storage thread serves clients between pieces.
FILES_A_PIECE = 200

T = TypeVar("T")


class Ask(Protocol):
    """Runs a short function on the thread that owns the state, and returns its result."""

    def __call__(self, function: Callable[[State], T], /) -> T: ...


def copy_facts(ask: Ask, epoch_history: EpochHistory, sizes: Mapping[int, int], *, is_written: bool) -> Facts:
    """Return the facts of the files on the disk, with their ``sizes``; ``is_written``: a master writes them now."""
    files: dict[int, FileFacts] = {}
    names = sorted(sizes)
    for start in range(0, len(names), FILES_A_PIECE):
        files |= ask(partial(_copy_files, files=names[start : start + FILES_A_PIECE], sizes=sizes))
    owners = ask(_copy_owners)
    transactions = ask(_copy_transactions)
    tail, reclaimable = ask(partial(_reclaimable, epoch_history=epoch_history, is_written=is_written))
    return Facts(files, owners, transactions, tail, {file for file in reclaimable if file in files})


def _copy_files(state: State, files: Iterable[int], sizes: Mapping[int, int]) -> dict[int, FileFacts]:
    found: dict[int, FileFacts] = {}
    for file in files:
        held = state.files.get(file)
        if held is None:
            found[file] = FileFacts(sizes[file], 0, 0, {}, set(), is_known=False)
            continue
        holders = {owner: (holder[0], holder[1]) for owner, holder in held.holders.items() if holder[0]}
        found[file] = FileFacts(
            sizes[file], held.live, held.live_bytes, holders, {p for p in held.pins if p in state.files}
        )
    return found


def _copy_owners(state: State) -> dict[int, OwnerFacts]:
    return {
        owner.id: OwnerFacts(
            str(owner.destination),
            owner.client_id,
            owner.subscription_name,
            {owner.record_location >> 32, owner.latest_record >> 32} if owner.record_location else set(),
        )
        for owner in state.owners.values()
    }


def _copy_transactions(state: State) -> list[TransactionFacts]:
    found = []
    for key, transaction in state.transactions.items():
        operations: dict[int, int] = {}
        newest: tuple[int, int] | None = None
        for operation in transaction.operations:
            operations[operation.location >> 32] = operations.get(operation.location >> 32, 0) + 1
            if operation.kind == ADD:
                newest = operation.location, operation.size
        found.append(TransactionFacts(key, transaction.is_prepared, transaction.prepared_at >> 32, operations, newest))
    return found


def _reclaimable(state: State, epoch_history: EpochHistory, is_written: bool) -> tuple[int, tuple[int, ...]]:
    tail = state.position.file if state.position is not None else 0
    if not is_written:
        tail += 1  # the next master begins a new file
    return tail, state.reclaimable(epoch_history.first_of_epoch, tail)


# Number of owners in one piece of a search for oldest messages. The storage thread serves clients between pieces.
MESSAGES_A_PIECE = 20
# (maximum number of holders of a file that are named, maximum number of holders whose oldest message is read). The
# first pair applies if all files are explained, the second one for a single file.
HOLDERS_MAX = 20, 5
HOLDERS_OF_ONE_FILE_MAX = 1_000, 1_000


class NoSuchFile(Exception):
    """The journal has no file with that number."""

    def __init__(self, file: int, directory: str) -> None:
        super().__init__(f"there is no db-{file}.log in {directory}")


@dataclass(frozen=True, slots=True)
class Place:
    """Paths of a store, and the maximum length of a journal file in bytes. ``is_written``: a master writes to the store
    now."""

    files: JournalFiles
    file_length: int
    is_written: bool
    index_root: str | None = None
    archive: str | None = None


def explain(
    ask: Ask,
    place: Place,
    epoch_history: EpochHistory,
    now: int,
    *,
    consumers: Mapping[str, int] | None = None,
    only: int | None = None,
    notes: Sequence[str] = (),
) -> Why:
    """Return why each file is kept; with ``only``, why that file is kept. Blocking; reads from the disk.

    ``consumers``: name of each queue ("queue://A") and durable subscription ("client:name") -> its number of consumers;
    None: not known. ``now`` is in ms since 1970. Raises NoSuchFile if the file ``only`` does not exist.
    """
    sizes = {file: size for file in place.files.list() if (size := _size(place.files, file)) is not None}
    facts = copy_facts(ask, epoch_history, sizes, is_written=place.is_written)
    if only is not None and only not in facts.files:
        raise NoSuchFile(only, place.files.directory)
    graph = Graph(facts, epoch_history)
    live_bytes = sum(min(known.live_bytes, known.size) for known in facts.files.values())
    bound = bound_bytes(live_bytes, place.file_length)
    holders_max = HOLDERS_MAX if only is None else HOLDERS_OF_ONE_FILE_MAX
    described = []
    with closing(JournalReader(place.files)) as reader:
        description = _Description(facts, reader, ask, consumers, *holders_max)
        for file in sorted(facts.files) if only is None else [only]:
            why = verdict(facts, graph, epoch_history, file)
            description.fill(why)
            why.action = action_for(why, now)
            described.append(why)
    if only is not None:
        described[0].acknowledgements = _acknowledgements(place.files, epoch_history, only)
    journal_bytes = sum(sizes.values())
    return Why(
        place.files.directory,
        described,
        journal_bytes,
        live_bytes,
        sum(known.live for known in facts.files.values()),
        bound,
        journal_bytes <= bound,
        sorted(facts.reclaimable),
        sum(facts.files[file].size for file in facts.reclaimable),
        inventory(place.files.directory, place.index_root, place.archive),
        list(notes),
    )


def _size(files: JournalFiles, file: int) -> int | None:
    try:
        return files.size(file)
    except FileNotFoundError:
        return None  # removed meanwhile


def _acknowledgements(files: JournalFiles, epoch_history: EpochHistory, file: int) -> dict[str, int]:
    """Return the number of acknowledgements in a file: destination -> number."""
    found: dict[str, int] = {}
    try:
        for item in walk(files, epoch_history, file, is_live=True):
            if isinstance(item, Seen) and item.kind == "remove" and item.counts and item.destination is not None:
                found[item.destination] = found.get(item.destination, 0) + 1
    except JournalMissing:
        pass  # removed meanwhile
    return found


# ---- one file


@dataclass(frozen=True, slots=True)
class _Description:
    """Reader of facts about messages and transactions. ``named``: maximum number of holders of a file that are
    returned; ``dated``: maximum number of these whose oldest message is read from the disk."""

    facts: Facts
    reader: JournalReader
    ask: Ask
    consumers: Mapping[str, int] | None
    named: int
    dated: int

    def fill(self, why: FileWhy) -> None:
        why.holders = self._holders(why.file)
        for transaction in self.facts.transactions:
            if why.file in transaction.files:
                why.transactions.append(_open_transaction(self.reader, transaction, why.file))

    def _holders(self, file: int) -> list[Holder]:
        """Return the holders of a file, those with the most bytes first."""
        holders = self.facts.files[file].holders
        ranked = sorted(holders.items(), key=lambda holder: (-holder[1][1], holder[0]))[: self.named]
        first: dict[int, Entry] = {}
        for start in range(0, min(self.dated, len(ranked)), MESSAGES_A_PIECE):
            piece = [owner for owner, _ in ranked[start : min(self.dated, start + MESSAGES_A_PIECE)]]
            first |= self.ask(partial(_first_messages, owners=piece, file=file))
        found = []
        for number, (count, size) in ranked:
            owner = self.facts.owners.get(number)
            if owner is None:
                continue  # ended meanwhile
            holder = Holder(owner.destination, owner.client_id, owner.subscription_name, count, size)
            if number in first:
                holder.oldest = _oldest(self.reader, first[number])
            if self.consumers is not None:
                is_queue = owner.client_id is None
                name = owner.destination if is_queue else f"{owner.client_id}:{owner.subscription_name}"
                holder.consumers = self.consumers.get(name, 0)
            found.append(holder)
        return found


def _first_messages(state: State, owners: Sequence[int], file: int) -> dict[int, Entry]:
    found: dict[int, Entry] = {}
    for owner in owners:
        if owner in state.owners:
            entry = next((entry for _, entry in state.held_in(owner, file)), None)
            if entry is not None:
                found[owner] = entry
    return found


def _oldest(reader: JournalReader, entry: Entry) -> Oldest:
    oldest = Oldest(entry.message_id, offset_of(entry.location))
    try:
        oldest.timestamp = _timestamp_at(reader, entry.location, entry.size)
    except (JournalError, RecordDamaged) as error:
        oldest.problem = str(error)
    return oldest


def _timestamp_at(reader: JournalReader, location: int, size: int) -> int | None:
    """Return the timestamp of the message in the record at ``location``, ms since 1970; None: it has none."""
    add = added(decode(reader.read(location, size)))
    if add is None:
        raise RecordDamaged("the record at that place is no message")
    return decode_any(add.message).timestamp or None


def _open_transaction(reader: JournalReader, transaction: TransactionFacts, file: int) -> OpenTransaction:
    operations = transaction.operations
    shown = OpenTransaction(transaction.key, transaction.is_prepared, operations.get(file, 0), sum(operations.values()))
    if transaction.newest_add is not None:
        try:
            shown.since = _timestamp_at(reader, *transaction.newest_add)
        except (JournalError, RecordDamaged):
            pass  # optional; ``tandemmq store check`` reports damage
    return shown
