"""Joint operations, on several stores: prepared in each store, decided in txStore, ended in each store (mKahaDB). Pure.

    prepare     PrepareTransaction in each store                durable, not visible
    decide      a Prepare record in txStore                     final from now on, also after a crash
    end         EndTransaction in each store                    visible
    complete    a Commit record in txStore                      no client waits for it

After a crash before the decision is durable, the next promotion rolls the prepared transactions back. After a crash
later, it commits those that are still prepared. The decision is removed only when no store has the transaction any more
(``stores`` and ``standbys`` ensure that).

In the stores such a transaction is an XA transaction with its own format id, as in ActiveMQ. For a local transaction,
its global id is the connection id, and its branch is the number of the transaction in the connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from tandemmq.store.operations import (
    AddMessage,
    Atomic,
    EndTransaction,
    Operation,
    PagedMessage,
    PrepareTransaction,
    RemoveMessage,
)
from tandemmq.store.records import commands
from tandemmq.store.records.commands import Commit, decode, encode, encode_commit, encode_prepare
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId, XaTransactionId

# ActiveMQ's MultiKahaDBTransactionStore.localXaFormatId
LOCAL_FORMAT_ID = 61616

Part = AddMessage | RemoveMessage


def is_joint(transaction: TransactionId) -> bool:
    """Return whether a transaction belongs to a joint operation. Its outcome is in txStore."""
    return isinstance(transaction, XaTransactionId) and transaction.format_id == LOCAL_FORMAT_ID


def joint_id(transaction: LocalTransactionId) -> XaTransactionId:
    """Return the id that a local transaction has in several stores."""
    return XaTransactionId(
        LOCAL_FORMAT_ID, transaction.connection_id.encode("utf-8", "surrogatepass"), str(transaction.value).encode()
    )


class Completion:
    """Context of a step in one of several stores that is not an operation of the engine. Subclasses do the next step in
    ``durable``; this base class does nothing."""

    __slots__ = ()
    # Whether it may continue while the reports of its store wait (``Member.gate``).
    passes_gate: ClassVar[bool] = True

    def durable(self, store: str, reports: list[Operation]) -> None:
        """Continue after the step is durable in ``store``. Append operations to ``reports`` to report them to the
        engine."""


class Carrier(Protocol):
    """Interface that continues a joint operation after each step."""

    def prepared_everywhere(self, joint: Joint, reports: list[Operation]) -> None:
        """Continue after all stores have prepared it."""

    def decided(self, joint: Joint) -> None:
        """Continue after its decision is durable in txStore."""

    def ended(self, joint: Joint, store: str, reports: list[Operation]) -> None:
        """Continue after ``store`` has ended it."""


@dataclass(slots=True, eq=False, repr=False)
class Joint:
    """Joint operation and its progress. ``parts``: name of a store -> the operations in it.

    must_prepare  its stores must prepare it
    must_decide   it needs a decision in txStore
    is_visible    it makes changes visible, so later operations in a store wait until it is ended there
    is_decided    its decision is durable, or not needed
    ends          name of a store -> its EndTransaction
    """

    operation: Atomic | PrepareTransaction | EndTransaction
    transaction: TransactionId
    parts: Mapping[str, Sequence[Part]]
    carrier: Carrier
    must_prepare: bool = field(init=False)
    must_decide: bool = field(init=False)
    is_visible: bool = field(init=False)
    is_decided: bool = field(init=False)
    ends: dict[str, EndTransaction] = field(default_factory=dict, init=False)
    _begun: set[str] = field(default_factory=set, init=False)
    _outstanding: int = field(init=False)

    def __post_init__(self) -> None:
        self.must_prepare = not isinstance(self.operation, EndTransaction)
        self.must_decide = isinstance(self.operation, Atomic) or (
            isinstance(self.operation, EndTransaction) and self.operation.is_commit
        )
        self.is_visible = not isinstance(self.operation, PrepareTransaction)
        self.is_decided = not self.must_decide
        self._outstanding = len(self.parts)
        if isinstance(self.operation, Atomic):
            for part in self.operation.operations:
                _enlist(part, self.transaction)

    def must_prepare_in(self, store: str) -> bool:
        """Return whether ``store`` must prepare it now. True only at the first call for each store."""
        if not self.must_prepare or store in self._begun:
            return False
        self._begun.add(store)
        return True

    @property
    def may_continue(self) -> bool:
        """True if a store that has got its prepare step may execute later operations."""
        return self.is_decided or not self.is_visible

    def prepare(self, store: str) -> PrepareTransaction:
        """Return the step for ``store`` that prepares it."""
        return PrepareTransaction(
            self.transaction, self.parts[store], encode_prepare(self.transaction), _Prepared(self)
        )

    def decide(self) -> PrepareTransaction:
        """Return the step for txStore that decides it."""
        return decision(self.transaction, _Decided(self))

    def end(self, store: str) -> EndTransaction:
        """Return the step for ``store`` that ends it."""
        operation, is_commit, payload = self.operation, True, encode_commit(self.transaction)
        if isinstance(operation, EndTransaction):
            is_commit, payload = operation.is_commit, operation.payload
        self.ends[store] = end = EndTransaction(self.transaction, is_commit, payload, _Ended(self))
        return end

    def step_done(self) -> bool:
        """Note that one store has done the present step. Return whether it was the last store."""
        self._outstanding -= 1
        if self._outstanding:
            return False
        self._outstanding = len(self.parts)
        return True

    def finish(self) -> None:
        """Set the results in the engine's operation, after all stores have ended it."""
        operation = self.operation
        if isinstance(operation, Atomic):
            added: dict[tuple[int, str], PagedMessage] = {
                (owner, message.message.message_id): message
                for end in self.ends.values()
                for owner, message in end.added
            }
            for part in operation.operations:
                if isinstance(part, AddMessage) and not part.is_duplicate:
                    for owner in part.owners:
                        message = added.get((owner, part.message.message_id))
                        if message is not None:
                            part.order_key, part.location, part.size = message.order_key, message.location, message.size
        elif isinstance(operation, EndTransaction):
            for end in self.ends.values():
                operation.added += end.added
                operation.removed += end.removed
                operation.returned += end.returned
            operation.is_unknown = all(end.is_unknown for end in self.ends.values())


@dataclass(slots=True, eq=False, repr=False)
class _Prepared(Completion):
    joint: Joint

    def durable(self, store: str, reports: list[Operation]) -> None:
        if self.joint.step_done():
            self.joint.carrier.prepared_everywhere(self.joint, reports)


@dataclass(slots=True, eq=False, repr=False)
class _Decided(Completion):
    joint: Joint

    def durable(self, store: str, reports: list[Operation]) -> None:
        self.joint.carrier.decided(self.joint)


@dataclass(slots=True, eq=False, repr=False)
class _Ended(Completion):
    joint: Joint
    passes_gate = False

    def durable(self, store: str, reports: list[Operation]) -> None:
        self.joint.carrier.ended(self.joint, store, reports)


def decision(transaction: TransactionId, completion: Completion) -> PrepareTransaction:
    """Return the step for txStore that decides a transaction. When it is durable, the transaction is final."""
    return PrepareTransaction(transaction, (), encode_prepare(transaction), completion)


def completed(transaction: TransactionId) -> EndTransaction:
    """Return the step for txStore that removes the decision, when no store has the transaction any more."""
    return EndTransaction(transaction, True, encode_commit(transaction), Completion())


def transaction_of(atomic: Atomic) -> LocalTransactionId | None:
    """Return the local transaction that an atomic operation commits, or None."""
    if atomic.commit is None:
        return None
    command = decode(atomic.commit)
    assert isinstance(command, Commit), "an atomic operation ends with a Commit"
    assert isinstance(command.transaction, LocalTransactionId), "an XA transaction has a Prepare"
    return command.transaction


def _enlist(part: Part, transaction: TransactionId) -> None:
    part.payload = _with(part.payload, transaction)
    if isinstance(part, AddMessage):
        part.unmatched_acks = tuple(_with(payload, transaction) for payload in part.unmatched_acks)


def _with(payload: bytes, transaction: TransactionId) -> bytes:
    command = decode(payload)
    assert isinstance(command, commands.AddMessage | commands.RemoveMessage), "a transaction adds and removes messages"
    return encode(command._replace(transaction=transaction))
