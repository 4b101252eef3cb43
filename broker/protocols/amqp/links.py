"""State of the links of an AMQP session: credit and deliveries, and the commands for outcomes. Pure.

An ``InLink`` carries messages from the client, an ``OutLink`` carries messages to it. Counters are unsigned 32-bit
serial numbers; the remaining credit is a plain number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from io import BytesIO
from typing import Any, Final

from tandemmq.broker.core.commands import Ack, ClientError, Command, GiveBack, GiveUp
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.errors import condition_of
from tandemmq.broker.protocols.amqp.schema import Attach, Error
from tandemmq.broker.protocols.amqp.subscriptions import Subscription
from tandemmq.store.records.message import Destination

# Credit of a sender. It is renewed when its remaining credit and its unanswered messages together are CREDIT_LOW or
# less. The engine stops reading from a client with 1,000 messages that wait for room. CREDIT is lower, so that
# acknowledgements of a client are read while its messages wait.
CREDIT: Final = 500
CREDIT_LOW: Final = 150
# Limit of unsettled deliveries of one link, whatever credit the client grants.
UNSETTLED_MAX: Final = 10_000
# Deliveries that the engine makes in one step, whatever credit the client grants: each is encoded on the event loop.
GRANTED_MAX: Final = 128
# Number of characters that are kept of the condition of a rejection, and of its text.
REASON_CHARACTERS_MAX: Final = 500

SETTLED: Final = 1  # of snd-settle-mode


class Callbacks:
    """Receipt of a command. ``done`` is called when the command is confirmed, ``failed`` when it is refused."""

    __slots__ = ("done", "failed")

    def __init__(self, done: Callable[[], None], failed: Callable[[ClientError], None]) -> None:
        self.done = done
        self.failed = failed


def do_nothing() -> None:
    """Do nothing."""


class IncomingDelivery:
    """A delivery from the client. ``size``: bytes of the frames that have arrived; ``encoded``: the complete message,
    after the last frame. ``content``: collects a delivery with more than one frame."""

    __slots__ = (
        "content",
        "delivery_id",
        "delivery_tag",
        "encoded",
        "is_resumed",
        "is_settled",
        "message_format",
        "size",
        "transaction_id",
    )

    def __init__(self, delivery_id: int, delivery_tag: bytes | None, message_format: int) -> None:
        self.delivery_id = delivery_id
        self.delivery_tag = delivery_tag
        self.message_format = message_format
        self.is_settled = False
        self.is_resumed = False
        self.transaction_id: bytes | None = None
        self.content: BytesIO | None = None
        self.size = 0
        self.encoded = b""


@dataclass(slots=True, eq=False, repr=False)
class InLink:
    """Link of a sender. ``id``: of its producer in the engine; ``destination`` None: each message names its own;
    ``credit``: number of messages that the client may still send; ``unanswered``: number of messages that have no
    outcome yet; a presettled one counts until it is stored. ``is_control``: it declares transactions;
    ``supports_rejected``: its client accepts the outcome rejected. ``is_second``: the receiver settle mode is second,
    so the client settles first.

    Fields of both kinds of link: ``handle``: that the client chose; ``own_handle``: that the broker chose; ``pending``:
    the attach of the client until it is answered; ``temporary``: the dynamic node of the link; ``is_over``: the link
    has ended; ``refused``: the error for the answer to the client's detach."""

    name: str
    handle: int
    id: str
    destination: Destination | None
    _: KW_ONLY
    own_handle: int
    is_second: bool = False
    message_bytes_max: int
    is_control: bool = False
    supports_rejected: bool = True
    credit: int = 0
    delivery_count: int = 0
    unanswered: int = 0
    envelope: bytes = b""  # of its last message, if the next one may have the same (Incoming.remember)
    pending: Attach | None = None
    is_over: bool = False
    temporary: Destination | None = None
    partial: IncomingDelivery | None = None
    refused: ClientError | None = None
    presettled: Callbacks | None = None  # receipt of its presettled messages
    on_idle: Callable[[], None] | None = None  # called when all messages are answered


@dataclass(slots=True, eq=False, repr=False)
class OutLink:
    """Link of a receiver. ``id``: of its subscription in the engine.

    ``tag``: tag of the last delivery; ``granted``: highest tag that the engine may use; ``remaining``: credit of the
    client for deliveries after ``tag``; ``delivery_count``: number of written deliveries plus the credit that drains
    used up; ``unsettled``: deliveries that the client has not settled; ``seen``: highest tag that the client settled or
    that was written presettled. ``subscription`` None: for a queue, or a plain subscription.
    """

    name: str
    handle: int
    id: str
    _: KW_ONLY
    own_handle: int
    subscription: Subscription | None = None
    is_topic: bool = False
    is_settled: bool = False
    temporary: Destination | None = None
    default_outcome: Any = None
    message_bytes_max: int = 0  # max-message-size of the client; 0: no limit
    delivery_count: int = 0
    tag: int = 0
    granted: int = 0
    remaining: int = 0
    waiting: int = 0  # number of deliveries with frames that are not written yet
    unsettled: dict[int, int] = field(default_factory=dict)  # delivery id -> tag
    seen: int = 0
    # First and last tag of the presettled deliveries that are written, but not acknowledged in the engine; 0: none.
    written: int = 0
    written_last: int = 0
    is_draining: bool = False
    drain_grants: int = 0  # number of grants of drains without a receipt; the last receipt answers
    is_drained: bool = False  # the engine has no more messages; the answer follows the deliveries that wait
    is_flow_due: bool = False  # a flow follows the answer to the attach
    pending: Attach | None = None
    refused: ClientError | None = None
    is_over: bool = False


def kept_outcome(state: Any) -> schema.Composite | None:
    """Return the outcome as the broker keeps and repeats it, without annotations and with a short error; None if the
    state is no outcome. Values from a client may be long, or arrays that the broker cannot write."""
    if isinstance(state, (schema.Accepted, schema.Released)):
        return state
    if isinstance(state, schema.Modified):
        # prove: amqp-outcomes-are-kept-short "schema.Modified(" -> "state if state else schema.Modified("
        return schema.Modified(state.delivery_failed, state.undeliverable_here)
    if isinstance(state, schema.Rejected):
        error = state.error
        if not isinstance(error, Error):
            return schema.Rejected()
        text = None if error.description is None else error.description[:REASON_CHARACTERS_MAX]
        return schema.Rejected(Error(error.condition[:REASON_CHARACTERS_MAX], text))
    return None


def rejection_text(outcome: Any) -> str:
    """Return condition and text of a rejection; empty for another outcome."""
    error = outcome.error if isinstance(outcome, schema.Rejected) else None
    return f"{error.condition} {error.description or ''}".rstrip() if isinstance(error, Error) else ""


def acknowledged(link: OutLink) -> Ack:
    """Return the command that acknowledges the written presettled deliveries, and mark them as acknowledged."""
    first, link.written = link.written, 0
    return Ack(link.id, link.written_last, first=first)


def command_of(link: OutLink, first: int, last: int, state: Any, receipt: Callbacks | None) -> Command:
    """Return the command for an outcome. Without an outcome, the deliveries are released, because the client may not
    have processed them."""
    if isinstance(state, schema.Accepted):
        return Ack(link.id, last, None, receipt, first=first)
    if isinstance(state, schema.Rejected):
        reason = rejection_text(state)
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
