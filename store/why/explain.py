"""Why each journal file is there: who holds it, since when, and the cheapest way to let it go.

A file stays while a live message, a subscription's record or something of an open transaction stands in it; while its
acknowledgements and deletions shadow something in a file that stays; while it fences off an epoch and any file before
it stays; and while it is written to (State.reclaimable, docs/formats/journal.md). Here the same is said in figures.

The state is asked in short pieces, so that it may be that of a running store; what has to be read from the disk is
read by whoever calls. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from journal.errors import JournalError, JournalMissing
from journal.files import JournalFiles
from journal.format import offset_of
from journal.reader import JournalReader
from store.compaction import FACTOR, FILES_BEYOND
from store.headers import Chronicle
from store.inspect import Seen, walk
from store.keys import Entry
from store.records.commands import AddMessage, UpdateMessage, decode
from store.records.errors import RecordDamaged
from store.records.openwire import decode_message, detect_version
from store.state import State
from store.why.copied import Ask, copy_facts
from store.why.facts import Facts, TransactionFacts
from store.why.graph import Graph
from store.why.inventory import inventory
from store.why.report import FileWhy, Holder, Oldest, OpenTransaction, Why
from store.why.verdict import verdict
from store.why.words import action_for

# Oldest messages looked up at once: the storage thread serves clients in between.
MESSAGES_A_PIECE = 20
# Holders of a file that are named, and those of them whose oldest message is looked up: of one of many files, and of
# the only one that was asked for.
HOLDERS_MAX = 20, 5
HOLDERS_OF_ONE_FILE_MAX = 1_000, 1_000


class NoSuchFile(Exception):
    """The journal has no file of that number."""

    def __init__(self, file: int, directory: str) -> None:
        super().__init__(f"there is no db-{file}.log in {directory}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where things lie, and how long a file may get, for the bound. ``is_written``: by a master, now."""

    files: JournalFiles
    file_length: int
    is_written: bool
    index_root: str | None = None
    archive: str | None = None


def explain(
    ask: Ask,
    place: Place,
    chronicle: Chronicle,
    now: int,
    *,
    consumers: Mapping[str, int] | None = None,
    only: int | None = None,
    notes: Sequence[str] = (),
) -> Why:
    """Say of every file, or of ``only`` one, why it is there. Blocking; reads from the disk.

    ``consumers``: how many a queue ("queue://A"), or a durable subscription ("client:name"), has now; None: nobody
    knows. ``now`` is in ms since 1970. Raises NoSuchFile for an ``only`` that is not there.
    """
    sizes = {file: size for file in place.files.list() if (size := _size(place.files, file)) is not None}
    facts = copy_facts(ask, chronicle, sizes, is_written=place.is_written)
    if only is not None and only not in facts.files:
        raise NoSuchFile(only, place.files.directory)
    graph = Graph(facts, chronicle)
    live_bytes = sum(min(known.live_bytes, known.size) for known in facts.files.values())
    bound = int(FACTOR * live_bytes) + FILES_BEYOND * place.file_length
    holders_max = HOLDERS_MAX if only is None else HOLDERS_OF_ONE_FILE_MAX
    reader = JournalReader(place.files)
    try:
        described = [
            _describe(facts, graph, chronicle, file, reader, ask, consumers, holders_max)
            for file in (sorted(facts.files) if only is None else [only])
        ]
    finally:
        reader.close()
    for why in described:
        why.action = action_for(why, now)
    if only is not None:
        described[0].acknowledgements = _acknowledgements(place.files, chronicle, only)
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
        return None  # reclaimed while we looked


def _acknowledgements(files: JournalFiles, chronicle: Chronicle, file: int) -> dict[str, int]:
    """How many acknowledgements stand in a file, by destination."""
    found: dict[str, int] = {}
    try:
        for item in walk(files, chronicle, file, is_live=True):
            if isinstance(item, Seen) and item.kind == "remove" and item.counts and item.destination is not None:
                found[item.destination] = found.get(item.destination, 0) + 1
    except JournalMissing:
        pass  # reclaimed while we looked
    return found


# ---- one file


def _describe(
    facts: Facts,
    graph: Graph,
    chronicle: Chronicle,
    file: int,
    reader: JournalReader,
    ask: Ask,
    consumers: Mapping[str, int] | None,
    holders_max: tuple[int, int],
) -> FileWhy:
    why = verdict(facts, graph, chronicle, file)
    why.holders = _holders(facts, file, reader, ask, consumers, holders_max)
    for transaction in facts.transactions:
        if file in transaction.files:
            why.transactions.append(_open_transaction(reader, transaction, file))
    return why


def _holders(
    facts: Facts,
    file: int,
    reader: JournalReader,
    ask: Ask,
    consumers: Mapping[str, int] | None,
    holders_max: tuple[int, int],
) -> list[Holder]:
    """The largest first."""
    named, dated = holders_max
    ranked = sorted(facts.files[file].holders.items(), key=lambda holder: (-holder[1][1], holder[0]))[:named]
    first: dict[int, Entry] = {}
    for start in range(0, min(dated, len(ranked)), MESSAGES_A_PIECE):
        piece = [owner for owner, _ in ranked[start : min(dated, start + MESSAGES_A_PIECE)]]
        first |= ask(partial(_first_messages, owners=piece, file=file))
    found = []
    for number, (count, size) in ranked:
        owner = facts.owners.get(number)
        if owner is None:
            continue  # it ended meanwhile
        holder = Holder(owner.destination, owner.client_id, owner.subscription_name, count, size)
        if number in first:
            holder.oldest = _oldest(reader, first[number])
        if consumers is not None:
            name = owner.destination if owner.client_id is None else f"{owner.client_id}:{owner.subscription_name}"
            holder.consumers = consumers.get(name, 0)
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
    """When the sender sent the message whose record stands there, ms since 1970; None: the message does not say."""
    command = decode(reader.read(location, size))
    add = command.add if isinstance(command, UpdateMessage) else command
    if not isinstance(add, AddMessage):
        raise RecordDamaged("another record than a message stands there")
    version = detect_version([add.message])
    if version is None:
        raise RecordDamaged("the message is sound in no version of OpenWire")
    return decode_message(add.message, version).timestamp or None


def _open_transaction(reader: JournalReader, transaction: TransactionFacts, file: int) -> OpenTransaction:
    operations = transaction.operations
    told = OpenTransaction(transaction.key, transaction.is_prepared, operations.get(file, 0), sum(operations.values()))
    if transaction.newest_add is not None:
        try:
            told.since = _timestamp_at(reader, *transaction.newest_add)
        except (JournalError, RecordDamaged):
            pass  # an extra; what is damaged is reported by the check
    return told
