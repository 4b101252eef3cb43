"""One client's interest in a destination: what was delivered to it and not yet acknowledged.

Tags grow by one with each delivery, so ``unacked`` is ordered by them. A subscription never looks into a
connection: it asks its outlet whether more may be written, and that is all. Prefetch counts what is delivered and
not acknowledged; AUTO acknowledges at delivery, so only the outlet slows it down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.core.commands import AckMode, ClientError, Connect
from store.records.message import Message

if TYPE_CHECKING:
    from broker.core.queue import Queue
    from broker.core.topic import Topic

# What a message in memory costs beside its bytes: the objects, the dict of its properties, its place in a queue.
ENTRY_OVERHEAD_BYTES = 700


class Session(Protocol):
    """What the broker says to a client."""

    def connected(self, command: Connect, session_id: str) -> None: ...

    def receipt(self, receipt: str) -> None: ...

    def deliver(
        self, subscription_id: str, tag: int, message: Message, redelivered: bool, ack_mode: AckMode
    ) -> None: ...

    def fail(self, error: ClientError) -> None: ...


class Outlet(Protocol):
    """Where deliveries go. The core only asks ``is_writable``; the engine speaks to the session."""

    @property
    def is_writable(self) -> bool: ...

    @property
    def session(self) -> Session: ...

    def touch(self) -> None: ...


class Memory:
    """What all queues and transactions of one engine hold in memory, and may hold. Bytes."""

    __slots__ = ("stored", "stored_max", "transactions", "transactions_max", "volatile", "volatile_max")

    def __init__(self, stored_max: int, volatile_max: int, transactions_max: int) -> None:
        self.stored = 0
        self.stored_max = stored_max
        self.volatile = 0
        self.volatile_max = volatile_max
        self.transactions = 0
        self.transactions_max = transactions_max


class Entry:
    """A message in the memory of one queue. ``order_key`` 0: it is nowhere else (non-persistent).

    ``position`` orders what is in memory, stored or not. ``redeliveries`` counts how often it was delivered and came
    back, ``refusals`` how often because a client said so.
    """

    __slots__ = ("location", "message", "order_key", "position", "redeliveries", "refusals", "size", "weight")

    def __init__(self, message: Message, order_key: int, location: int, size: int, weight: int) -> None:
        self.message = message
        self.order_key = order_key
        self.location = location
        self.size = size
        self.weight = weight
        self.position = 0
        self.redeliveries = message.redelivery_counter
        self.refusals = 0


def volatile_entry(message: Message) -> Entry:
    """A message that only memory holds."""
    return Entry(message, 0, 0, 0, len(message.body) + ENTRY_OVERHEAD_BYTES)


class Subscription:
    """See the module. ``queue`` is None for a plain topic subscription, ``topic`` for all others.

    ``enlisted`` holds what was acknowledged in a transaction that is still open.
    """

    __slots__ = (
        "ack",
        "credit",
        "enlisted",
        "id",
        "is_auto",
        "is_cumulative",
        "is_open",
        "no_local",
        "outlet",
        "queue",
        "tag",
        "topic",
        "unacked",
    )

    def __init__(self, id: str, outlet: Outlet, ack: AckMode, prefetch: int, *, no_local: bool = False) -> None:
        self.id = id
        self.outlet = outlet
        self.ack = ack
        self.is_auto = ack is AckMode.AUTO
        self.is_cumulative = ack is AckMode.CLIENT
        self.credit = prefetch
        self.no_local = no_local
        self.tag = 0
        self.unacked: dict[int, Entry] = {}
        self.enlisted: dict[int, Entry] = {}
        self.queue: Queue | None = None
        self.topic: Topic | None = None
        self.is_open = True

    def take(self, tag: int) -> list[tuple[int, Entry]]:
        """What an acknowledgement of ``tag`` covers, oldest first; nothing if it was not waiting for one."""
        unacked = self.unacked
        entry = unacked.get(tag)
        if entry is None:
            return []
        if not self.is_cumulative:
            del unacked[tag]
            self.credit += 1
            return [(tag, entry)]
        covered = []
        for pair in unacked.items():
            if pair[0] > tag:
                break
            covered.append(pair)
        for number, _ in covered:
            del unacked[number]
        self.credit += len(covered)
        return covered

    def take_one(self, tag: int) -> Entry | None:
        """The delivery ``tag`` alone, whatever the mode (a NACK is never cumulative)."""
        entry = self.unacked.pop(tag, None)
        if entry is not None:
            self.credit += 1
        return entry

    def restore(self, entries: list[tuple[int, Entry]]) -> None:
        """Those acknowledgements never happened: the deliveries wait for one again, in their old order."""
        self.credit -= len(entries)
        self.unacked = dict(sorted([*self.unacked.items(), *entries]))
