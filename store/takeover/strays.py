"""Records in files that ActiveMQ wrote and does not read in a replay.

ActiveMQ's compaction copies acknowledgements into a separate file. The first record of that file names the file from
which they were copied. While this source file exists, a replay by ActiveMQ skips the separate file. But if it is the
last file at a restart, ActiveMQ appends other records to it, and a later replay skips these, too (kahadb.md 8.1, 4).
This broker skips no file. For a replay by ActiveMQ, a take-over writes those other records once more: live messages and
transactions in doubt as copies, and outcomes and removals unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import file_of
from tandemmq.journal.reader import JournalReader
from tandemmq.journal.scan import scan
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
from tandemmq.store.records.hints import with_operation_hint
from tandemmq.store.records.message import Destination
from tandemmq.store.records.transactions import transaction_of_key
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.recovery.header_reader import first_batch
from tandemmq.store.state.state import State
from tandemmq.store.takeover.difference import Copy, Plan


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
