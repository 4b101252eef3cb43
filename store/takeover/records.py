"""The records that make the journal agree with ActiveMQ's view, in the order in which they are written.

    begin mark
    Rollback            transactions that are prepared only according to the journal
    Subscription        without description: subscriptions that are not in ActiveMQ's view
    RemoveDestination   destinations that are not in ActiveMQ's view
    Subscription        subscriptions that the journal lacks
    ...                 unchanged records that ActiveMQ would not read again (store.takeover.strays)
    Remove              messages that ActiveMQ's view does not hold, of a queue or of one subscription
    Update, [Remove]    messages that the journal lacks, or has at another place in the order; each with a hint that has
                        its order key, and a Remove for each subscription of its topic for which it is not pending
    end mark

ActiveMQ reads all of them, and ignores marks and hints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tandemmq.journal.checked import CheckedReader
from tandemmq.journal.errors import JournalCorrupt
from tandemmq.journal.format import Location
from tandemmq.journal.reader import JournalReader
from tandemmq.store.records import commands
from tandemmq.store.records.hints import with_copy_hint
from tandemmq.store.records.loose import OPENWIRE_VERSION
from tandemmq.store.records.openwire import decode_message, encode_message
from tandemmq.store.records.transactions import transaction_of_key
from tandemmq.store.takeover.difference import Copy, Plan, Removal
from tandemmq.store.takeover.marks import BEGIN, END

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
