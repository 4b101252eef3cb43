"""Explanation why each journal file is kept: its holders, the age of their messages, and the cheapest way to free it.

A file stays in each of these cases (State.reclaimable, docs/formats/journal.md):

- It has a live message, a record of a subscription, or a part of an open transaction.
- Its acknowledgements and deletions refer to records in a file that stays.
- It is the fence of an epoch, and a file before it stays.
- The master writes to it.

The state is read in short pieces, so this also works with a running store. The caller's thread reads the disk. Nothing
is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from tandemmq.journal.errors import JournalError, JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import offset_of
from tandemmq.journal.reader import JournalReader
from tandemmq.store.maintenance.compaction import bound_bytes
from tandemmq.store.records.commands import added, decode
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.records.openwire import decode_any
from tandemmq.store.state.keys import Entry
from tandemmq.store.state.state import State
from tandemmq.store.tools.inspect import Seen, walk
from tandemmq.store.tools.why.copied import Ask, copy_facts
from tandemmq.store.tools.why.facts import Facts, TransactionFacts
from tandemmq.store.tools.why.graph import Graph
from tandemmq.store.tools.why.inventory import inventory
from tandemmq.store.tools.why.report import FileWhy, Holder, Oldest, OpenTransaction, Why
from tandemmq.store.tools.why.verdict import verdict
from tandemmq.store.tools.why.words import action_for

# Number of owners in one piece whose oldest message is searched. The storage thread serves clients between pieces.
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
