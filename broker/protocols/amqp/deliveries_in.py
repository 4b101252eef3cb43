"""Deliveries from an AMQP client: transfers become messages, receipts become outcomes. Pure.

The credit of a link and its unanswered messages have a common limit (``links.CREDIT``).
"""

from __future__ import annotations

from io import BytesIO

from tandemmq.broker.core.commands import ClientError, Command, Send
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.endpoint import Endpoint
from tandemmq.broker.protocols.amqp.errors import (
    INVALID_FIELD,
    MESSAGE_SIZE,
    RESOURCE_LIMIT,
    TRANSFER_LIMIT,
    AmqpError,
    Scope,
)
from tandemmq.broker.protocols.amqp.incoming import Incoming, cached_envelope
from tandemmq.broker.protocols.amqp.links import CREDIT, CREDIT_LOW, IncomingDelivery, InLink, error_of
from tandemmq.broker.protocols.amqp.schema import (
    ACCEPTED,
    UINT_MAX,
    Composite,
    Disposition,
    Error,
    Rejected,
    TransactionalState,
)
from tandemmq.broker.protocols.amqp.transactions import Transaction


class Sent:
    """Receipt of a message that waits for its disposition."""

    __slots__ = ("deliveries", "delivery_id", "link", "transaction")

    def __init__(
        self, deliveries: DeliveriesIn, link: InLink, delivery_id: int, transaction: Transaction | None
    ) -> None:
        self.deliveries = deliveries
        self.link = link
        self.delivery_id = delivery_id
        self.transaction = transaction


class DeliveriesIn:
    """Deliveries of the client in one session."""

    __slots__ = ("_endpoint",)

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def take(self, link: InLink, transfer: schema.Transfer, payload: bytes) -> IncomingDelivery | None:
        """Handle a transfer. Return the delivery when it is complete; None if more frames follow, or if it is aborted
        or resumed. Raises AmqpError."""
        connection = self._endpoint.connection
        delivery = link.partial
        if delivery is None:
            if transfer.delivery_id is None:
                raise AmqpError(INVALID_FIELD, "the first transfer of a delivery has no delivery-id", Scope.SESSION)
            if link.credit <= 0:
                raise AmqpError(TRANSFER_LIMIT, "the link has no credit for this message", Scope.LINK)
            link.partial = delivery = IncomingDelivery(
                transfer.delivery_id, transfer.delivery_tag, transfer.message_format or 0
            )
        elif not _continues(delivery, transfer):
            text = "a delivery is incomplete, and this transfer names another one"
            raise AmqpError(INVALID_FIELD, text, Scope.SESSION)
        delivery.is_settled = delivery.is_settled or transfer.settled is True
        delivery.is_resumed = delivery.is_resumed or transfer.resume
        if isinstance(transfer.state, TransactionalState):
            delivery.transaction_id = transfer.state.txn_id
        if not transfer.aborted:
            delivery.size += len(payload)
            connection.partial_bytes += len(payload)
            if delivery.size > link.message_bytes_max:
                text = f"a message has more than {link.message_bytes_max} bytes"
                raise AmqpError(
                    MESSAGE_SIZE, text if link.is_control else f"{text}, wireFormat.maxFrameSize", Scope.LINK
                )
            limit = connection.message_bytes_max
            if connection.partial_bytes > limit:
                text = f"incomplete messages of this connection have more than {limit} bytes"
                raise AmqpError(RESOURCE_LIMIT, text, Scope.LINK)
            if transfer.more or delivery.content is not None:
                delivery.content = delivery.content or BytesIO()
                delivery.content.write(payload)
            if transfer.more:
                return None
        delivery.encoded = payload if delivery.content is None else delivery.content.getvalue()
        self.drop_partial(link)
        link.credit -= 1
        link.delivery_count = (link.delivery_count + 1) & UINT_MAX
        if transfer.aborted or delivery.is_resumed:
            # The broker keeps no unsettled deliveries of a detached link, as its attach shows. So it must ignore a
            # resumed transfer (AMQP 1.0, 2.7.5, resume). The client sends the message as a new delivery.
            self.top_up(link)
            return None
        return delivery

    def may_take_whole(self, link: InLink, size: int) -> bool:
        """Return whether the link has credit and room for a message of ``size`` bytes in one frame."""
        connection = self._endpoint.connection
        is_free = link.partial is None and link.credit > 0 and size <= link.message_bytes_max
        return is_free and connection.partial_bytes + size <= connection.message_bytes_max

    def take_whole(
        self, link: InLink, delivery_id: int, encoded: bytes, commands: list[Command], *, is_settled: bool
    ) -> None:
        """Send the message of a frame that ``may_take_whole`` permits. Raises AmqpError for the link."""
        link.credit -= 1
        link.delivery_count = (link.delivery_count + 1) & UINT_MAX
        self._send(link, delivery_id, encoded, commands, is_settled=is_settled)

    def send(self, link: InLink, delivery: IncomingDelivery, commands: list[Command]) -> None:
        """Send a message. Raises AmqpError if it is presettled and refused."""
        self._send(
            link,
            delivery.delivery_id,
            delivery.encoded,
            commands,
            is_settled=delivery.is_settled,
            message_format=delivery.message_format,
            transaction_id=delivery.transaction_id,
        )

    def _send(
        self,
        link: InLink,
        delivery_id: int,
        encoded: bytes,
        commands: list[Command],
        *,
        is_settled: bool,
        message_format: int = 0,
        transaction_id: bytes | None = None,
    ) -> None:
        connection = self._endpoint.connection
        transaction: Transaction | None = None
        try:
            if transaction_id is not None:
                transaction = connection.transactions.find(transaction_id, Scope.LINK)
            destination = link.destination
            usual = None if message_format or destination is None else cached_envelope(encoded, len(link.envelope))
            if usual is not None and destination is not None:
                message = usual.message(destination, connection.next_message_id(), encoded)
            else:
                incoming = Incoming(encoded, connection.now)
                message = incoming.message(destination, connection.next_message_id(), message_format)
                if destination is not None and not message_format:
                    link.envelope = incoming.remember(message, link.envelope)
        except AmqpError as error:
            if transaction is not None:  # prove: amqp-refused-send-fails-the-commit "is not None" -> "is self"
                commands.append(transaction.failure(error.text))
            # The outcome reports the error, and the link stays attached. A presettled message has no outcome.
            if is_settled:
                raise AmqpError(error.condition, error.text, Scope.LINK) from None
            self.answer(link, delivery_id, _rejected(Error(error.condition, error.text), transaction))
            self.top_up(link)
            return
        name = None if transaction is None else transaction.name
        # prove: amqp-accepts-after-the-store "link.unanswered += 1" -> "self.stored(Sent(self, link, 0, None))"
        link.unanswered += 1
        receipt = link.presettled if is_settled else Sent(self, link, delivery_id, transaction)
        commands.append(Send(message, name, receipt))

    def drop_partial(self, link: InLink) -> None:
        """Drop an incomplete delivery."""
        if link.partial is not None:
            self._endpoint.connection.partial_bytes -= link.partial.size
            link.partial = None

    def stored(self, sent: Sent) -> None:
        """Accept a message of the client: a durable one is in the store, or will be after the commit."""
        endpoint, transaction = self._endpoint, sent.transaction
        if not endpoint.is_ending:
            state = ACCEPTED if transaction is None else transaction.accepted
            if sent.link.is_second:
                self.answer(sent.link, sent.delivery_id, state)
            else:
                endpoint.connection.accept(endpoint.number, sent.delivery_id, state)
        self.answered(sent.link)

    def not_stored(self, sent: Sent, error: ClientError) -> None:
        """Reject a message of the client. The engine fails its transaction."""
        if sent.transaction is not None:
            sent.transaction.has_failed = True
        if not self._endpoint.is_ending:
            self.answer(sent.link, sent.delivery_id, _rejected(error_of(error), sent.transaction))
        self.answered(sent.link)

    def answer(self, link: InLink, delivery_id: int, state: Composite) -> None:
        """Write the outcome of a delivery, and settle it unless the receiver settle mode is second."""
        answer = Disposition(role=True, first=delivery_id, last=delivery_id, settled=not link.is_second, state=state)
        self._endpoint.write(answer)

    def answered(self, link: InLink) -> None:
        """Count one unanswered delivery less."""
        link.unanswered -= 1
        if not link.unanswered and link.on_idle is not None:
            link.on_idle()
            link.on_idle = None
        self.top_up(link)

    # ---- credit

    def top_up(self, link: InLink) -> None:
        """Grant a sender more credit if it has little; unanswered deliveries count as used credit."""
        if link.is_over or self._endpoint.is_ending or link.credit + link.unanswered > CREDIT_LOW:
            return
        link.credit = CREDIT - link.unanswered
        self.write_credit(link)

    def write_credit(self, link: InLink) -> None:
        """Write the flow of a link."""
        flow = self._endpoint.flow()
        flow.handle = link.own_handle
        flow.delivery_count = link.delivery_count
        flow.link_credit = link.credit
        self._endpoint.write(flow)


def _continues(delivery: IncomingDelivery, transfer: schema.Transfer) -> bool:
    """Return whether a transfer can belong to this delivery (AMQP 1.0, 2.7.5)."""
    return (
        transfer.delivery_id in (None, delivery.delivery_id)
        and transfer.delivery_tag in (None, delivery.delivery_tag)
        and transfer.message_format in (None, delivery.message_format)
    )


def _rejected(error: Error, transaction: Transaction | None) -> Composite:
    rejected = Rejected(error)
    return rejected if transaction is None else transaction.state(rejected)
