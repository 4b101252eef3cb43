"""Transactions: what clients sent and acknowledged in them, until it is decided; local ones, and branches of XA.

A local transaction belongs to its connection and ends with it. A branch does so until it is prepared; from then on it
is the store's, survives everything, and may be decided on any connection (openwire.md 12, XATransaction): by its user
while this broker is master, and by who has the rights for all that it does. The journal does not keep whose it was.
"""

from __future__ import annotations

from broker.core import names
from broker.core.access import Access, Operation
from broker.core.client import Client
from broker.core.commands import (
    XA_RBROLLBACK,
    XAER_NOTA,
    XAER_PROTO,
    XAER_RMFAIL,
    Abort,
    Ack,
    Begin,
    ClientError,
    Commit,
    ErrorKind,
    Prepare,
    Receipt,
    Recover,
    Send,
)
from broker.core.destinations import Destinations
from broker.core.made import Target
from broker.core.memory import Kind
from broker.core.queue import Queue
from broker.core.settings import EngineSettings
from broker.core.slices import Pace, Work, at_once, is_done
from broker.core.subscription import Entry, Subscription
from broker.core.topic import DurableSubscription, Topic
from broker.core.transaction import Transaction
from broker.dispatcher import Dispatcher, Store, removal
from broker.sender import FULL_ADVICE, Commitment, Sender
from store.operations import AddMessage, Atomic, EndTransaction, PrepareTransaction, RemoveMessage
from store.records.commands import encode_commit, encode_prepare, encode_rollback
from store.records.message import Destination, Message
from store.records.transactions import LocalTransactionId, TransactionId, XaTransactionId

# Of a message, that take as long to copy as one more item of a step.
_BYTES = 16 * 1024


class Branch:
    """A branch of a distributed transaction. ``transaction`` is None for one of a former term, of which only the store
    knows what it does, and ``adds_to`` and ``removes_from`` where; ``client`` is None once it is prepared."""

    __slots__ = (
        "adds_to",
        "client",
        "is_prepared",
        "is_preparing",
        "origin",
        "published",
        "removes_from",
        "routed",
        "transaction",
        "xa",
    )

    def __init__(self, xa: XaTransactionId, client: Client | None, transaction: Transaction | None) -> None:
        self.xa = xa
        self.client = client
        self.transaction = transaction
        self.is_prepared = False
        self.is_preparing = False  # asked for, and not durable yet
        self.routed: list[tuple[Message, Target]] = []  # what only memory holds of it
        # What durable subscriptions will get is for those who listen at that moment, too. ``origin``: who sent it.
        self.published: list[Message] = []
        self.origin = client
        self.adds_to: frozenset[Destination] = frozenset()
        self.removes_from: frozenset[Destination] = frozenset()


class Asked:
    """Context of a PrepareTransaction or an EndTransaction: who asked for it."""

    __slots__ = ("branch", "client", "receipt")

    def __init__(self, branch: Branch, client: Client, receipt: Receipt | None) -> None:
        self.branch = branch
        self.client = client
        self.receipt = receipt


class Transactions:
    """See the module."""

    def __init__(
        self,
        store: Store,
        destinations: Destinations,
        dispatcher: Dispatcher,
        settings: EngineSettings,
        sender: Sender,
        access: Access,
    ) -> None:
        self._store = store
        self._append = store.append
        self._destinations = destinations
        self._dispatcher = dispatcher
        self._settings = settings
        self._sender = sender
        self._access = access
        self._put_aside = 0
        self._branches: dict[str, Branch] = {}
        for prepared in store.prepared():
            if isinstance(prepared.transaction, XaTransactionId):
                branch = Branch(prepared.transaction, None, None)
                branch.is_prepared = True
                branch.adds_to = prepared.adds_to
                branch.removes_from = prepared.removes_from
                self._branches[prepared.transaction.key] = branch

    @property
    def has_branches(self) -> bool:
        """Whether any branch is open, prepared or not."""
        return bool(self._branches)

    # ---- what belongs to one

    def _open(self, client: Client, name: str) -> Transaction:
        found = client.transactions.get(name)
        if found is None:
            branch = self._branches.get(name)
            is_open = branch is not None and not branch.is_prepared and not branch.is_preparing
            if branch is not None and branch.transaction is not None and is_open:
                _check_is_its(client, branch)
                return branch.transaction
            raise ClientError(
                f"Transaction {name!r} has not been started.", "BEGIN opens one.", is_fatal=False, kind=ErrorKind.STATE
            )
        return found

    def send(self, client: Client, command: Send) -> None:
        """``command`` is to be carried out when its transaction is committed."""
        assert command.transaction is not None, "only what is sent in a transaction"
        transaction = self._open(client, command.transaction)
        sender = self._sender
        message = command.message
        if self._store.is_full and transaction.doom is None and sender.is_stored(client, message):
            raise sender.full(self._store.full_reason, message.destination)
        try:
            # A schedule that cannot be kept is told now; its delay begins with the commit (SchedulerBroker).
            if sender.known_target(client, message) is None and sender.scheduled(client, message) is message:
                sender.check_may_send_all(client, message.destination)
        except ClientError as error:
            transaction.doom = transaction.doom or error.message
            raise
        transaction.send(message)
        client.tell_receipt(command.receipt)

    def enlist(self, client: Client, name: str, subscription: Subscription, covered: list[tuple[int, Entry]]) -> None:
        """Acknowledgements that count at COMMIT; until then they only give credit."""
        try:
            self._open(client, name).acknowledge(subscription, covered)
        except ClientError:
            subscription.restore(covered)
            raise

    def covers(self, client: Client, command: Ack, subscription: Subscription) -> bool:
        """Whether the transaction of ``command``, if it has one, has that delivery of ``subscription`` already."""
        if command.transaction is None or command.tag not in subscription.enlisted:
            return False
        acknowledged = self._open(client, command.transaction).acknowledged
        return any(tag == command.tag and each is subscription for each, tag, _ in reversed(acknowledged))

    def doom(self, client: Client, name: str, reason: str) -> None:
        """Something of it was refused: it can only be rolled back. One that is not known is no matter."""
        try:
            transaction = self._open(client, name)
        except ClientError:
            return
        transaction.doom = transaction.doom or reason

    # ---- begin

    def begin(self, client: Client, command: Begin) -> None:
        if command.xa is not None:
            branch = self._branches.get(command.transaction)
            if branch is not None:
                _check_is_its(client, branch)
            else:
                self._check_room(client)
                self._branches[command.transaction] = Branch(command.xa, client, self._new(client, command.transaction))
        elif command.transaction in client.transactions:
            if not client.session.survives_errors:
                raise ClientError(f"Transaction {command.transaction!r} was begun already", is_fatal=False)
        else:
            self._check_room(client)
            client.transactions[command.transaction] = self._new(client, command.transaction)
        client.tell_receipt(command.receipt)

    def _check_room(self, client: Client) -> None:
        limit = self._settings.transactions_max
        held = len(client.transactions) + sum(branch.client is client for branch in self._branches.values())
        if held >= limit:
            raise ClientError(
                f"More than {limit} open transactions (transactions_max)", is_fatal=False, kind=ErrorKind.RESOURCE
            )

    def _new(self, client: Client, name: str) -> Transaction:
        client.transactions_begun += 1
        return Transaction(name, client.transactions_begun, self._settings, client.holder)

    # ---- the end

    def make_ready(self, client: Client, command: Commit | Prepare) -> Work[Transaction | None]:
        """What takes long of the end that follows, in steps: what the store is to do. Of which transaction; whoever
        ends it has that forgotten (``forget_made``)."""
        try:
            transaction = self._open(client, command.transaction)
        except ClientError:
            return None  # which is told when it is to end
        identity: TransactionId = LocalTransactionId(client.connection.id, transaction.number)
        if isinstance(command, Prepare):
            identity = command.xa
        if transaction.doom is None:
            pace = Pace()
            try:
                transaction.made = yield from self._sender.make(client, transaction.messages, identity, pace)
            except ClientError as error:
                transaction.doom = error.message
            transaction.removals = yield from self._removals(transaction, identity, pace)
        return transaction

    def _removals(
        self, transaction: Transaction, identity: TransactionId, pace: Pace
    ) -> Work[list[tuple[Queue, RemoveMessage]]]:
        """What has the store forget what was acknowledged."""
        removals = []
        for _, _, entry in transaction.acknowledged:
            queue = entry.queue
            if queue is not None and entry.order_key and not queue.is_dropped:
                removals.append((queue, removal(queue, entry, identity)))
            if pace.is_full():
                yield
        return removals

    def forget_made(self, transaction: Transaction) -> None:
        """Its end was carried out, or waits; then what ``make_ready`` made is made anew."""
        transaction.removals = None
        made, transaction.made = transaction.made, None
        if made is not None:
            made.give_back()

    def put_aside(self, client: Client, name: str) -> str:
        """The end of a local transaction has to wait: its name is free for another one. Returns what it is called
        until then; no client can say that."""
        self._put_aside += 1
        other = f"{name}\0{self._put_aside}"
        client.transactions[other] = client.transactions.pop(name)
        return other

    def check_room(self, client: Client, name: str) -> None:
        """NoRoom while the store cannot take what a transaction would store. It is as it was."""
        if self._store.is_full:
            messages = self._to_be_stored(client, name)
            for message in messages:
                if self._sender.is_stored(client, message):
                    raise self._sender.full(self._store.full_reason, message.destination, len(messages))

    def lines_of(self, client: Client, name: str) -> set[tuple[str, Destination | None]]:
        """As Sender.lines_of, for what becomes visible with the end of a transaction."""
        return {line for message in self._to_be_stored(client, name) for line in self._sender.lines_of(client, message)}

    def goes_to(self, client: Client, name: str) -> frozenset[Destination]:
        """Where that is to become visible."""
        return frozenset(
            part for message in self._to_be_stored(client, name) for part in names.split(message.destination)
        )

    def _to_be_stored(self, client: Client, name: str) -> list[Message]:
        """What was sent in a transaction that is neither prepared nor doomed."""
        try:
            transaction = self._open(client, name)
        except ClientError:
            return []
        return [] if transaction.doom is not None else transaction.messages

    def left(self, client: Client, left: dict[Queue, None], pace: Pace) -> Work[None]:
        """The connection is over: what was not prepared is rolled back. ``left`` gets the queues to which something
        went back, that are to be dispatched afterwards."""
        transactions = list(client.transactions.values())
        client.transactions = {}
        for key, branch in list(self._branches.items()):
            if branch.client is client and branch.transaction is not None:
                transactions.append(branch.transaction)
                del self._branches[key]
        ending = set(client.subscriptions.values())
        for transaction in transactions:
            transaction.undo(ending)
            left.update((entry.queue, None) for _, _, entry in transaction.acknowledged if entry.queue is not None)
            if pace.is_full(1 + len(transaction.acknowledged) // 8):
                yield

    def abort(self, client: Client, command: Abort) -> None:
        if command.xa is not None:
            self._roll_back_branch(client, command, command.xa)
            return
        transaction = self._open(client, command.transaction)
        del client.transactions[command.transaction]
        self._undo(transaction)
        client.tell_receipt(command.receipt)

    def _undo(self, transaction: Transaction) -> None:
        """What it acknowledged waits again."""
        transaction.undo()
        for queue in dict.fromkeys(entry.queue for _, _, entry in transaction.acknowledged):
            if queue is not None:
                self._dispatcher.dispatch(queue)

    def commit(self, client: Client, command: Commit) -> Work[None] | None:
        """It is decided, at once. What is returned, if anything, is for the caller to make the steps of, before the
        client's next command: nothing of it is stored, and it becomes visible by them."""
        if command.xa is not None:
            return self._commit_branch(client, command, command.xa)
        transaction = self._open(client, command.transaction)
        del client.transactions[command.transaction]
        return self._commit(client, transaction, command.receipt)

    def _commit(self, client: Client, transaction: Transaction, receipt: Receipt | None) -> Work[None] | None:
        """As ``commit``: all of it in one piece. ClientError, and it is rolled back, when that cannot be."""
        identity = LocalTransactionId(client.connection.id, transaction.number)
        operations, volatile = self._parts(client, transaction, identity)
        held = transaction.held
        self._settle(transaction)
        commitment = Commitment(client, receipt, volatile)
        if operations:
            self._append(Atomic(operations, encode_commit(identity), commitment))
            return None
        return self._show(client, commitment, held)

    def _show(self, client: Client, commitment: Commitment, held: int) -> Work[None]:
        """Where that takes steps, what is not visible yet is counted for ``client`` as before: ``held`` bytes."""
        work = self._sender.committed(commitment, Pace())
        if is_done(work):
            return
        client.holder.add(Kind.TRANSACTIONS, held)
        try:
            yield
            yield from work
        finally:
            client.holder.add(Kind.TRANSACTIONS, -held)

    def _parts(
        self, client: Client, transaction: Transaction, identity: TransactionId
    ) -> tuple[list[AddMessage | RemoveMessage], list[tuple[Message, Target]]]:
        """What the store is to do for it, and what only memory will hold. ClientError, and it is rolled back, when it
        cannot be done."""
        name = transaction.name
        if transaction.doom is not None:
            self._undo(transaction)
            raise ClientError(
                f"Transaction {name!r} was rolled back: {transaction.doom}",
                is_fatal=False,
                kind=ErrorKind.ROLLED_BACK,
                xa_code=XA_RBROLLBACK,
            )
        sender = self._sender
        try:
            made = transaction.made
            if made is None:
                made = at_once(sender.make(client, transaction.messages, identity, Pace()))
            adds, volatile = sender.settle(client, made, identity)
            # What only acknowledges is committed also then.
            if adds and self._store.is_full:
                reason = f"Transaction {name!r} was rolled back: {self._store.full_reason}"
                sender.refused += len(adds)
                raise ClientError(reason, FULL_ADVICE, is_fatal=False, kind=ErrorKind.RESOURCE)
        except ClientError as error:
            self._undo(transaction)
            error.kind = ErrorKind.ROLLED_BACK
            raise
        removals = transaction.removals
        if removals is None:
            removals = at_once(self._removals(transaction, identity, Pace()))
        operations: list[AddMessage | RemoveMessage] = [
            *adds,
            *(remove for queue, remove in removals if not queue.is_dropped),
        ]
        return operations, volatile

    # ---- branches

    def _branch(self, client: Client, key: str, what: str) -> Branch:
        """For somebody who may ``what`` with it. ClientError when there is none, or it is not for the client."""
        branch = self._branches.get(key)
        if branch is None:
            raise ClientError(
                f"Cannot {what}: there is no transaction {key}", is_fatal=False, kind=ErrorKind.XA, xa_code=XAER_NOTA
            )
        _check_is_its(client, branch)
        if branch.is_prepared and not self._may_decide(client, branch):
            # What a transaction manager takes for a reason to try again later, and not for an outcome.
            raise ClientError(
                f"User {client.principal.name} is not authorized to {what} transaction {key}",
                "That is for the user who prepared it, as far as this broker saw it, and for who may write to all that "
                "it adds to and read from all that it takes from, or has admin there.",
                is_fatal=False,
                kind=ErrorKind.XA,
                xa_code=XAER_RMFAIL,
            )
        return branch

    def _may_decide(self, client: Client, branch: Branch) -> bool:
        """Whether that prepared branch is for the client to end: rights are as they are now."""
        if branch.origin is not None and branch.origin.principal.name == client.principal.name:
            return True
        return all(self._may(client, Operation.WRITE, each) for each in branch.adds_to) and all(
            self._may(client, Operation.READ, each) for each in branch.removes_from
        )

    def _may(self, client: Client, operation: Operation, destination: Destination) -> bool:
        for asked in (operation, Operation.REMOVE):
            try:
                self._access.check(client.principal, asked, destination)
            except ClientError:
                continue
            return True
        return False

    def prepare(self, client: Client, command: Prepare) -> None:
        branch = self._branch(client, command.transaction, "prepare")
        if branch.is_prepared:
            client.tell_prepared(command.receipt, is_read_only=False)
            return
        _check_is_settled(branch)
        transaction = branch.transaction
        assert transaction is not None, "what is not prepared is of this term"
        if transaction.is_empty and transaction.doom is None:
            del self._branches[command.transaction]
            client.tell_prepared(command.receipt, is_read_only=True)
            return
        try:
            operations, branch.routed = self._parts(client, transaction, command.xa)
        except ClientError as error:
            del self._branches[command.transaction]
            error.kind, error.xa_code = ErrorKind.XA, XA_RBROLLBACK
            raise
        branch.published = [
            each.message for each in operations if isinstance(each, AddMessage) and each.message.destination.is_topic
        ]
        branch.adds_to = frozenset(part for each in transaction.messages for part in names.split(each.destination))
        queues = (entry.queue for _, _, entry in transaction.acknowledged)
        branch.removes_from = frozenset(queue.destination for queue in queues if queue is not None)
        branch.is_preparing = True
        branch.client = None
        self._append(
            PrepareTransaction(
                command.xa, operations, encode_prepare(command.xa), Asked(branch, client, command.receipt)
            )
        )

    def has_prepared(self, operation: PrepareTransaction) -> None:
        """It survives from now on."""
        context = operation.context
        assert isinstance(context, Asked), "prepared by a client"
        branch = context.branch
        if operation.is_refused:
            self._reopen(branch)
            context.client.tell_failure(
                ClientError(
                    f"Transaction {branch.xa.key} was not prepared: the store has not ended another one of that id",
                    "Roll this one back, or prepare it again later.",
                    is_fatal=False,
                    kind=ErrorKind.XA,
                    xa_code=XAER_PROTO,
                    receipt=context.receipt,
                )
            )
            return
        branch.is_preparing = False
        branch.is_prepared = True
        context.client.tell_prepared(context.receipt, is_read_only=False)

    def _reopen(self, branch: Branch) -> None:
        """It is not prepared after all: its client's again as it was before, or rolled back if that left meanwhile."""
        owner, transaction = branch.origin, branch.transaction
        assert owner is not None, "prepared by a client"
        assert transaction is not None, "what is not prepared is of this term"
        branch.is_preparing = False
        branch.client = owner
        branch.routed = []
        branch.published = []
        if not owner.is_open:
            del self._branches[branch.xa.key]
            self._undo(transaction)

    def _commit_branch(self, client: Client, command: Commit, xa: XaTransactionId) -> Work[None] | None:
        branch = self._branch(client, command.transaction, "commit")
        if branch.is_prepared:
            self._decide(client, branch, command.receipt, is_commit=True)
            return None
        _check_is_settled(branch)
        if command.is_two_phase:
            raise ClientError(
                f"Cannot commit: transaction {xa.key} was not prepared",
                is_fatal=False,
                kind=ErrorKind.XA,
                xa_code=XAER_PROTO,
            )
        del self._branches[command.transaction]
        assert branch.transaction is not None, "what is not prepared is of this term"
        try:
            return self._commit(client, branch.transaction, command.receipt)
        except ClientError as error:
            error.kind, error.xa_code = ErrorKind.XA, XA_RBROLLBACK
            raise

    def _roll_back_branch(self, client: Client, command: Abort, xa: XaTransactionId) -> None:
        branch = self._branch(client, xa.key, "roll back")
        if branch.is_prepared:
            self._decide(client, branch, command.receipt, is_commit=False)
            return
        _check_is_settled(branch)
        del self._branches[xa.key]
        assert branch.transaction is not None, "what is not prepared is of this term"
        self._undo(branch.transaction)
        client.tell_receipt(command.receipt)

    def _decide(self, client: Client, branch: Branch, receipt: Receipt | None, *, is_commit: bool) -> None:
        del self._branches[branch.xa.key]
        payload = encode_commit(branch.xa) if is_commit else encode_rollback(branch.xa)
        self._append(EndTransaction(branch.xa, is_commit, payload, Asked(branch, client, receipt)))

    def has_ended(self, operation: EndTransaction, touched: dict[Queue, None], pace: Pace) -> Work[None]:
        """The decision is durable: what it adds becomes visible, or what it withheld is offered again."""
        by_owner = self._destinations.by_owner
        context = operation.context
        assert isinstance(context, Asked), "decided by a client"
        transaction = context.branch.transaction
        if transaction is not None and operation.is_commit:
            yield from self._settle_in_steps(transaction, pace)
        elif transaction is not None:
            self._undo(transaction)
        scheduler = self._sender.scheduler
        for owner, paged in operation.added:
            if pace.is_full():
                yield
            if scheduler is not None and owner == scheduler.owner:
                scheduler.added(paged.message, paged.order_key)
                continue
            queue = by_owner.get(owner) or self._destinations.wake_owner(owner)
            if isinstance(queue, DurableSubscription) and not queue.takes(paged.message):
                # It began after the transaction was prepared, where those are named that are passed over.
                entry = Entry(paged.message, paged.order_key, paged.location, paged.size, 0)
                self._dispatcher.remove(queue, entry)
            elif queue is not None:
                queue.add(paged.message, paged.order_key, paged.location, paged.size)
                touched[queue] = None
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
            branch = context.branch
            for message in branch.published:
                topic = self._destinations.by_name.get(message.destination)
                if isinstance(topic, Topic) and branch.origin is not None:
                    self._sender.publish(topic, message, branch.origin.connection, len(branch.published))
                if pace.is_full():
                    yield
            yield from self._sender.shown(branch.origin or context.client, branch.routed, pace)
        if operation.is_unknown:
            context.client.tell_failure(
                ClientError(
                    f"There is no transaction {operation.transaction.key}",
                    is_fatal=False,
                    kind=ErrorKind.XA,
                    xa_code=XAER_NOTA,
                    receipt=context.receipt,
                )
            )
        else:
            context.client.tell_receipt(context.receipt)

    def _settle(self, transaction: Transaction) -> None:
        """What it acknowledged is gone."""
        at_once(self._settle_in_steps(transaction, Pace()))

    def _settle_in_steps(self, transaction: Transaction, pace: Pace) -> Work[None]:
        transaction.give_back()
        for subscription, tag, entry in transaction.acknowledged:
            subscription.let_go(entry)
            subscription.enlisted.pop(tag, None)
            if entry.queue is not None:
                entry.queue.settle(entry)
            if pace.is_full():
                yield
        if self._dispatcher.tells_consumed:
            self._dispatcher.consumed(transaction.acknowledged)

    def recover(self, client: Client, command: Recover) -> None:
        """Those that wait for a decision, and are for that client to decide."""
        branches = [branch for branch in self._branches.values() if branch.is_prepared]
        client.tell_recovered(command.receipt, [each.xa for each in branches if self._may_decide(client, each)])


def _check_is_its(client: Client, branch: Branch) -> None:
    """ClientError when that is another user's branch, which is not prepared."""
    if branch.client is not None and branch.client.principal.name != client.principal.name:
        raise ClientError(
            f"Transaction {branch.xa.key} belongs to another user",
            is_fatal=False,
            kind=ErrorKind.XA,
            xa_code=XAER_PROTO,
        )


def _check_is_settled(branch: Branch) -> None:
    """ClientError while a branch is being prepared: its client has to wait for the answer first."""
    if branch.is_preparing:
        raise ClientError(
            f"Transaction {branch.xa.key} is being prepared",
            "Its prepare has to be answered first.",
            is_fatal=False,
            kind=ErrorKind.XA,
            xa_code=XAER_PROTO,
        )
