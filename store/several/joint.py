"""Operations that concern several stores: prepared in each, decided in txStore, ended in each (mKahaDB). Pure.

    prepare     PrepareTransaction in every store               durable, nothing is visible
    decide      the Prepare record in txStore                   from here on it happens, whatever crashes
    end         EndTransaction in every store                   visible
    complete    the Commit record in txStore                    nobody waits for it

A crash before the decision was durable leaves prepared transactions without one: they are rolled back at the next
promotion. A crash after it leaves some of them prepared: they are committed. The decision goes only after every store
is free of the transaction (``stores`` and ``standbys`` see to that).

In the stores such a transaction is an XA transaction of a format id of its own, as in ActiveMQ: a local one's global
id is its connection's, its branch the connection's number for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from store.operations import (
    AddMessage,
    Atomic,
    EndTransaction,
    Operation,
    PagedMessage,
    PrepareTransaction,
    RemoveMessage,
)
from store.records import commands
from store.records.commands import Commit, decode, encode, encode_commit, encode_prepare
from store.records.transactions import LocalTransactionId, TransactionId, XaTransactionId

# ActiveMQ's MultiKahaDBTransactionStore.localXaFormatId
LOCAL_FORMAT_ID = 61616

Part = AddMessage | RemoveMessage


def is_joint(transaction: TransactionId) -> bool:
    """Whether a transaction was made here, of an operation on several stores: its outcome stands in txStore."""
    return isinstance(transaction, XaTransactionId) and transaction.format_id == LOCAL_FORMAT_ID


def joint_id(transaction: LocalTransactionId) -> XaTransactionId:
    """What a local transaction is called in several stores."""
    return XaTransactionId(
        LOCAL_FORMAT_ID, transaction.connection_id.encode("utf-8", "surrogatepass"), str(transaction.value).encode()
    )


class Phase(Enum):
    """What a store was asked to do for a joint operation."""

    PREPARE = "prepare"
    DECIDE = "decide"
    END = "end"
    COMPLETE = "complete"


class Joint:
    """One operation on several stores, named by what the caller knows them by, and how far it is.

    ``is_visible``: something becomes visible by it, so what comes after it in a store waits until it is ended there.
    """

    __slots__ = (
        "_begun",
        "_outstanding",
        "ends",
        "is_decided",
        "is_visible",
        "must_decide",
        "must_prepare",
        "operation",
        "parts",
        "transaction",
    )

    def __init__(
        self,
        operation: Atomic | PrepareTransaction | EndTransaction,
        transaction: TransactionId,
        parts: Mapping[str, Sequence[Part]],
    ) -> None:
        self.operation = operation
        self.transaction = transaction
        self.parts = parts
        self.must_prepare = not isinstance(operation, EndTransaction)
        self.must_decide = isinstance(operation, Atomic) or (
            isinstance(operation, EndTransaction) and operation.is_commit
        )
        self.is_visible = not isinstance(operation, PrepareTransaction)
        self.is_decided = not self.must_decide
        self.ends: dict[str, EndTransaction] = {}
        self._begun: set[str] = set()
        self._outstanding = len(parts)
        if isinstance(operation, Atomic):
            for part in operation.operations:
                _enlist(part, transaction)

    def must_prepare_in(self, store: str) -> bool:
        """Whether ``store`` is still to be asked to prepare it. To be asked once: then it was."""
        if not self.must_prepare or store in self._begun:
            return False
        self._begun.add(store)
        return True

    @property
    def may_go_on(self) -> bool:
        """Whether a store that was asked to prepare it may do what was handed over after it."""
        return self.is_decided or not self.is_visible

    def step(self, phase: Phase, store: str) -> PrepareTransaction | EndTransaction:
        """What to ask of ``store``; its context is this step."""
        context = Step(self, phase)
        transaction = self.transaction
        if phase is Phase.PREPARE:
            return PrepareTransaction(transaction, self.parts[store], encode_prepare(transaction), context)
        if phase is Phase.DECIDE:
            return PrepareTransaction(transaction, (), encode_prepare(transaction), context)
        if phase is Phase.COMPLETE:
            return EndTransaction(transaction, True, encode_commit(transaction), context)
        if isinstance(self.operation, EndTransaction):
            end = EndTransaction(transaction, self.operation.is_commit, self.operation.payload, context)
        else:
            end = EndTransaction(transaction, True, encode_commit(transaction), context)
        self.ends[store] = end
        return end

    def came_back(self) -> bool:
        """One store has done the present step; True when it was the last."""
        self._outstanding -= 1
        if self._outstanding:
            return False
        self._outstanding = len(self.parts)
        return True

    def finish(self) -> None:
        """All stores are through: say in the operation what they reported."""
        operation = self.operation
        if isinstance(operation, Atomic):
            added: dict[str, dict[str, PagedMessage]] = {
                store: {message.message.message_id: message for _, message in end.added}
                for store, end in self.ends.items()
            }
            for store, parts in self.parts.items():
                for part in parts:
                    if isinstance(part, AddMessage) and not part.is_duplicate:
                        message = added[store].get(part.message.message_id)
                        if message is not None:
                            part.order_key, part.location, part.size = message.order_key, message.location, message.size
        elif isinstance(operation, EndTransaction):
            for end in self.ends.values():
                operation.added += end.added
                operation.removed += end.removed
                operation.returned += end.returned
            operation.is_unknown = all(end.is_unknown for end in self.ends.values())


class Step:
    """Context of what a store is asked for a joint operation."""

    __slots__ = ("joint", "phase")

    def __init__(self, joint: Joint, phase: Phase) -> None:
        self.joint = joint
        self.phase = phase


class Marker:
    """Context of the empty operations that stand for one: it comes back when it has come back from every store."""

    __slots__ = ("operation", "outstanding")

    def __init__(self, operation: Operation, outstanding: int) -> None:
        self.operation = operation
        self.outstanding = outstanding


class Late:
    """Context of an envelope: its message was taken, and waited; it is not to be refused when the disk runs short."""

    __slots__ = ("operation",)

    def __init__(self, operation: AddMessage) -> None:
        self.operation = operation


def transaction_of(atomic: Atomic) -> LocalTransactionId | None:
    """The transaction whose Commit an atomic operation has; None: it has none."""
    if atomic.commit is None:
        return None
    command = decode(atomic.commit)
    assert isinstance(command, Commit), "an atomic operation ends with a Commit"
    assert isinstance(command.transaction, LocalTransactionId), "an XA transaction has a Prepare"
    return command.transaction


def _enlist(part: Part, transaction: TransactionId) -> None:
    part.payload = _with(part.payload, transaction)
    if isinstance(part, AddMessage):
        part.passed_over = tuple(_with(payload, transaction) for payload in part.passed_over)


def _with(payload: bytes, transaction: TransactionId) -> bytes:
    command = decode(payload)
    assert isinstance(command, commands.AddMessage | commands.RemoveMessage), "a transaction adds and removes messages"
    return encode(command._replace(transaction=transaction))
