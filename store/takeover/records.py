"""The records that make the journal agree with ActiveMQ's view, in the order in which they are written.

    begin mark
    Rollback            transactions that are prepared only according to the journal
    Subscription        without description: subscriptions that are not in ActiveMQ's view
    RemoveDestination   destinations that are not in ActiveMQ's view
    Subscription        subscriptions that the journal lacks
    ...                 unchanged records that ActiveMQ would not read again: ``repeat_records``
    Remove              messages that ActiveMQ's view does not hold, of a queue or of one subscription
    Update, [Remove]    messages that the journal lacks, or has at another place in the order; each with a hint that has
                        its order key, and a Remove for each subscription of its topic for which it is not pending
    end mark

ActiveMQ reads all of them, and ignores marks and hints.

``repeat_records``: records in files that ActiveMQ wrote and does not read in a replay. ActiveMQ's compaction copies
acknowledgements into a separate file. The first record of that file names the file from which they were copied. While
this source file exists, a replay by ActiveMQ skips the separate file. But if it is the last file at a restart, ActiveMQ
appends other records to it, and a later replay skips these, too (kahadb.md 8.1, 4). This broker skips no file. For a
replay by ActiveMQ, a take-over writes those other records once more: live messages and transactions in doubt as copies,
and outcomes and removals unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing

from tandemmq.journal.checked import CheckedReader
from tandemmq.journal.errors import JournalCorrupt
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import Location, file_of
from tandemmq.journal.reader import JournalReader
from tandemmq.journal.scan import scan
from tandemmq.store.records import commands
from tandemmq.store.records.commands import (
    Commit,
    RemoveDestination,
    RemoveMessage,
    Rewritten,
    Rollback,
    Subscription,
    decode,
    encode,
    encode_prepare,
)
from tandemmq.store.records.hints import with_copy_hint, with_operation_hint
from tandemmq.store.records.loose import OPENWIRE_VERSION
from tandemmq.store.records.message import Destination
from tandemmq.store.records.openwire import decode_message, encode_message
from tandemmq.store.records.transactions import transaction_of_key
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.recovery.header_reader import first_batch
from tandemmq.store.state.state import State
from tandemmq.store.takeover.activemq_view import BEGIN, END
from tandemmq.store.takeover.difference import Copy, Plan, Removal


def skipped_files(files: JournalFiles, foreign: list[int]) -> list[int]:
    """Return the files of ``foreign`` of which ActiveMQ reads only the first record."""
    there = set(files.list())
    found = []
    for file in foreign:
        batch = first_batch(files, file)
        first = None if batch is None or not batch.records else decode(batch.records[0][1])
        if isinstance(first, Rewritten) and first.skip_if_source_exists and first.source_file in there:
            found.append(file)
    return found


def repeat_records(plan: Plan, follower: Follower, skipped: list[int]) -> None:
    """Add to ``plan`` the records that ActiveMQ needs because it does not read the files ``skipped``."""
    follower.checkpoint()  # so that the index has the place of each message
    state, files = follower.state, follower.files
    with closing(JournalReader(files)) as reader:
        for file in skipped:
            for payload in _appended(files, file, follower.epoch_history.ends.get(file)):
                outcome = _outcome(state, payload)
                if outcome is not None:
                    plan.repeated.append(outcome)
        for owner in state.owners.values():
            if owner.latest_record >> 32 in skipped:
                plan.repeated.append(encode(decode(reader.read(owner.latest_record))))
        for key, transaction in state.transactions.items():
            moved = [operation for operation in transaction.operations if operation.location >> 32 in skipped]
            if transaction.is_prepared and (moved or transaction.prepared_at >> 32 in skipped):
                for operation in moved:
                    payload = reader.read(operation.location, operation.size)
                    plan.repeated.append(with_operation_hint(encode(decode(payload)), operation.location))
                plan.repeated.append(encode_prepare(transaction_of_key(key)))
    _copy_messages(plan, state, set(skipped))


def _appended(files: JournalFiles, file: int, end: int | None) -> Iterator[bytes]:
    """Yield the records after the copies. The first of them is the trace that ActiveMQ writes when it starts."""
    is_appended = False
    for batch in scan(files, file, 0, end, on_corrupt=lambda damage: None):
        for _, payload in batch.records:
            is_appended = is_appended or not isinstance(decode(payload), Rewritten | RemoveMessage | Commit)
            if is_appended:
                yield payload


def _outcome(state: State, payload: bytes) -> bytes | None:
    """Return the record to repeat if ``payload`` removed or ended something that no longer exists; otherwise None."""
    command = decode(payload)
    match command:
        case RemoveMessage(destination, message_id, _, key):
            owner = state.owner_named(destination, key)
            order_key = None if owner is None else state.place_of(owner, message_id)
            if owner is None or order_key is None or state.entry(owner, order_key) is None:
                return encode(command._replace(transaction=None, ack=None))
        case Commit() | Rollback():
            return payload
        case Subscription(destination, key, None) if (destination, key) not in state.subscriptions:
            return payload
        case RemoveDestination(destination) if destination not in state.queues:
            return payload
    return None


def _copy_messages(plan: Plan, state: State, skipped: set[int]) -> None:
    copied = {copy.location for copy in plan.copies}
    dead = {(removal.destination, removal.message_id, removal.subscription_key) for removal in plan.removals}
    ended = {owner.key for owner in plan.unsubscribed}
    gone = set(plan.removed_destinations)
    found: dict[int, tuple[int, Copy, Destination, set[str]]] = {}
    for owner in state.owners.values():
        key = owner.subscription_key
        if owner.destination in gone or key in ended:
            continue
        for order_key, entry in state.entries(owner.id, 0):
            # A message is also skipped if its Commit, whose place is in the order key, is in a skipped file.
            is_skipped = file_of(entry.location) in skipped or order_key >> 64 in skipped
            if not is_skipped or entry.location in copied or (owner.destination, entry.message_id, key) in dead:
                continue
            place = entry.location
            if place not in found:
                copy = Copy(place, entry.size, order_key, (), is_restored=False)
                found[place] = order_key, copy, owner.destination, set()
            if key is not None:
                found[place][3].add(key)
    for _, copy, destination, holders in sorted(found.values(), key=lambda item: item[0]):
        keys = {state.owners[owner].key for owner in state.topics.get(destination, ())} - ended
        plan.copies.append(copy._replace(without=tuple(sorted(keys - holders)) if destination.is_topic else ()))


BATCH_BYTES_MAX = 1 << 20
# Bodies have the same layout in this OpenWire version and all later ones.
LAYOUT_VERSION_MIN = 10

VersionAt = Callable[[int], int]
OnCorrupt = Callable[[JournalCorrupt], object]


def batches(
    plan: Plan,
    subscriptions: Sequence[bytes],
    reader: CheckedReader,
    version_at: VersionAt,
    on_corrupt: OnCorrupt | None = None,
) -> Iterator[list[bytes]]:
    """Yield the payloads in batches of at most BATCH_BYTES_MAX; one copy with its Removes may be larger. Yields nothing
    if the plan is empty.

    ``subscriptions`` are the payloads for ``plan.subscribed``; ``version_at`` returns the OpenWire version of the
    bodies in a file. Bodies are read lazily. Raises JournalMissing, JournalCorrupt, RecordDamaged. If ``on_corrupt`` is
    given, it is called with the JournalCorrupt of a message that does not verify, and the message is not copied: its
    copy would have a valid checksum.
    """
    if plan.is_empty:
        return
    batch: list[bytes] = []
    size = 0
    for group in _groups(plan, subscriptions, reader, version_at, on_corrupt):
        length = sum(map(len, group))
        if batch and size + length > BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch += group
        size += length
    yield batch


def _groups(
    plan: Plan,
    subscriptions: Sequence[bytes],
    reader: CheckedReader,
    version_at: VersionAt,
    on_corrupt: OnCorrupt | None,
) -> Iterator[list[bytes]]:
    yield [BEGIN]
    yield from ([commands.encode_rollback(transaction_of_key(key))] for key in plan.rolled_back)
    yield from ([commands.encode(commands.Subscription(owner.destination, owner.key))] for owner in plan.unsubscribed)
    yield from ([commands.encode_remove_destination(destination)] for destination in plan.removed_destinations)
    yield from ([payload] for payload in subscriptions)
    yield from ([payload] for payload in plan.repeated)
    yield from ([_removal(removal)] for removal in plan.removals)
    for copy in plan.copies:
        try:
            records = _copied(copy, reader, version_at)
        except JournalCorrupt as damage:
            if on_corrupt is None:
                raise
            on_corrupt(damage)
            continue
        yield records
    yield [END]


def _removal(removal: Removal) -> bytes:
    destination, message_id, subscription_key = removal
    return commands.encode(commands.RemoveMessage(destination, message_id, subscription_key=subscription_key))


def _copied(copy: Copy, reader: CheckedReader, version_at: VersionAt) -> list[bytes]:
    add = added_at(reader, copy.location, copy.size)
    body = add.message
    version = version_at(copy.location >> 32)
    if version < LAYOUT_VERSION_MIN:
        body = encode_message(decode_message(body, version))
    assert OPENWIRE_VERSION >= LAYOUT_VERSION_MIN, "this broker writes the later layout"
    update = commands.encode(commands.UpdateMessage(add._replace(message=body, transaction=None)))
    records = [with_copy_hint(update, copy.order_key, copy.location)]
    records += _removals(add, copy.without)
    return records


def _removals(add: commands.AddMessage, subscription_keys: Iterable[str]) -> list[bytes]:
    return [_removal(Removal(add.destination, add.message_id, key)) for key in subscription_keys]


def added_at(reader: JournalReader | CheckedReader, location: Location, size: int = 0) -> commands.AddMessage:
    """Return the message that a record stores. Raises JournalMissing, JournalCorrupt, RecordDamaged."""
    command = commands.decode(reader.read(location, size))
    add = commands.added(command)
    if add is None:
        file, offset = location >> 32, location & 0xFFFFFFFF
        raise JournalCorrupt(file, offset, offset + size, f"the record is a {type(command).__name__}, not a message")
    return add
