"""SEND, COMMIT, PREPARE, ABORT and MOVE: carried out now, or when there is room (broker.engine.flow_control)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tandemmq.broker.core import names
from tandemmq.broker.core.client import Client
from tandemmq.broker.core.commands import Abort, ClientError, Commit, ErrorKind, Move, Prepare, Send, refusal
from tandemmq.broker.core.memory import Kind
from tandemmq.broker.core.operations import removal, unencodable
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.broker.engine.acknowledge import Acknowledger
from tandemmq.broker.engine.advisories import Advising
from tandemmq.broker.engine.clients import Clients
from tandemmq.broker.engine.dispatch import Dispatcher
from tandemmq.broker.engine.flow_control import FlowControl
from tandemmq.broker.engine.limits import MustWait, StoredBytes, Waits
from tandemmq.broker.engine.part import Shared
from tandemmq.broker.engine.ports import InThread
from tandemmq.broker.engine.publish import Sender
from tandemmq.broker.engine.receipts import Commitment
from tandemmq.broker.engine.transactions import Transactions
from tandemmq.store.records.acknowledgements import AckType
from tandemmq.store.records.altered import altered, of_user
from tandemmq.store.records.errors import Unencodable
from tandemmq.store.records.frames import is_long_text, written
from tandemmq.store.records.utf import QUICK_WRITTEN_BYTES_MAX

# Memory for converting a long text for Java, as a multiple of its length: the text, its Java encoding, and the frame of
# that. It is 3, or 4 if all characters take 6 bytes in Java's encoding and 4 in UTF-8.
WRITTEN_SIZES: Final = 3.5


class _Preparation:
    """A message that is prepared on a thread for ``client``. ``failed``: the error of the thread, to be raised on the
    loop."""

    __slots__ = ("_client", "_prepare", "_size", "failed")

    def __init__(self, client: Client, prepare: Callable[[], None], size: int) -> None:
        self._client = client
        self._prepare = prepare
        self._size = size
        self.failed: Exception | None = None

    def begin(self, in_thread: InThread, then: Callable[[None], None]) -> None:
        self._client.holder.add(Kind.WAITING_SENDS, self._size)
        in_thread(self._work, partial(self._end, then))

    def _work(self) -> None:
        try:
            if self._client.is_there:
                self._prepare()
        except Exception as error:
            self.failed = error

    def _end(self, then: Callable[[None], None]) -> None:
        self._client.holder.add(Kind.WAITING_SENDS, -self._size)
        then(None)


class Producing:
    """Carries out the commands of producers. ``flow`` holds those that have to wait."""

    def __init__(
        self,
        shared: Shared,
        sender: Sender,
        transactions: Transactions,
        clients: Clients,
        advising: Advising,
        dispatcher: Dispatcher,
        acknowledger: Acknowledger,
    ) -> None:
        self._store = shared.store
        self.flow = FlowControl(shared, sender, transactions, clients, advising, self._carry_out_held)
        self._stored = shared.stored
        self._sender = sender
        self._check_reply_to = sender.router.check_reply_to
        self._keeps_origin = sender.router.keeps_origin
        self._transactions = transactions
        self._clients = clients
        self._origins = dispatcher.fan_out.origins
        self._dispatch = dispatcher.dispatch
        self._acknowledger = acknowledger
        self._prepare_in_thread = shared.loop.prepare_in_thread

    def send(self, client: Client, command: Send) -> Work[None] | None:
        """Carry out SEND."""
        message = command.message
        if command.translate is not None:
            translate, command.translate = command.translate, None
            self._prepare(client, command, translate, message.size)
            return None
        # prove: long-texts-are-written-beside-the-loop "is_long_text(message)" -> "False"
        if message.raw is None and len(message.body) > QUICK_WRITTEN_BYTES_MAX and is_long_text(message):
            self._prepare(client, command, partial(_write, command), round(message.size * WRITTEN_SIZES))
            return None
        if message.user_id != client.user_id:
            command.message = message = of_user(message, client.user_id)
        if message.original_destination is not None and not self._keeps_origin(client, message):
            command.message = message = altered(message, is_original=True)
        reply_to = message.reply_to
        if reply_to is not None:
            try:
                self._check_reply_to(client, reply_to)
            except ClientError as error:
                raise self._transactions.doomed(client, command.transaction, error) from None
        if self._stored is not None:
            self._check_stored_bytes(self._stored, client, command)
        if self.flow.is_holding and self.flow.follow(client, command):
            return None
        if command.transaction is None:
            sent = self._sender.send(client, command)
        else:
            sent = self._transactions.send(client, command)
        if sent is not None:
            if not isinstance(sent, MustWait):
                return self._send_on(client, command, sent)
            self._wait(client, command, sent)
        if self._origins:
            self._clients.await_out(client)
        return None

    def _prepare(self, client: Client, command: Send, prepare: Callable[[], None], size: int) -> None:
        """Have a thread do ``prepare``, which takes seconds and ``size`` bytes, and then send. The next commands of the
        client wait."""
        preparation = _Preparation(client, prepare, size)
        ask = partial(preparation.begin, self._prepare_in_thread)
        send = partial(self._send_prepared, preparation)
        self._clients.when_known(client, ask, lambda _: self._clients.carry_out(client, command, send))

    def _send_prepared(self, preparation: _Preparation, client: Client, command: Send) -> Work[None] | None:
        failed = preparation.failed
        if isinstance(failed, Unencodable):
            raise self._transactions.doomed(client, command.transaction, unencodable(failed)) from failed
        if failed is not None:
            raise failed
        return self.send(client, command)

    def _check_stored_bytes(self, stored: StoredBytes, client: Client, command: Send) -> None:
        """Set the user that the message is charged to. ClientError if it is to be stored, and exceeds the limit of that
        user. The removal of a retained message is always allowed."""
        user = stored.note_sender(client, command)
        message = command.message
        if user is None or (message.destination == names.MQTT_RETAINED and not message.body):
            return
        try:
            size = message.size * names.count(message.destination)
            limits = 2 if client.is_stand_in else 1  # wills: they are sent also when their clients reached the limit
            if not stored.has_room(user, size, limits) and self._sender.may_be_stored(client, message):
                stored.check(user, size, limits)
        except ClientError as error:
            raise self._transactions.doomed(client, command.transaction, error) from None

    def _send_on(self, client: Client, command: Send, work: Work[MustWait | None]) -> Work[None]:
        reason = yield from work
        if reason is not None:
            self._wait(client, command, reason)

    def _wait(self, client: Client, command: Send, reason: MustWait) -> None:
        """Let the command wait, or fail it: then the transaction of the message can only be rolled back."""
        if not self.flow.hold(client, command, reason):
            self._sender.refused += reason.count
            raise self._transactions.doomed(client, command.transaction, reason.error())

    def decide(self, client: Client, command: Commit | Prepare) -> Work[None]:
        """Carry out COMMIT or PREPARE, which may have to wait until there is space for its messages."""
        transaction = yield from self._transactions.make_ready(client, command)
        try:
            yield from self._decide(client, command)
        finally:
            if transaction is not None:
                self._transactions.forget_copies(transaction)

    def _decide(self, client: Client, command: Commit | Prepare) -> Work[None]:
        flow, transactions = self.flow, self._transactions
        is_waiting = flow.is_holding and flow.follow(client, command)
        if not is_waiting:
            reason = transactions.must_wait(client, command.transaction)
            is_waiting = reason is not None and flow.hold(client, command, reason)
        if not is_waiting:
            work = transactions.decide(client, command)
            if work is not None:
                yield from work
        elif command.transaction in client.transactions:
            former = command.transaction
            flow.rename(client, former, transactions.put_aside(client, former))

    def abort(self, client: Client, command: Abort) -> None:
        """Carry out ABORT: commands of the transaction that wait are dropped."""
        if self.flow.is_holding:
            self.flow.release(client, command.transaction)
        self._transactions.abort(client, command)

    def move(self, client: Client, command: Move) -> Work[None]:
        """Carry out MOVE: one operation of the store adds a delivered message to its target and removes it from its
        queue. ClientError if the client may not send there, or the store is full: then the delivery goes back to its
        queue, and does not count as one."""
        subscription = client.subscriptions.get(command.id)
        entry = None if subscription is None else subscription.take_one(command.tag)
        queue = None if entry is None else entry.queue
        if subscription is None or entry is None or queue is None:
            raise refusal(f"There is no delivery {command.tag} of {command.id!r} to move", kind=ErrorKind.STATE)
        pace = Pace()
        try:
            if self._store.is_full:
                raise refusal(self._store.full_reason, kind=ErrorKind.RESOURCE)
            acting = self._sender.acting(client.principal)
            copies = yield from self._sender.make(acting, (command.message,), None, pace)
            command.added, volatile = self._sender.settle(acting, copies, None)
        except ClientError:
            queue.give_back(entry, is_seen=False)
            self._dispatch(queue)
            raise
        is_kept = bool(entry.order_key) and not queue.is_dropped
        parts = [removal(queue, entry, kind=AckType.STANDARD)] if is_kept else []
        queue.settle(entry)
        commitment = Commitment(self._sender.arrivals, client, command.receipt, volatile)
        yield from self._sender.commit([*command.added, *parts], commitment, pace)
        self._acknowledger.resume(subscription)

    def _carry_out_held(self, client: Client, command: Waits) -> Work[MustWait | None]:
        """Carry out a command that waited, in steps; return None if it is done. The end of a transaction is prepared
        first, and is dropped if it does not wait any more after that."""
        transactions = self._transactions
        if isinstance(command, Send):
            if command.transaction is not None:
                return transactions.send(client, command)
            sent = self._sender.send(client, command)
            return sent if sent is None or isinstance(sent, MustWait) else (yield from sent)
        reason = transactions.must_wait(client, command.transaction)
        if reason is not None:
            return reason
        transaction = yield from transactions.make_ready(client, command)
        try:
            if transaction is None or self.flow.holds(client, command):
                reason = transactions.must_wait(client, command.transaction)
                if reason is not None:
                    return reason
                work = transactions.decide(client, command)
                if work is not None:
                    yield from work
            return None
        finally:
            if transaction is not None:
                transactions.forget_copies(transaction)


def _write(command: Send) -> None:
    """Write a long text in Java's encoding."""
    command.message = written(command.message)
