"""Control links of an AMQP session, on which a client declares and discharges transactions (AMQP 1.0, 4.2 and 4.3).
Pure.

    attach, its target a coordinator -> attach
    declare                          -> Begin  -> declared, with the id of the transaction
    discharge                        -> Commit -> accepted when it is durable, rejected when it was rolled back
    discharge with fail              -> Abort  -> accepted

When a control link ends, its transactions are rolled back.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tandemmq.broker.core.commands import Abort, Begin, ClientError, Command, Commit
from tandemmq.broker.protocols.amqp import sections
from tandemmq.broker.protocols.amqp.codec import read_composite
from tandemmq.broker.protocols.amqp.deliveries_in import DeliveriesIn
from tandemmq.broker.protocols.amqp.endpoint import Endpoint
from tandemmq.broker.protocols.amqp.errors import NOT_ALLOWED, AmqpError, DecodeError, Scope, not_implemented
from tandemmq.broker.protocols.amqp.links import Callbacks, IncomingDelivery, InLink, error_of
from tandemmq.broker.protocols.amqp.schema import (
    Accepted,
    Attach,
    Composite,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Error,
    Rejected,
    Source,
)
from tandemmq.broker.protocols.amqp.transactions import Transaction
from tandemmq.broker.protocols.amqp.types import Reader

# Limit of a declare or discharge: the longest id of a transaction has 32 bytes.
CONTROL_BYTES_MAX: Final = 1_024
# Capabilities of all transactions, whatever the client requests.
COORDINATOR: Final = Coordinator(("amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn"))
_REJECTED: Final = "amqp:rejected:list"


def supports_rejected(attach: Attach) -> bool:
    """Return whether the client of a control link accepts the outcome rejected."""
    source = attach.source
    return not isinstance(source, Source) or not source.outcomes or _REJECTED in source.outcomes


class ControlLinks:
    """The control links of one session."""

    __slots__ = ("_deliveries", "_endpoint")

    def __init__(self, endpoint: Endpoint, deliveries: DeliveriesIn) -> None:
        self._endpoint = endpoint
        self._deliveries = deliveries

    def take(self, link: InLink, delivery: IncomingDelivery, commands: list[Command]) -> None:
        """Carry out a declare or discharge. Raises AmqpError if it is refused and cannot have the outcome rejected."""
        try:
            request = _request_of(delivery.encoded)
            if isinstance(request, Declare):
                self._declare(link, delivery, request, commands)
            elif isinstance(request, Discharge):
                self._discharge(link, delivery, request, commands)
            else:
                raise DecodeError(f"a coordinator takes no {type(request).__name__}")
        except AmqpError as error:
            if delivery.is_settled or not link.supports_rejected:
                raise AmqpError(error.condition, error.text, Scope.LINK) from None
            self._deliveries.answer(link, delivery.delivery_id, Rejected(Error(error.condition, error.text)))
            self._deliveries.top_up(link)

    def _declare(self, link: InLink, delivery: IncomingDelivery, declare: Declare, commands: list[Command]) -> None:
        if declare.global_id is not None:
            raise not_implemented("distributed transactions (global-id)")
        if delivery.is_settled:
            raise AmqpError(NOT_ALLOWED, "a declare is not settled: its outcome is the id of the transaction")
        transaction = self._endpoint.connection.transactions.declare(link)
        link.unanswered += 1
        done = partial(self._answer, link, delivery, Declared(transaction.id))
        failed = partial(self._not_declared, link, delivery, transaction)
        commands.append(Begin(transaction.name, Callbacks(done, failed)))

    def _not_declared(
        self, link: InLink, delivery: IncomingDelivery, transaction: Transaction, error: ClientError
    ) -> None:
        self._endpoint.connection.transactions.end(transaction)
        self._refuse(link, delivery, error)

    def _discharge(
        self, link: InLink, delivery: IncomingDelivery, discharge: Discharge, commands: list[Command]
    ) -> None:
        transactions = self._endpoint.connection.transactions
        transaction = transactions.find(discharge.txn_id, Scope.LINK)
        transactions.end(transaction)
        link.unanswered += 1
        if discharge.fail:
            done = partial(self._answer, link, delivery, Accepted())
            self._roll_back(transaction, Callbacks(done, partial(self._refuse, link, delivery)), commands)
        else:
            done = partial(self._committed, link, delivery, transaction)
            failed = partial(self._not_committed, link, delivery, transaction)
            commands.append(Commit(transaction.name, Callbacks(done, failed)))

    def _committed(self, link: InLink, delivery: IncomingDelivery, transaction: Transaction) -> None:
        for each in transaction.commit():
            self._endpoint.connection.enqueue(each)
        self._answer(link, delivery, Accepted())

    def _not_committed(
        self, link: InLink, delivery: IncomingDelivery, transaction: Transaction, error: ClientError
    ) -> None:
        for each in transaction.roll_back():
            self._endpoint.connection.enqueue(each)
        self._refuse(link, delivery, error)

    def _roll_back(self, transaction: Transaction, receipt: Callbacks, commands: list[Command]) -> None:
        commands.append(Abort(transaction.name, receipt))
        for each in transaction.roll_back():
            self._endpoint.connection.enqueue(each)

    def _answer(self, link: InLink, delivery: IncomingDelivery, outcome: Composite) -> None:
        """Settle a request, unless the client settled it."""
        endpoint = self._endpoint
        if not delivery.is_settled and not endpoint.is_ending:
            id = delivery.delivery_id
            endpoint.connection.settle(endpoint.number, id, id, outcome)
        self._deliveries.answered(link)

    def _refuse(self, link: InLink, delivery: IncomingDelivery, error: ClientError) -> None:
        """Reject a request; detach the link if the request cannot have the outcome rejected."""
        if not delivery.is_settled and link.supports_rejected:
            self._answer(link, delivery, Rejected(error_of(error)))
            return
        if link.presettled is not None:
            link.presettled.failed(error)

    def end(self, link: InLink, commands: list[Command]) -> None:
        """Roll back the transactions of a link that ends."""
        transactions = self._endpoint.connection.transactions
        # prove: amqp-control-link-rolls-back "declared_by(link)" -> "declared_by(link)[:0]"
        for transaction in transactions.declared_by(link):
            transactions.end(transaction)
            link.unanswered += 1
            receipt = Callbacks(partial(self._ended, link, None), partial(self._ended, link))
            self._roll_back(transaction, receipt, commands)

    def _ended(self, link: InLink, error: ClientError | None) -> None:
        self._deliveries.answered(link)


def _request_of(encoded: bytes) -> Composite:
    """Return the composite in the value section of a message. Raises AmqpError."""
    for section in sections.scan(encoded):
        if section.code == sections.VALUE:
            return read_composite(Reader(encoded[section.value : section.stop]))
    raise DecodeError("a message to the coordinator has no value")
