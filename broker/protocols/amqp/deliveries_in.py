"""Deliveries of an AMQP client: transfers become messages, and receipts become outcomes. Pure.

The client has credit for a bounded number of messages, those that are not answered included.
"""

from __future__ import annotations

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
    not_implemented,
)
from tandemmq.broker.protocols.amqp.incoming import Incoming
from tandemmq.broker.protocols.amqp.links import CREDIT, CREDIT_LOW, InLink, Partial
from tandemmq.broker.protocols.amqp.outcomes import error_of
from tandemmq.broker.protocols.amqp.schema import UINT_MAX, Error


class Sent:
    """Receipt of a message that waits for its disposition."""

    __slots__ = ("deliveries", "delivery_id", "link")

    def __init__(self, deliveries: DeliveriesIn, link: InLink, delivery_id: int) -> None:
        self.deliveries = deliveries
        self.link = link
        self.delivery_id = delivery_id


class DeliveriesIn:
    """Deliveries of the client in one session."""

    __slots__ = ("_endpoint",)

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def take(self, link: InLink, transfer: schema.Transfer, payload: bytes, commands: list[Command]) -> None:
        """Carry out a transfer. Raises AmqpError."""
        connection = self._endpoint.connection
        if isinstance(transfer.state, schema.TransactionalState):
            raise not_implemented("transactions")
        partial = link.partial
        if partial is None:
            if transfer.delivery_id is None:
                raise AmqpError(INVALID_FIELD, "the first transfer of a delivery has no delivery-id", Scope.SESSION)
            if link.credit <= 0:
                raise AmqpError(TRANSFER_LIMIT, "the link has no credit for this message", Scope.LINK)
            link.partial = partial = Partial(transfer.delivery_id, transfer.message_format or 0, False)
        partial.is_settled = partial.is_settled or transfer.settled is True
        if not transfer.aborted:
            most = connection.message_bytes_max
            partial.size += len(payload)
            connection.partial_bytes += len(payload)
            if partial.size > most:
                text = f"a message has more than {most} bytes, wireFormat.maxFrameSize"
                raise AmqpError(MESSAGE_SIZE, text, Scope.LINK)
            if connection.partial_bytes > most:
                text = f"messages of this connection that are not whole have more than {most} bytes"
                raise AmqpError(RESOURCE_LIMIT, text, Scope.LINK)
            if transfer.more or partial.size > len(payload):
                partial.content.write(payload)
            if transfer.more:
                return
        encoded = payload if partial.size == len(payload) else partial.content.getvalue()
        self.drop_partial(link)
        link.credit -= 1
        link.delivery_count = (link.delivery_count + 1) & UINT_MAX
        if transfer.aborted:
            self.top_up(link)
            return
        self._send(link, partial, encoded, commands)

    def _send(self, link: InLink, partial: Partial, encoded: bytes, commands: list[Command]) -> None:
        connection = self._endpoint.connection
        try:
            incoming = Incoming(encoded, connection.now)
            message = incoming.message(link.destination, connection.next_message_id(), partial.message_format)
        except AmqpError as error:
            # The message is damaged, and not the link: its client learns it by the outcome.
            if partial.is_settled:
                raise AmqpError(error.condition, error.text, Scope.LINK) from None
            self._reject(partial.delivery_id, Error(error.condition, error.text))
            self.top_up(link)
            return
        if partial.is_settled:
            commands.append(Send(message, None, link.presettled, incoming.translate))
            self.top_up(link)
            return
        # prove: amqp-accepts-after-the-store "link.unanswered += 1" -> "connection.accept(self._endpoint.number, 0)"
        link.unanswered += 1
        receipt = Sent(self, link, partial.delivery_id)
        commands.append(Send(message, None, receipt, incoming.translate))

    def drop_partial(self, link: InLink) -> None:
        """Forget what came of a delivery that is not whole."""
        if link.partial is not None:
            self._endpoint.connection.partial_bytes -= link.partial.size
            link.partial = None

    def stored(self, sent: Sent) -> None:
        """Accept a message of the client: it is durable if it is to be."""
        endpoint = self._endpoint
        if not endpoint.is_ending:
            endpoint.connection.accept(endpoint.number, sent.delivery_id)
        self._answered(sent.link)

    def not_stored(self, sent: Sent, error: ClientError) -> None:
        """Reject a message of the client."""
        if not self._endpoint.is_ending:
            self._reject(sent.delivery_id, error_of(error))
        self._answered(sent.link)

    def _reject(self, delivery_id: int, error: Error) -> None:
        endpoint = self._endpoint
        rejected = schema.Rejected(error)
        endpoint.connection.settle(endpoint.number, delivery_id, delivery_id, rejected, is_receiver=True)

    def _answered(self, link: InLink) -> None:
        link.unanswered -= 1
        if not link.unanswered and link.on_idle is not None:
            link.on_idle()
            link.on_idle = None
        self.top_up(link)

    # ---- credit

    def top_up(self, link: InLink) -> None:
        """Give a sending client more credit, if it has little; what is not answered counts as used."""
        if link.is_over or self._endpoint.is_ending or link.credit + link.unanswered > CREDIT_LOW:
            return
        link.credit = CREDIT - link.unanswered
        self.say_credit(link)

    def say_credit(self, link: InLink) -> None:
        """Write the flow of a link."""
        flow = self._endpoint.flow()
        flow.handle = link.handle
        flow.delivery_count = link.delivery_count
        flow.link_credit = link.credit
        self._endpoint.say(flow)
