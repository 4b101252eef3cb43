"""Links of an AMQP session, as the broker sees them: their credit and deliveries.

An ``InLink`` brings messages of the client, an ``OutLink`` takes messages to it. Counters are unsigned 32-bit serial
numbers; the credit that is left is a plain number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from io import BytesIO
from typing import Any, Final

from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.protocols.amqp.schema import Attach
from tandemmq.broker.protocols.amqp.subscriptions import Subscription
from tandemmq.store.records.message import Destination

# Credit of a client that sends: it is topped up when what is left, with what is not answered, is this or less. The
# engine lets 1,000 messages of a client wait for room before it stops reading: with less credit, the acknowledgements
# of a client are read while its messages wait.
CREDIT: Final = 500
CREDIT_LOW: Final = 150
# Limit of deliveries of one link that the client has not settled, whatever credit it grants.
UNSETTLED_MAX: Final = 10_000
# Deliveries that the engine makes in one step, whatever credit the client grants: each is encoded on the event loop.
GRANTED_MAX: Final = 128

SETTLED: Final = 1  # of snd-settle-mode


class Waiting:
    """Receipt of a command: ``done`` is called when it holds, ``failed`` when it was refused."""

    __slots__ = ("done", "failed")

    def __init__(self, done: Callable[[], None], failed: Callable[[ClientError], None]) -> None:
        self.done = done
        self.failed = failed


def do_nothing() -> None:
    """Do nothing."""


@dataclass(slots=True, eq=False, repr=False)
class Partial:
    """A delivery of the client, as far as its frames came. ``size``: bytes of its frames; ``encoded``: its message,
    once it is whole."""

    delivery_id: int
    delivery_tag: bytes | None
    message_format: int
    is_settled: bool
    is_resumed: bool = False
    transaction_id: bytes | None = None
    content: BytesIO | None = None  # of more than one frame
    size: int = 0
    encoded: bytes = b""


@dataclass(slots=True, eq=False, repr=False)
class InLink:
    """A client that sends. ``id`` is its producer's; ``destination`` None: each message names its own; ``credit``:
    messages that it may still send; ``unanswered``: those that the broker has not settled, or not stored; ``is_over``:
    nothing more is taken from it; ``temporary``: the destination that was made for it. ``is_control``: it declares
    transactions; ``takes_rejected``: an outcome can tell its client that a request was refused. ``is_second``: its
    client settles after the broker has given an outcome (receiver settle mode second).

    Of both kinds: ``handle`` is the client's, ``own_handle`` this side's; ``pending`` is the attach of the client until
    it is answered; ``refused``: an error of which the client, that has detached the link, learns with the answer."""

    name: str
    handle: int
    id: str
    destination: Destination | None
    _: KW_ONLY
    own_handle: int
    is_second: bool = False
    message_bytes_max: int
    is_control: bool = False
    takes_rejected: bool = True
    credit: int = 0
    delivery_count: int = 0
    unanswered: int = 0
    pending: Attach | None = None
    is_over: bool = False
    temporary: Destination | None = None
    partial: Partial | None = None
    refused: ClientError | None = None
    presettled: Waiting | None = None  # receipt of its presettled messages
    on_idle: Callable[[], None] | None = None  # called when nothing is unanswered


@dataclass(slots=True, eq=False, repr=False)
class OutLink:
    """A client that receives. ``id`` is its subscription's.

    ``tag``: of the last delivery that the engine made; ``granted``: the tag up to which it may; ``remaining``: credit
    of the client for deliveries after ``tag``; ``delivery_count``: as both sides count; ``unsettled``: deliveries that
    wait for the client; ``seen``: the last tag that it settled, or that was written presettled. ``subscription`` None:
    a plain one, or a queue's.
    """

    name: str
    handle: int
    id: str
    _: KW_ONLY
    own_handle: int
    subscription: Subscription | None = None
    is_settled: bool = False
    temporary: Destination | None = None
    default_outcome: Any = None
    message_bytes_max: int = 0  # that its client takes; 0: no limit
    delivery_count: int = 0
    tag: int = 0
    granted: int = 0
    remaining: int = 0
    waiting: int = 0  # deliveries of which not all frames were written
    unsettled: dict[int, int] = field(default_factory=dict)  # delivery id -> tag
    seen: int = 0
    # Tags of presettled deliveries that were written, and that the engine does not know as settled; 0: none.
    written: int = 0
    written_last: int = 0
    is_draining: bool = False
    asked: int = 0  # grants whose receipt answers a drain
    is_drained: bool = False  # the engine has no more; what waits for the window comes before the answer
    owes_flow: bool = False  # behind the answer to the attach
    pending: Attach | None = None
    refused: ClientError | None = None
    is_over: bool = False
