"""Move messages that were delivered to an operator to another destination."""

from __future__ import annotations

from tandemmq.broker.core.client import Client
from tandemmq.broker.core.commands import ClientError, ErrorKind, Move, refusal
from tandemmq.broker.core.operations import removal
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.broker.engine.acknowledge import Acknowledger
from tandemmq.broker.engine.arrivals import Commitment
from tandemmq.broker.engine.dispatch import Dispatcher
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.publish import Sender
from tandemmq.store.records.acknowledgements import AckType


class Moving(Part):
    """Carries out Move: one operation of the store adds the message to the target and removes it from its queue."""

    def __init__(self, shared: Shared, dispatcher: Dispatcher, sender: Sender, acknowledger: Acknowledger) -> None:
        super().__init__(shared)
        self._dispatch = dispatcher.dispatch
        self._sender = sender
        self._acknowledger = acknowledger

    def move(self, client: Client, command: Move) -> Work[None]:
        """Move a delivery. ClientError if the client may not send there, or the store is full: then the delivery goes
        back to its queue, and does not count as one."""
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
            made = yield from self._sender.make(acting, (command.message,), None, pace)
            command.added, volatile = self._sender.settle(acting, made, None)
        except ClientError:
            queue.give_back(entry, is_seen=False)
            self._dispatch(queue)
            raise
        is_kept = bool(entry.order_key) and not queue.is_dropped
        parts = [removal(queue, entry, kind=AckType.STANDARD)] if is_kept else []
        queue.settle(entry)
        commitment = Commitment(self._sender.arrivals, client, command.receipt, volatile)
        yield from self._sender.commit([*command.added, *parts], commitment, pace)
        self._acknowledger.go_on(subscription)
