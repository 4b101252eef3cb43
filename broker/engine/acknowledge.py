"""Carry out acknowledgements: ACK, NACK, and the OpenWire commands that pull, change the prefetch and give up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tandemmq.broker.core.client import Client, ReceiptDue
from tandemmq.broker.core.commands import (
    Ack,
    AckMode,
    AckOfMessage,
    AckOfNothing,
    ClientError,
    Delivered,
    GiveUp,
    Nack,
    Pull,
    Receipt,
    Redelivered,
    SetPrefetch,
    refusal,
)
from tandemmq.broker.core.containment import tell
from tandemmq.broker.core.delivery import Entry, QueueBase, Subscription
from tandemmq.broker.core.operations import removal
from tandemmq.broker.core.slices import CLOCK_ITEMS, ITEMS, Pace, Rounds, Work, pieces
from tandemmq.broker.core.topics.topic import TopicSubscription
from tandemmq.broker.engine.dispatch import Dispatcher
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.transactions import Transactions
from tandemmq.store.records.acknowledgements import AckType

# A Pull without a wait is answered when the page that is read for it arrives. Seconds between two checks, and
# maximum number of checks.
PULL_POLL_SECONDS = 0.005
PULL_POLLS_MAX = 400
# Maximum number of refused messages that are delayed for redelivery; any beyond that are redelivered immediately.
DELAYED_MAX = 10_000
# Maximum number of unacknowledged deliveries that are searched by message id: this takes less than a millisecond.
LOOKED_THROUGH_MAX = 10_000
# Cost of making a dead letter, in items of a step.
_DEAD_LETTERED = 8


class Acknowledger(Part):
    """Carries out ACK, NACK, pulls and prefetch changes. Runs on the loop; a ClientError affects only its client."""

    def __init__(self, shared: Shared, dispatcher: Dispatcher, transactions: Transactions) -> None:
        super().__init__(shared)
        self._dispatcher = dispatcher
        self._browsing = dispatcher.browsing
        self._dead_letters = dispatcher.dead_letters
        self._dispatch = dispatcher.dispatch
        self._transactions = transactions
        self._delayed = 0
        self.unmatched = 0  # acknowledgements that match no unacknowledged delivery
        self._rounds = Rounds(shared.loop.start, self._dispatch_queues)

    def ack(self, client: Client, command: Ack) -> Work[None] | None:
        subscription = client.subscriptions.get(command.id)
        if (
            subscription is not None
            and command.first == command.tag
            and not subscription.is_cumulative
            and command.transaction is None
            and (entry := subscription.take_one(command.tag)) is not None
        ):
            # The same as ``_settle`` for a single delivery, which is the usual case.
            receipt = command.receipt
            queue = entry.queue
            if queue is not None:
                queue.settle(entry)
            if queue is not None and entry.order_key:
                self._append(removal(queue, entry, None, None if receipt is None else ReceiptDue(client, receipt)))
            else:
                client.send_receipt(receipt)
            if self._dispatcher.tells_consumed:
                self._dispatcher.consumed(((subscription, command.tag, entry),))
            self.resume(subscription)
            return None
        if command.transaction is not None:
            self._enlist(client, command, subscription, command.transaction)
            return None
        covered = [] if subscription is None else _take(subscription, command)
        if subscription is not None and covered:
            return self._settle(client, subscription, covered, command.receipt)
        self.unmatched += 1
        if subscription is None or subscription.ack is not AckMode.RANGE:
            raise unexpected("ACK", command)
        # After a failover a client acknowledges messages that another master delivered (openwire.md 10.4).
        client.send_receipt(command.receipt)
        return None

    def _enlist(self, client: Client, command: Ack, subscription: Subscription | None, transaction: str) -> None:
        """Enlist an acknowledgement, which takes effect at COMMIT. If the client no longer holds a named delivery,
        another consumer may have it: then the transaction can only be rolled back."""
        if subscription is not None:
            covered = _take(subscription, command)
            missing = max(command.count, 1) - len(covered)
            is_lenient = subscription.is_browser or isinstance(subscription, TopicSubscription)
            if missing <= 0 or is_lenient or self._transactions.holds(client, command, subscription) >= missing:
                if covered:
                    self._transactions.enlist(client, transaction, subscription, covered)
                client.send_receipt(command.receipt)
                self.resume(subscription)
                return
            if covered:
                subscription.restore(covered)
        self.unmatched += 1
        raise self._transactions.doomed(client, transaction, unexpected("ACK", command))  # prove: enlisted-is-held

    def ack_of_nothing(self, client: Client, command: AckOfNothing) -> None:
        self.unmatched += 1
        if command.transaction is not None:
            raise self._transactions.doomed(client, command.transaction, command.error)  # prove: kept-copy-dooms
        client.send_receipt(command.receipt)

    def ack_of_message(self, client: Client, command: AckOfMessage) -> Work[None] | None:
        """Search the unacknowledged deliveries of the connection, for clients that name only a message."""
        named = client.subscriptions.get(command.subscription) if command.subscription is not None else None
        candidates = client.subscriptions.values() if named is None else (named,)
        subscriptions = [each for each in candidates if not (command.is_nack and each.is_browser)]
        found: list[tuple[str, int]] = []
        if sum(len(each.unacked) for each in subscriptions) <= LOOKED_THROUGH_MAX:
            for subscription in subscriptions:
                for tag, entry in subscription.unacked.items():
                    if entry.message.message_id == command.message_id:
                        found.append((subscription.id, tag))
        if not found and command.transaction is not None:
            # A repeated ACK in a transaction: `_enlist` accepts it, like an ACK that names the delivery.
            ids = {each.id for each in subscriptions}
            found = self._transactions.enlisted(
                client, command.transaction, command.message_id, ids, LOOKED_THROUGH_MAX
            )
        if len(found) == 1:
            ((id, tag),) = found
            if command.is_nack:
                return self.nack(client, Nack(id, tag, command.transaction, command.receipt))
            return self.ack(client, Ack(id, tag, command.transaction, command.receipt))
        self.unmatched += 1
        error = refusal(
            f"Unexpected {'NACK' if command.is_nack else 'ACK'} received for id [{command.message_id[:200]}]",
            "The header id must repeat the header ack of the MESSAGE. A message-id is accepted if it names exactly"
            f" one unacknowledged delivery of this connection, and there are at most {LOOKED_THROUGH_MAX}; this one"
            f" names {len(found)}.",
        )
        if command.transaction is None:
            raise error
        raise self._transactions.doomed(client, command.transaction, error)

    def _settle(
        self, client: Client, subscription: Subscription, covered: list[tuple[int, Entry]], receipt: Receipt | None
    ) -> Work[None] | None:
        last: Entry | None = None
        if receipt is not None:
            for _, entry in covered:
                if entry.order_key and entry.queue is not None:
                    last = entry
        due = None if last is None else ReceiptDue(client, receipt)
        settled = partial(self._settled, client, subscription, covered, receipt if due is None else None)
        if len(covered) > CLOCK_ITEMS:
            return self._settle_in_steps(covered, last, due, settled)
        self._settle_some(covered, last, due)
        settled()
        return None

    def _settle_in_steps(
        self, covered: list[tuple[int, Entry]], last: Entry | None, due: ReceiptDue | None, settled: Callable[[], None]
    ) -> Work[None]:
        pace = Pace()
        for start in range(0, len(covered), CLOCK_ITEMS):
            if pace.is_full(CLOCK_ITEMS):
                yield
            self._settle_some(covered[start : start + CLOCK_ITEMS], last, due)
        settled()

    def _settle_some(self, covered: list[tuple[int, Entry]], last: Entry | None, due: ReceiptDue | None) -> None:
        """Remove deliveries from their queues. ``due``: the receipt that waits for the removal of ``last``."""
        for _, entry in covered:
            queue = entry.queue
            if queue is not None:
                queue.settle(entry)
                if entry.order_key:
                    self._append(removal(queue, entry, None, due if entry is last else None))

    def _settled(
        self, client: Client, subscription: Subscription, covered: list[tuple[int, Entry]], receipt: Receipt | None
    ) -> None:
        """Note the end of ``_settle``. ``receipt``: one that waits for no removal."""
        if self._dispatcher.tells_consumed:
            self._dispatcher.consumed([(subscription, tag, entry) for tag, entry in covered])
        client.send_receipt(receipt)
        self.resume(subscription)

    def resume(self, subscription: Subscription) -> None:
        """Deliver more to a subscription that can take messages again."""
        if subscription.holder.is_held_back:
            subscription.retry()
        if len(subscription.queues) > ITEMS:
            self._rounds.ask(subscription)
            return
        for queue in subscription.queues:
            if queue.has_work:
                self._dispatch(queue)
        if isinstance(subscription, TopicSubscription):
            self._dispatcher.dispatch_pending(subscription)
        elif subscription.is_browser:
            self._browsing.show_soon(subscription)

    def _dispatch_queues(self, subscription: Subscription) -> Work[None]:
        """Dispatch all queues of the subscription while it can take messages; a pattern has many queues."""
        for piece in pieces(list(subscription.queues)):
            for queue in piece:
                if queue.has_work:
                    self._dispatch(queue)
            if subscription.credit <= 0 or not subscription.outlet.is_writable:
                return  # the code that makes room calls this again
            yield

    # ---- refusals

    def nack(self, client: Client, command: Nack) -> Work[None]:
        """Refuse a delivery; with the mode ``client``, all deliveries up to it, as an ACK does (STOMP 1.2, NACK)."""
        subscription = client.subscriptions.get(command.id)
        if command.transaction is not None:
            error = refusal("NACK in a transaction is not possible", "Send it without a transaction header.")
            raise self._transactions.doomed(client, command.transaction, error)
        covered = [] if subscription is None else subscription.take(command.tag)
        if subscription is None or not covered:
            raise unexpected("NACK", command)
        refused: dict[QueueBase, list[Entry]] = {}
        stays: list[tuple[int, Entry]] = []
        dead: list[tuple[QueueBase, Entry]] = []
        pace = Pace()
        for tag, entry in covered:
            if pace.is_full():
                yield
            queue = entry.queue
            if queue is None:
                continue
            redelivery = self._policies.of(queue.destination).redelivery
            if self._settings.stomp_nack == "requeue" and not redelivery.is_over(entry.refusals):
                if self.refuse(queue, entry, redelivery.delay(entry.refusals)):
                    refused.setdefault(queue, []).append(entry)
            elif queue.is_dead_letter_queue:
                # A dead letter makes no other dead letter: it stays with its subscription until the subscription ends.
                stays.append((tag, entry))
            else:
                queue.settle(entry)
                dead.append((queue, entry))
        for queue, entries in refused.items():
            self._dispatcher.suspects.count(queue, entries)
        if stays:
            subscription.restore(stays)
        last = next((entry for _, entry in reversed(dead) if entry.order_key), None)
        for queue, entry in dead:
            cause = f"refused by NACK after {entry.redeliveries} redeliveries"
            is_last = entry is last and command.receipt is not None
            self._dead_letters.send_to_dlq(
                queue, entry, cause, ReceiptDue(client, command.receipt) if is_last else None
            )
            if pace.is_full(_DEAD_LETTERED):
                yield
        if last is None:
            client.send_receipt(command.receipt)
        for queue in dict.fromkeys(entry.queue for _, entry in covered if entry.queue is not None):
            self._dispatch(queue)
        self.resume(subscription)

    def refuse(self, queue: QueueBase, entry: Entry, delay: int) -> bool:
        """Redeliver a message after ``delay`` milliseconds. Return whether it is back in its queue already."""
        entry.refusals += 1
        if delay and self._delayed < DELAYED_MAX:
            # The message stays unacknowledged without a consumer: it is counted, and neither delivered nor released.
            self._delayed += 1
            self._call_later(delay / 1000, lambda: self._return_delayed(queue, entry))
            return False
        queue.give_back(entry)
        return True

    def _return_delayed(self, queue: QueueBase, entry: Entry) -> None:
        """Return a refused message to its queue after its delay."""
        self._delayed -= 1
        queue.give_back(entry)
        self._dispatcher.suspects.count(queue, (entry,))
        self._dispatch(queue)

    def give_up(self, client: Client, command: GiveUp) -> Work[None]:
        subscription = client.subscriptions.get(command.id)
        covered = [] if subscription is None else subscription.take_range(command.first, command.tag)
        if not covered:
            self.unmatched += 1
        now = self._clock()
        waiting = None if command.receipt is None else ReceiptDue(client, command.receipt)
        pace = Pace()
        for _, entry in reversed(covered):
            if pace.is_full(_DEAD_LETTERED):
                yield
            queue = entry.queue
            if queue is None:
                continue
            queue.settle(entry)
            if not command.is_expired:
                is_awaited = self._dead_letters.send_to_dlq(queue, entry, command.cause, waiting)
            elif 0 < entry.message.expiration <= now:
                is_awaited = self._dead_letters.expire(queue, entry, waiting)
            else:
                is_awaited = bool(entry.order_key)
                if is_awaited:
                    self._append(removal(queue, entry, context=waiting, kind=AckType.EXPIRED))
            if is_awaited:
                waiting = None
        if waiting is not None:
            client.send_receipt(command.receipt)
        if subscription is not None:
            self.resume(subscription)

    def redelivered(self, client: Client, command: Redelivered) -> None:
        """Count redeliveries in the broker, too: if this client is lost, the next one gets the count."""
        subscription = client.subscriptions.get(command.id)
        client.send_receipt(command.receipt)
        if subscription is None:
            return
        entries: dict[QueueBase, list[Entry]] = {}
        for tag, entry in subscription.unacked.items():
            if command.first <= tag <= command.tag and entry.queue is not None:
                entries.setdefault(entry.queue, []).append(entry)
        for queue, found in entries.items():
            self._dispatcher.suspects.redelivered(queue, found)

    # ---- credit

    def delivered(self, client: Client, command: Delivered) -> None:
        subscription = client.subscriptions.get(command.id)
        client.send_receipt(command.receipt)
        if subscription is not None:
            subscription.widen(command.count)
            self.resume(subscription)

    def set_prefetch(self, client: Client, command: SetPrefetch) -> None:
        subscription = client.subscriptions.get(command.id)
        client.send_receipt(command.receipt)
        if subscription is not None:
            subscription.prefetch_now = None
            subscription.set_prefetch(min(command.prefetch, self._settings.prefetch_max))
            self.resume(subscription)

    def take_prefetches(self, clients: list[Client]) -> Work[None]:
        """Apply a changed prefetch policy to the present consumers, unless their clients chose a prefetch; notify the
        clients that can pull (AbstractSubscription.updateConsumerPrefetch)."""
        pace = Pace()
        for client in clients:
            for subscription in list(client.subscriptions.values()):
                if pace.is_full():
                    yield
                now = subscription.prefetch_now
                if now is None or not subscription.is_open or subscription.prefetch == (prefetch := now()):
                    continue
                subscription.set_prefetch(prefetch)
                if client.session.can_pull:
                    tell(client.connection, client.session.tell_prefetch, subscription.id, prefetch)
                self.resume(subscription)
                if pace.is_full(1 + len(subscription.queues)):
                    yield

    def pull(self, client: Client, command: Pull) -> None:
        subscription = client.subscriptions.get(command.id)
        client.send_receipt(command.receipt)
        if subscription is None or not subscription.is_pull:
            return
        if subscription.is_browser and not self._browsing.is_under_way(subscription):
            tell(subscription.outlet, subscription.outlet.session.nothing, subscription.id)
            return
        subscription.pulled = pulled = subscription.pulled + 1
        subscription.credit = 1
        self.resume(subscription)
        if subscription.is_browser:
            return  # the session is notified at the end of the browse
        if command.timeout_ms > 0:
            self._call_later(command.timeout_ms / 1000, lambda: self._end_pull(subscription, pulled, PULL_POLLS_MAX))
        elif command.timeout_ms < 0:
            self._end_pull(subscription, pulled, 0)

    def _end_pull(self, subscription: Subscription, pulled: int, polls: int) -> None:
        if not subscription.is_open or subscription.pulled != pulled or subscription.credit <= 0:
            return  # the pull has ended, or was answered
        if polls < PULL_POLLS_MAX and any(queue.is_page_asked for queue in subscription.queues):
            self._call_later(PULL_POLL_SECONDS, lambda: self._end_pull(subscription, pulled, polls + 1))
            return
        subscription.credit = 0
        outlet = subscription.outlet
        tell(outlet, outlet.session.nothing, subscription.id)


def _take(subscription: Subscription, command: Ack) -> list[tuple[int, Entry]]:
    """Return the deliveries that ``command`` covers, oldest first."""
    if subscription.ack is AckMode.RANGE:
        return subscription.take_range(command.first, command.tag)
    return subscription.take(command.tag)


def unexpected(name: str, command: Ack | Nack) -> ClientError:
    return refusal(
        f"Unexpected {name} received for delivery {command.tag} of subscription {command.id!r}",
        "It must name a MESSAGE that an open subscription received and that is not acknowledged yet.",
    )
