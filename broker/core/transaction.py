"""A client's open transaction: what it sent and acknowledged, held in memory until COMMIT or ABORT.

Bounded in operations and bytes, each transaction and all together. A transaction in which something was refused is
doomed: it can only be rolled back, so that nobody commits the half of it that was taken.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

from broker.core import names
from broker.core.commands import ClientError, ErrorKind
from broker.core.made import Made
from broker.core.memory import ENTRY_OVERHEAD_BYTES, Holder, Kind
from broker.core.queue import Queue
from broker.core.settings import EngineSettings
from broker.core.subscription import Entry, Subscription
from store.operations import RemoveMessage
from store.records.message import Message

Acknowledged = tuple[Subscription, int, Entry]


class Transaction:
    """See the module. ``number`` is the connection's own for it, part of its id in the journal."""

    __slots__ = (
        "_bytes",
        "_bytes_to_store",
        "_holder",
        "_operations",
        "_settings",
        "acknowledged",
        "doom",
        "made",
        "messages",
        "name",
        "number",
        "removals",
    )

    def __init__(self, name: str, number: int, settings: EngineSettings, holder: Holder) -> None:
        self.name = name
        self.number = number
        self.messages: list[Message] = []
        self.acknowledged: list[Acknowledged] = []
        self.doom: str | None = None
        # While it ends: what becomes of ``messages``, and of what was ``acknowledged``.
        self.made: Made | None = None
        self.removals: list[tuple[Queue, RemoveMessage]] | None = None
        self._bytes = 0  # held
        self._bytes_to_store = self._operations = 0  # at COMMIT: a message to several destinations is several
        self._settings = settings
        self._holder = holder

    def send(self, message: Message) -> None:
        """``message`` is to be sent at COMMIT. ClientError, which dooms the transaction, beyond a bound."""
        weight = message.size + ENTRY_OVERHEAD_BYTES
        copies = names.count(message.destination)
        settings = self._settings
        holder = self._holder
        if self._bytes_to_store + weight * copies > settings.transaction_bytes_max:
            self._refuse(f"transaction_bytes_max ({settings.transaction_bytes_max} bytes)")
        if holder.by_kind[Kind.TRANSACTIONS] + weight > holder.memory.held_max:
            self._refuse(f"what is free of memory_limit ({holder.memory.limit} bytes, of the broker)")
        self._count(copies)
        self._bytes += weight
        self._bytes_to_store += weight * copies
        holder.add(Kind.TRANSACTIONS, weight)
        self.messages.append(message)

    def acknowledge(self, subscription: Subscription, covered: list[tuple[int, Entry]]) -> None:
        """Those deliveries are settled at COMMIT. They count as acknowledged for prefetch until then."""
        self._count(len(covered))
        for tag, entry in covered:
            subscription.enlisted[tag] = entry
            subscription.keep(entry)
            self.acknowledged.append((subscription, tag, entry))

    @property
    def held(self) -> int:
        """What its client is counted for it, in bytes."""
        return self._bytes

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.messages and not self.acknowledged

    def _count(self, more: int) -> None:
        limit = self._settings.transaction_operations_max
        if self._operations + more > limit:
            self._refuse(f"transaction_operations_max ({limit} operations)")
        self._operations += more

    def _refuse(self, limit: str) -> None:
        self.refuse(f"it is larger than {limit}", "Commit more often.")

    def refuse(self, reason: str, advice: str) -> NoReturn:
        """Something of it cannot be had: ClientError says why, and from now on it can only be rolled back."""
        self.doom = reason
        raise ClientError(
            f"Transaction {self.name!r} can only be aborted: {reason}", advice, is_fatal=False, kind=ErrorKind.RESOURCE
        )

    def give_back(self) -> None:
        """It ends: what it sent counts for its client no more."""
        self._holder.add(Kind.TRANSACTIONS, -self._bytes)
        self._bytes = 0

    def undo(self, ending: Collection[Subscription] = ()) -> None:
        """ABORT: acknowledgements never happened. The deliveries wait for one again; those of a subscription that was
        closed meanwhile go back to their queue. ``ending``: they are to be closed, and give them back then."""
        self.give_back()
        by_subscription: dict[Subscription, list[tuple[int, Entry]]] = {}
        for subscription, tag, entry in self.acknowledged:
            subscription.let_go(entry)
            if subscription.enlisted.pop(tag, None) is None:
                continue
            if subscription.is_open or subscription in ending:
                by_subscription.setdefault(subscription, []).append((tag, entry))
            elif entry.queue is not None:
                entry.queue.give_back(entry)
        for subscription, entries in by_subscription.items():
            subscription.restore(entries)
