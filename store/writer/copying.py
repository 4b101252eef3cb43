"""Copies of stored messages, for compaction and for delivery counts. A copy keeps the place of its message in the
order. Only for the storage thread. The state at the time when the batch is formed decides which messages are copied
(safety.md 5).
"""

# proofs: compaction

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tandemmq.journal.errors import JournalCorrupt
from tandemmq.store.records import commands
from tandemmq.store.records.altered import with_redeliveries
from tandemmq.store.records.hints import with_copy_hint
from tandemmq.store.records.openwire import current_frame
from tandemmq.store.state.keys import Entry
from tandemmq.store.state.state import State
from tandemmq.store.writer.pages import Pages

RECORD_HEADER_BYTES = 5
WriteCopies = Callable[[list[bytes]], list[int]]


class Copies(NamedTuple):
    """Records of copies. ``moves``: for each copied message (index of its record in ``payloads``, its holders as
    (owner, order key))."""

    payloads: list[bytes]
    moves: list[tuple[int, list[tuple[int, int]]]]


def copies_of(
    state: State, pages: Pages, owner: int, chunk: Sequence[tuple[int, Entry]], counts: Mapping[int, int] | None = None
) -> Copies:
    """Return an Update for each message of ``owner`` in ``chunk``; for a topic also a Remove for each durable
    subscription for which the message is not pending.

    ``counts``: order key -> number of deliveries to write. With ``counts``, only messages without other holders are
    copied. Raises JournalCorrupt if a message fails its verification.
    """
    made = Copies([], [])
    records = pages.read([(entry.location, entry.size) for _, entry in chunk])
    for (order_key, entry), record in zip(chunk, records, strict=True):
        add = commands.added(commands.decode(record))
        assert add is not None, "an entry points to a record that stores a message"
        frame = current_frame(add.message, pages.version_at(entry.location >> 32))
        if counts is not None:
            frame = with_redeliveries(frame, counts[order_key])
        add = add._replace(message=frame, transaction=None)  # prove: copy-unbound ", transaction=None"
        copy = commands.encode(commands.UpdateMessage(add))
        holders = [(owner, order_key)]
        others: list[bytes] = []
        for subscription in state.topics.get(add.destination, ()) if add.destination.is_topic else ():
            if subscription == owner:
                continue
            held = state.entry(subscription, order_key)
            if held is not None and held.message_id == entry.message_id:
                # prove: shared-record-moves-for-all "held.location == entry.location" -> "False"
                if held.location == entry.location:
                    holders.append((subscription, order_key))
            else:
                key = state.owners[subscription].key
                remove = commands.encode_remove(add.destination, add.message_id, None, key)
                others.append(remove)  # prove: copy-removes-for-others
        if counts is not None and len(holders) > 1:
            continue
        made.moves.append((len(made.payloads), holders))
        made.payloads.append(with_copy_hint(copy, order_key, entry.location))
        made.payloads.extend(others)
    return made


def write(state: State, copies: Copies, write_copies: WriteCopies) -> int:
    """Write ``copies``, and set the places of the messages in the state. Return the number of bytes of the payloads.
    ``write_copies`` returns the locations when the copies are durable."""
    if not copies.payloads:
        return 0
    locations = write_copies(copies.payloads)
    for number, holders in copies.moves:
        size = len(copies.payloads[number]) + RECORD_HEADER_BYTES
        is_shared = False
        for holder, order_key in holders:
            state.move(holder, order_key, locations[number], size, is_shared=is_shared)
            is_shared = True
    return sum(map(len, copies.payloads))


def count(
    state: State,
    pages: Pages,
    owner: int,
    counts: Mapping[int, int],
    has_room: Callable[[int], bool],
    write_copies: WriteCopies,
) -> None:
    """Write messages of ``owner`` again, with their delivery counts. ``counts``: order key -> number of deliveries.

    Messages that ``owner`` does not hold any more are skipped. Messages that fail their verification stay unchanged;
    they are never delivered. Writes nothing if ``has_room`` returns False for their number of bytes.
    """
    if owner not in state.owners:
        return
    withheld = state.withheld.get(owner, ())
    found = ((order_key, state.entry(owner, order_key)) for order_key in counts if order_key not in withheld)
    chunk = [(order_key, entry) for order_key, entry in found if entry is not None]
    if not has_room(sum(entry.size for _, entry in chunk)):  # prove: counts-leave-the-reserve
        return
    try:
        write(state, copies_of(state, pages, owner, chunk, counts), write_copies)
    except JournalCorrupt:
        for each in chunk if len(chunk) > 1 else ():
            count(state, pages, owner, {each[0]: counts[each[0]]}, has_room, write_copies)
