"""Outcomes of deliveries as commands of the broker. Pure."""

from __future__ import annotations

from typing import Any

from tandemmq.broker.core.commands import Ack, ClientError, Command, GiveBack, GiveUp
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.errors import condition_of
from tandemmq.broker.protocols.amqp.links import OutLink, Waiting
from tandemmq.broker.protocols.amqp.schema import Error


def acknowledged(link: OutLink) -> Ack:
    """Return the command for presettled deliveries that were written."""
    first, link.written = link.written, 0
    return Ack(link.id, link.written_last, first=first)


def command_of(link: OutLink, first: int, last: int, state: Any, receipt: Waiting | None) -> Command:
    """Return the command for an outcome. Without one the deliveries are given back: nothing says that the client has
    processed them."""
    if isinstance(state, schema.Accepted):
        return Ack(link.id, last, None, receipt, first=first)
    if isinstance(state, schema.Rejected):
        error = state.error
        text = "" if not isinstance(error, Error) else f": {error.condition} {error.description or ''}".rstrip()
        return GiveUp(link.id, first, last, f"rejected by its consumer{text[:500]}", receipt=receipt)
    if isinstance(state, schema.Modified):
        if state.undeliverable_here:
            return GiveUp(link.id, first, last, "undeliverable for its consumer", receipt=receipt)
        return GiveBack(link.id, first, last, is_failed=state.delivery_failed, receipt=receipt)
    # prove: amqp-no-outcome-is-no-acknowledgement "GiveBack(link.id, first, last" -> "Ack(link.id, last"
    return GiveBack(link.id, first, last, receipt=receipt)


def error_of(error: ClientError) -> Error:
    """Return the error of AMQP for one of the broker."""
    return Error(condition_of(error), error.message)
