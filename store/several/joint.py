"""Operations that concern several stores: prepared in each, decided in txStore, ended in each (mKahaDB). Pure.

    prepare     PrepareTransaction in every store               durable, nothing is visible
    decide      the Prepare record in txStore                   final from here on, whatever crashes
    end         EndTransaction in every store                   visible
    complete    the Commit record in txStore no client waits for it

A crash before the decision was durable leaves prepared transactions without a decision: the next promotion rolls them
back. A crash after it leaves some of them prepared: they are committed. The decision is removed only after every store
is free of the transaction (``stores`` and ``standbys`` ensure that).

In the stores such a transaction is an XA transaction with its own format id, as in ActiveMQ: a local one's global
id is its connection's, its branch the connection's number for it.
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
    """Return whether a transaction was made here for an operation on several stores: its outcome is in txStore."""
    return isinstance(transaction, XaTransactionId) and transaction.format_id == LOCAL_FORMAT_ID


def joint_id(transaction: LocalTransactionId) -> XaTransactionId:
    """Return the identity of a local transaction in several stores."""
    return XaTransactionId(
        LOCAL_FORMAT_ID, transaction.connection_id.encode("utf-8", "surrogatepass"), str(transaction.value).encode()
    )


class Completion:
    """Context of a step that one of several stores does and the engine does not know: it decides what follows. In this
    base class nothing follows."""

    __slots__ = ()
    # True if it may continue while the store holds back its reports (``Member.gate``).
    passes_gate: ClassVar[bool] = True

    def durable(self, store: str, told: list[Operation]) -> None:
        """Continue after the step is durable in ``store``. Operations to report to the engine are appended to
        ``told``."""


class Carrier(Protocol):
    """Carries a joint operation from step to step."""

    def prepared_everywhere(self, joint: Joint, told: list[Operation]) -> None:
        """Continue after every store has prepared it."""

    def decided(self, joint: Joint) -> None:
        """Continue after its outcome is in txStore."""

    def ended(self, joint: Joint, store: str, told: list[Operation]) -> None:
        """Continue after it is visible in ``store``."""


@dataclass(slots=True, eq=False, repr=False)
class Joint:
    """Operation on several stores, by the caller's names for them, and its progress.

    ``is_visible``: it makes something visible, so later operations in a store wait until it is ended there.
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
        """Return whether ``store`` must still prepare it. Returns True only once for each store."""
        if not self.must_prepare or store in self._begun:
            return False
        self._begun.add(store)
        return True

    @property
    def may_go_on(self) -> bool:
        """True if a store that got its prepare step may execute later operations."""
        return self.is_decided or not self.is_visible

    def prepare(self, store: str) -> PrepareTransaction:
        """Return the first step for ``store``."""
        return PrepareTransaction(
            self.transaction, self.parts[store], encode_prepare(self.transaction), _Prepared(self)
        )

    def decide(self) -> PrepareTransaction:
        """Return the step for txStore: the decision."""
        return decision(self.transaction, _Decided(self))

    def end(self, store: str) -> EndTransaction:
        """Return the last step for ``store``."""
        operation, is_commit, payload = self.operation, True, encode_commit(self.transaction)
        if isinstance(operation, EndTransaction):
            is_commit, payload = operation.is_commit, operation.payload
        self.ends[store] = end = EndTransaction(self.transaction, is_commit, payload, _Ended(self))
        return end

    def came_back(self) -> bool:
        """Note that one store has done the current step; return whether it was the last."""
        self._outstanding -= 1
        if self._outstanding:
            return False
        self._outstanding = len(self.parts)
        return True

    def finish(self) -> None:
        """Write the reports of all stores into the operation, once all have ended it."""
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

    def durable(self, store: str, told: list[Operation]) -> None:
        if self.joint.came_back():
            self.joint.carrier.prepared_everywhere(self.joint, told)


@dataclass(slots=True, eq=False, repr=False)
class _Decided(Completion):
    joint: Joint

    def durable(self, store: str, told: list[Operation]) -> None:
        self.joint.carrier.decided(self.joint)


@dataclass(slots=True, eq=False, repr=False)
class _Ended(Completion):
    joint: Joint
    passes_gate = False

    def durable(self, store: str, told: list[Operation]) -> None:
        self.joint.carrier.ended(self.joint, store, told)


def decision(transaction: TransactionId, completion: Completion) -> PrepareTransaction:
    """Return the decision for txStore: once it is durable the transaction is final, whatever crashes."""
    return PrepareTransaction(transaction, (), encode_prepare(transaction), completion)


def completed(transaction: TransactionId) -> EndTransaction:
    """Return the step for txStore when no other store has the transaction any more; nothing follows from it."""
    return EndTransaction(transaction, True, encode_commit(transaction), Completion())


def transaction_of(atomic: Atomic) -> LocalTransactionId | None:
    """Return the transaction whose Commit an atomic operation has, or None."""
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
