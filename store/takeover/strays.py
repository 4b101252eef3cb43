"""Records that ActiveMQ wrote into files that it will not read again.

Its compaction copies acknowledgements into a separate file, whose first record names the file they come from.
While that source file is there, a replay skips the copies. But after a restart such a file may be the last, and
ActiveMQ appends to it: a replay skips that, too (kahadb.md 8.1, 4). This broker skips nothing; for a replay by
ActiveMQ these records are written once more: live messages and branches in doubt as copies, and records that ended
something, unchanged.
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
    """Return the files of ``foreign`` after whose first record ActiveMQ reads nothing."""
    there = set(files.list())
    found = []
    for file in foreign:
        batch = first_batch(files, file)
        first = None if batch is None or not batch.records else decode(batch.records[0][1])
        if isinstance(first, Rewritten) and first.skip_if_source_exists and first.source_file in there:
            found.append(file)
    return found


def say_again(plan: Plan, follower: Follower, skipped: list[int]) -> None:
    """Add to ``plan``, which makes the state exact for this broker, the records that make it exact for ActiveMQ."""
    follower.checkpoint()  # so that the index knows where each message is
    state, files = follower.state, follower.files
    with closing(JournalReader(files)) as reader:
        for file in skipped:
            for payload in _strays(files, file, follower.epoch_history.ends.get(file)):
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


def _strays(files: JournalFiles, file: int, end: int | None) -> Iterator[bytes]:
    """Yield the records that are no copies: the first is the trace that ActiveMQ has started."""
    is_stray = False
    for batch in scan(files, file, 0, end, on_corrupt=lambda damage: None):
        for _, payload in batch.records:
            is_stray = is_stray or not isinstance(decode(payload), Rewritten | RemoveMessage | Commit)
            if is_stray:
                yield payload


def _outcome(state: State, payload: bytes) -> bytes | None:
    """Return the record once more, if it ended something that does not exist again."""
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
            # The place where it took effect counts too: the Commit of a message that was committed there is not read.
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
