"""Branches of distributed transactions (XA): prepared and decided.

A branch belongs to its connection until it is prepared. From then on it belongs to the store, survives everything, and
may be decided on any connection (openwire.md 12, XATransaction): by its user while this broker is master, and by a user
with the rights for all its operations. The journal does not keep the user of a branch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tandemmq.broker.core.access import Operation
from tandemmq.broker.core.client import Client
from tandemmq.broker.core.commands import (
    XA_RBROLLBACK,
    XAER_NOTA,
    XAER_PROTO,
    XAER_RMFAIL,
    Abort,
    ClientError,
    Commit,
    ErrorKind,
    Prepare,
    Receipt,
    Recover,
    refusal,
)
from tandemmq.broker.core.delivery import Entry
from tandemmq.broker.core.open_transaction import Transaction
from tandemmq.broker.core.operations import Target, removal
from tandemmq.broker.core.slices import Work
from tandemmq.broker.core.topics.topic import DurableSubscription, Topic
from tandemmq.broker.engine.dispatch import Dispatcher
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.ports import Callback
from tandemmq.broker.engine.receipts import Arrivals
from tandemmq.broker.engine.transaction_end import TransactionEnd
from tandemmq.store.operations import AddMessage, EndTransaction, PrepareTransaction
from tandemmq.store.records.acknowledgements import AckType
from tandemmq.store.records.commands import encode_commit, encode_prepare, encode_rollback
from tandemmq.store.records.message import Destination, Message
from tandemmq.store.records.transactions import XaTransactionId


@dataclass(slots=True, eq=False, repr=False)
class Branch:
    """Branch of a distributed transaction. ``transaction`` is None for a branch of a former term: only the store knows
    its operations; ``adds_to`` and ``removes_from`` are their destinations. ``client`` is None once it is prepared."""

    xa: XaTransactionId
    client: Client | None
    transaction: Transaction | None
    is_prepared: bool = False
    is_preparing: bool = False  # requested, and not durable yet
    adds_to: frozenset[Destination] = frozenset()
    removes_from: frozenset[Destination] = frozenset()
    released: int = 0  # bytes that were charged to its user until the prepare
    routed: list[tuple[Message, Target]] = field(default_factory=list)  # messages of it that only memory holds
    # Persistent messages of topics, which the plain subscribers of that moment get, too. ``origin``: the sender.
    published: list[Message] = field(default_factory=list)
    origin: Client | None = field(init=False)

    def __post_init__(self) -> None:
        self.origin = self.client


class Branches(Part):
    """Prepares and decides branches. Runs on the loop; raises ClientError. ``by_key``: the open branches."""

    def __init__(self, shared: Shared, dispatcher: Dispatcher, arrivals: Arrivals, ending: TransactionEnd) -> None:
        super().__init__(shared)
        self.by_key: dict[str, Branch] = {}
        self._dispatcher = dispatcher
        self._arrivals = arrivals
        self._ending = ending
        for prepared in shared.store.prepared():
            xa = prepared.transaction
            if isinstance(xa, XaTransactionId):
                self.by_key[xa.key] = Branch(
                    xa, None, None, True, adds_to=prepared.adds_to, removes_from=prepared.removes_from
                )

    def open(self, client: Client, key: str) -> Transaction | None:
        """Return the transaction of a branch that accepts more operations, if there is one."""
        branch = self.by_key.get(key)
        if branch is None or branch.transaction is None or branch.is_prepared or branch.is_preparing:
            return None
        check_is_its(client, branch)
        return branch.transaction

    def left(self, client: Client) -> list[Transaction]:
        """Return the transactions to roll back at the end of the connection: those of its unprepared branches."""
        left = []
        for key, branch in list(self.by_key.items()):
            if branch.client is client and branch.transaction is not None:
                left.append(branch.transaction)
                del self.by_key[key]
        return left

    def recover(self, client: Client, command: Recover) -> None:
        """Send the client the branches that wait for a decision and that it may decide."""
        branches = [branch for branch in self.by_key.values() if branch.is_prepared]
        client.send_recovered(command.receipt, [each.xa for each in branches if self._may_decide(client, each)])

    def _branch(self, client: Client, key: str, what: str) -> Branch:
        """Return the branch for a client that may decide it. ``what``: the action, for errors. ClientError if there is
        none, or the client may not."""
        branch = self.by_key.get(key)
        if branch is None:
            raise refusal(f"Cannot {what}: there is no transaction {key}", kind=ErrorKind.XA, xa_code=XAER_NOTA)
        check_is_its(client, branch)
        if branch.is_prepared and not self._may_decide(client, branch):
            # For a transaction manager, this code is a reason to try again later, and not an outcome.
            raise refusal(
                f"User {client.principal.name} is not authorized to {what} transaction {key}",
                "Allowed: the user who prepared it, while this broker is master, and users with write on all "
                "destinations that it adds to and read on all that it takes from, or admin on them.",
                ErrorKind.XA,
                xa_code=XAER_RMFAIL,
            )
        return branch

    def _may_decide(self, client: Client, branch: Branch) -> bool:
        """Return whether the client may end that prepared branch, by the rights of this moment."""
        if branch.origin is not None and branch.origin.principal.name == client.principal.name:
            return True
        return all(self._may(client, Operation.WRITE, each) for each in branch.adds_to) and all(
            self._may(client, Operation.READ, each) for each in branch.removes_from
        )

    def _may(self, client: Client, operation: Operation, destination: Destination) -> bool:
        return any(self._access.may(client.principal, each, destination) for each in (operation, Operation.REMOVE))

    def prepare(self, client: Client, command: Prepare) -> None:
        branch = self._branch(client, command.transaction, "prepare")
        if branch.is_prepared:
            client.send_prepared(command.receipt, is_read_only=False)
            return
        transaction = _unprepared(branch)
        if transaction.is_empty and transaction.rollback_reason is None:
            del self.by_key[command.transaction]
            client.send_prepared(command.receipt, is_read_only=True)
            return
        try:
            operations, branch.routed = self._ending.parts(client, transaction, command.xa)
        except ClientError as error:
            del self.by_key[command.transaction]
            error.kind, error.xa_code = ErrorKind.XA, XA_RBROLLBACK
            raise
        branch.published = [
            each.message for each in operations if isinstance(each, AddMessage) and each.message.destination.is_topic
        ]
        # Destinations that it reaches, as the store names them for a former term: not only those in the messages.
        added = (each.message.destination for each in operations if isinstance(each, AddMessage))
        routed = (target.destination for _, target in branch.routed)
        branch.adds_to = frozenset((*added, *routed))  # prove: branches-know-what-they-reach
        queues = (entry.queue for _, _, entry in transaction.acknowledged)
        branch.removes_from = frozenset(queue.destination for queue in queues if queue is not None)
        branch.is_preparing = True
        branch.client = None
        self._append(
            PrepareTransaction(
                command.xa,
                operations,
                encode_prepare(command.xa),
                Callback(client, lambda operation: self._has_prepared(operation, branch, client, command.receipt)),
            )
        )
        branch.released = transaction.release()

    def _has_prepared(
        self, operation: PrepareTransaction, branch: Branch, client: Client, receipt: Receipt | None
    ) -> None:
        """Complete a prepare, which is durable from now on; reopen the branch if the store refused it."""
        if operation.is_refused:
            self._reopen(branch)
            client.send_failure(
                refusal(
                    f"Transaction {branch.xa.key} was not prepared: the store still has another one with this id",
                    "Roll this one back, or prepare it again later.",
                    ErrorKind.XA,
                    xa_code=XAER_PROTO,
                    receipt=receipt,
                )
            )
            return
        branch.is_preparing = False
        branch.is_prepared = True
        client.send_prepared(receipt, is_read_only=False)

    def _reopen(self, branch: Branch) -> None:
        """Undo a refused prepare: the branch is its client's again, or is rolled back if the client left meanwhile."""
        owner, transaction = branch.origin, branch.transaction
        assert owner is not None, "prepared by a client"
        assert transaction is not None, "an unprepared branch belongs to this term"
        branch.is_preparing = False
        branch.client = owner
        branch.routed = []
        branch.published = []
        transaction.charge_again(branch.released)
        if not owner.is_open:
            del self.by_key[branch.xa.key]
            self._ending.undo(transaction)

    def commit(self, client: Client, command: Commit, xa: XaTransactionId) -> Work[None] | None:
        branch = self._branch(client, command.transaction, "commit")
        if branch.is_prepared:
            self._decide(client, branch, command.receipt, is_commit=True)
            return None
        transaction = _unprepared(branch)
        if command.is_two_phase:
            raise refusal(
                f"Cannot commit: transaction {xa.key} was not prepared", kind=ErrorKind.XA, xa_code=XAER_PROTO
            )
        del self.by_key[command.transaction]
        try:
            return self._ending.commit(client, transaction, command.receipt)
        except ClientError as error:
            error.kind, error.xa_code = ErrorKind.XA, XA_RBROLLBACK
            raise

    def roll_back(self, client: Client, command: Abort, xa: XaTransactionId) -> None:
        branch = self._branch(client, xa.key, "roll back")
        if branch.is_prepared:
            self._decide(client, branch, command.receipt, is_commit=False)
            return
        transaction = _unprepared(branch)
        del self.by_key[xa.key]
        self._ending.undo(transaction)
        client.send_receipt(command.receipt)

    def _decide(self, client: Client, branch: Branch, receipt: Receipt | None, *, is_commit: bool) -> None:
        del self.by_key[branch.xa.key]
        payload = encode_commit(branch.xa) if is_commit else encode_rollback(branch.xa)
        end = Callback(client, lambda operation: self._has_ended(operation, branch, client, receipt))
        self._append(EndTransaction(branch.xa, is_commit, payload, end))

    def _has_ended(
        self, operation: EndTransaction, branch: Branch, client: Client, receipt: Receipt | None
    ) -> Work[None]:
        """Complete a durable decision: its added messages become visible, or its withheld messages are offered
        again."""
        by_owner = self._destinations.by_owner
        touched, pace = self._dispatcher.touched, self._dispatcher.pace
        transaction = branch.transaction
        if transaction is not None and operation.is_commit:
            yield from self._ending.settle(transaction, pace)
        elif transaction is not None:
            self._ending.undo(transaction)
        scheduler = self._arrivals.scheduler
        sender = None if branch.origin is None else branch.origin.id
        for owner, paged in operation.added:
            if pace.is_over():
                yield
            if scheduler is not None and owner == scheduler.owner:
                scheduler.added(paged.message, paged.order_key)
                continue
            queue = by_owner.get(owner) or self._destinations.wake_owner(owner)
            if isinstance(queue, DurableSubscription) and not queue.wants(paged.message, sender):
                # It began after the prepare, which lists the subscriptions that do not get the message.
                entry = Entry(paged.message, paged.order_key, paged.location, paged.size, 0)
                self._append(removal(queue, entry, kind=AckType.UNMATCHED))
            elif queue is not None:
                queue.add(paged.message, paged.order_key, paged.location, paged.size)
                touched[queue] = None
                if self._dispatcher.tells_arrived and queue.topic is None:
                    self._dispatcher.arrived(paged.message)
        if transaction is None:
            for owner, paged in operation.returned:
                if pace.is_full():
                    yield
                queue = by_owner.get(owner) or self._destinations.wake_owner(owner)
                if queue is not None:
                    queue.take_back(paged)
        for owner, _ in (*operation.removed, *operation.returned):
            if owner in by_owner:
                touched[by_owner[owner]] = None
        if operation.is_commit:
            for message in branch.published:
                topic = self._destinations.by_name.get(message.destination)
                if isinstance(topic, Topic):
                    self._arrivals.show_to_subscribers(branch.origin, message, topic, len(branch.published))
                if pace.is_full():
                    yield
            yield from self._arrivals.shown(branch.origin or client, branch.routed, pace)
        if operation.is_unknown:
            client.send_failure(
                refusal(
                    f"There is no transaction {operation.transaction.key}",
                    kind=ErrorKind.XA,
                    xa_code=XAER_NOTA,
                    receipt=receipt,
                )
            )
        else:
            client.send_receipt(receipt)


def check_is_its(client: Client, branch: Branch) -> None:
    """Raise ClientError if that unprepared branch belongs to another user."""
    if branch.client is not None and branch.client.principal.name != client.principal.name:
        raise refusal(f"Transaction {branch.xa.key} belongs to another user", kind=ErrorKind.XA, xa_code=XAER_PROTO)


def _unprepared(branch: Branch) -> Transaction:
    """Return the transaction of an unprepared branch. ClientError while it is being prepared: its client must wait for
    that answer first."""
    if branch.is_preparing:
        raise refusal(
            f"Transaction {branch.xa.key} is being prepared",
            "Wait for the answer to its prepare.",
            ErrorKind.XA,
            xa_code=XAER_PROTO,
        )
    assert branch.transaction is not None, "an unprepared branch belongs to this term"
    return branch.transaction
