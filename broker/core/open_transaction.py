"""Open transaction of a client: its sends and acknowledgements, held in memory until COMMIT or ABORT.

Bounded in operations and bytes, each transaction and all together. After a refusal, a transaction can only be rolled
back, so that a part of it is never committed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NoReturn

from tandemmq.broker.core import names
from tandemmq.broker.core.commands import ErrorKind, refusal
from tandemmq.broker.core.delivery import Delivery, Entry, QueueBase, Subscription
from tandemmq.broker.core.memory import ENTRY_OVERHEAD_BYTES, Holder, Kind
from tandemmq.broker.core.operations import Copies
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.store.operations import RemoveMessage
from tandemmq.store.records.message import Message

_TRANSACTIONS = Kind.TRANSACTIONS  # members of an enumeration are looked up slowly


@dataclass(slots=True, eq=False, repr=False)
class Usage:
    """Bytes on their way into the store for one user: submitted since this broker became master, and sent in open
    transactions (broker.engine.limits)."""

    handed_over: int = 0
    in_transactions: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Transaction:
    """An open transaction, in memory. ``number`` is its number within the connection, part of its id in the journal."""

    name: str
    number: int
    _settings: EngineSettings
    _holder: Holder
    messages: list[Message] = field(default_factory=list, init=False)
    acknowledged: list[Delivery] = field(default_factory=list, init=False)
    rollback_reason: str | None = field(default=None, init=False)
    # During its end: the copies of ``messages``, and the removals of ``acknowledged``.
    copies: Copies | None = field(default=None, init=False)
    removals: list[tuple[QueueBase, RemoveMessage]] | None = field(default=None, init=False)
    _bytes: int = field(default=0, init=False)  # held in memory
    _bytes_to_store: int = field(default=0, init=False)  # at COMMIT: a message to several destinations is several
    _operations: int = field(default=0, init=False)
    _usage: Usage | None = field(default=None, init=False)
    _charged: int = field(default=0, init=False)  # to that usage

    def charge(self, usage: Usage, size: int) -> None:
        """Charge ``size`` bytes to its user, until ``release`` or the end."""
        self._usage = usage
        self._charged += size
        usage.in_transactions += size

    def release(self) -> int:
        """Stop charging the transaction's bytes to its user. Return how many bytes counted."""
        size, self._charged = self._charged, 0
        if self._usage is not None:
            self._usage.in_transactions -= size  # prove: ended-transaction-counts-no-more
        return size

    def charge_again(self, size: int) -> None:
        """Charge ``size`` bytes, the result of ``release``, again: the transaction did not end."""
        if self._usage is not None:
            self.charge(self._usage, size)

    def send(self, message: Message) -> None:
        """Add ``message``, to be sent at COMMIT. ClientError, which dooms the transaction, beyond a bound."""
        weight = message.size + ENTRY_OVERHEAD_BYTES
        copies = names.count(message.destination)
        settings = self._settings
        holder = self._holder
        if self._bytes_to_store + weight * copies > settings.transaction_bytes_max:
            self._refuse(f"transaction_bytes_max ({settings.transaction_bytes_max} bytes)")
        if holder.by_kind[_TRANSACTIONS] + weight > holder.memory.held_max:
            self._refuse(f"the free part of memory_limit ({holder.memory.limit} bytes, of the broker)")
        self._count(copies)
        self._bytes += weight
        self._bytes_to_store += weight * copies
        holder.add(_TRANSACTIONS, weight)
        self.messages.append(message)

    def acknowledge(self, subscription: Subscription, covered: list[tuple[int, Entry]]) -> None:
        """Add deliveries that are settled at COMMIT. They count as acknowledged for prefetch until then."""
        self._count(len(covered))
        for tag, entry in covered:
            subscription.enlisted[tag] = entry
            subscription.keep(entry)
            self.acknowledged.append((subscription, tag, entry))

    @property
    def held(self) -> int:
        """Bytes that it counts for its client."""
        return self._bytes

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to commit."""
        return not self.messages and not self.acknowledged

    def _count(self, more: int) -> None:
        limit = self._settings.transaction_operations_max
        if self._operations + more > limit:
            self._refuse(f"transaction_operations_max ({limit} operations)")
        self._operations += more

    def _refuse(self, limit: str) -> None:
        self.refuse(f"it is larger than {limit}", "Commit more often.")

    def refuse(self, reason: str, advice: str) -> NoReturn:
        """Raise ClientError with the reason; the transaction can then only be rolled back."""
        self.rollback_reason = reason
        raise refusal(f"Transaction {self.name!r} can only be aborted: {reason}", advice, ErrorKind.RESOURCE)

    def give_back(self) -> None:
        """Stop counting the transaction's messages for its client, at its end."""
        self._holder.add(Kind.TRANSACTIONS, -self._bytes)
        self._bytes = 0
        self.release()

    def undo(self, ending: Collection[Subscription] = ()) -> None:
        """Undo the acknowledgements at ABORT. The deliveries wait for an acknowledgement again; those of a subscription
        that was closed meanwhile go back to their queue. ``ending``: subscriptions that close next; each gives its
        deliveries back then."""
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
