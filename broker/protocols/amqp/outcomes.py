"""Mapping of delivery outcomes to commands of the broker. Pure."""

from __future__ import annotations

from typing import Any, Final

from tandemmq.broker.core.commands import Ack, ClientError, Command, GiveBack, GiveUp
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.errors import condition_of
from tandemmq.broker.protocols.amqp.links import Callbacks, OutLink
from tandemmq.broker.protocols.amqp.schema import Error

# Number of characters that are kept of the condition of a rejection, and of its text.
REASON_CHARACTERS_MAX: Final = 500


def kept_outcome(state: Any) -> schema.Composite | None:
    """Return the outcome as the broker keeps and repeats it, without annotations and with a short error; None if the
    state is no outcome. Values from a client may be long, or arrays that the broker cannot write."""
    if isinstance(state, schema.Modified):
        # prove: amqp-outcomes-are-kept-short "schema.Modified(" -> "state if state else schema.Modified("
        return schema.Modified(state.delivery_failed, state.undeliverable_here)
    if isinstance(state, schema.Rejected):
        error = state.error
        if not isinstance(error, Error):
            return schema.Rejected()
        text = None if error.description is None else error.description[:REASON_CHARACTERS_MAX]
        return schema.Rejected(Error(error.condition[:REASON_CHARACTERS_MAX], text))
    if isinstance(state, (schema.Accepted, schema.Released)):
        return state
    return None


def reason_of(outcome: Any) -> str:
    """Return condition and text of a rejection; empty for another outcome."""
    error = outcome.error if isinstance(outcome, schema.Rejected) else None
    return f"{error.condition} {error.description or ''}".rstrip() if isinstance(error, Error) else ""


def acknowledged(link: OutLink) -> Ack:
    """Return the command that acknowledges the written presettled deliveries."""
    first, link.written = link.written, 0
    return Ack(link.id, link.written_last, first=first)


def command_of(link: OutLink, first: int, last: int, state: Any, receipt: Callbacks | None) -> Command:
    """Return the command for an outcome. Without an outcome, the deliveries are released, because the client may not
    have processed them."""
    if isinstance(state, schema.Accepted):
        return Ack(link.id, last, None, receipt, first=first)
    if isinstance(state, schema.Rejected):
        reason = reason_of(state)
        text = f": {reason}"[:REASON_CHARACTERS_MAX] if reason else ""
        return GiveUp(link.id, first, last, f"rejected by its consumer{text}", receipt=receipt)
    if isinstance(state, schema.Modified):
        if state.undeliverable_here:
            return GiveUp(link.id, first, last, "undeliverable for its consumer", receipt=receipt)
        return GiveBack(link.id, first, last, is_failed=state.delivery_failed, receipt=receipt)
    # prove: amqp-no-outcome-is-no-acknowledgement "GiveBack(link.id, first, last" -> "Ack(link.id, last"
    return GiveBack(link.id, first, last, receipt=receipt)


def error_of(error: ClientError) -> Error:
    """Return the AMQP error for an error of the broker."""
    return Error(condition_of(error), error.message)
