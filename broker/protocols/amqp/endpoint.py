"""Endpoint of an AMQP session: state that its links and deliveries share. Pure.

Windows count transfer frames. The broker's window never closes; the client's window limits the transfers to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tandemmq.broker.core.commands import Command
from tandemmq.broker.protocols.amqp.links import OutLink
from tandemmq.broker.protocols.amqp.output import AmqpOutput
from tandemmq.broker.protocols.amqp.schema import UINT_MAX, Begin, Composite, Flow
from tandemmq.broker.protocols.amqp.transactions import Transactions

# The broker's window, in frames. Each flow renews it, so it never closes.
WINDOW: Final = (1 << 31) - 1


class Connected(AmqpOutput):
    """Interface of a connection that an endpoint uses."""

    now: int
    message_bytes_max: int
    unsettled_max: int  # deliveries of one link that are unsettled, or presettled and wait for the window
    partial_bytes: int  # of incomplete deliveries, in all sessions
    transactions: Transactions

    def next_message_id(self) -> str:
        raise NotImplementedError

    def enqueue(self, command: Command) -> None:
        """Pass a command to the engine in the next turn."""
        raise NotImplementedError

    def acknowledge_later(self, link: OutLink) -> None:
        """Acknowledge the presettled deliveries that were written to the link, in the next turn."""
        raise NotImplementedError

    def may_send(self) -> bool:
        """Return whether a frame of a waiting delivery may be written in this turn, and count it."""
        raise NotImplementedError

    def defer(self, channel: int, step: Callable[[list[Command]], None]) -> None:
        """Call a function, which continues the current frame, before the next frame is handled."""
        raise NotImplementedError

    def call_next_turn(self, step: Callable[[], None]) -> None:
        """Call a function in the next turn in which the output has room."""
        raise NotImplementedError


class Endpoint:
    """State of a session. ``number``: its channel in both directions. ``is_ending``: this side ended it with an error;
    frames of the client are dropped until the client ends it, too."""

    __slots__ = (
        "_end_answer",
        "_next_in",
        "_next_out",
        "_unfinished",
        "connection",
        "is_ending",
        "number",
        "scanned",
        "window",
    )

    def __init__(self, connection: Connected, number: int, begin: Begin) -> None:
        self.connection = connection
        self.number = number
        self.is_ending = False
        self.scanned = 0  # examined deliveries, which the connection limits in a turn
        self.window = begin.incoming_window  # frames that the client still accepts
        self._next_in = begin.next_outgoing_id
        self._next_out = 0
        self._unfinished = 0  # answers that precede the answer to an end
        self._end_answer: Callable[[], None] | None = None

    def write(self, performative: Composite) -> None:
        self.connection.write_performative(self.number, performative)

    # ---- windows

    def count_received(self) -> None:
        """Count a transfer of the client."""
        self._next_in = (self._next_in + 1) & UINT_MAX

    def count_sent(self) -> None:
        """Count a transfer to the client."""
        self._next_out = (self._next_out + 1) & UINT_MAX
        self.window -= 1

    def update_window(self, flow: Flow) -> None:
        """Apply the window that the client grants."""
        if flow.next_incoming_id is None or not self._next_out:
            # The client has not seen our first frame, or sends a number that it cannot know yet (rhea, AMQPNetLite).
            self.window = flow.incoming_window - self._next_out
        else:
            used = (self._next_out - flow.next_incoming_id) & UINT_MAX
            self.window = flow.incoming_window - used

    def flow(self) -> Flow:
        """Return a flow with the state of the session."""
        return Flow(
            next_incoming_id=self._next_in,
            incoming_window=WINDOW,
            next_outgoing_id=self._next_out,
            outgoing_window=WINDOW,
        )

    # ---- the end

    def start_answer(self) -> None:
        """Delay the answer to the end of the session until one more call of ``finish_answer``."""
        self._unfinished += 1

    def finish_answer(self, answer: Composite | None) -> None:
        """Write an answer that precedes the answer to the end; after the last one, answer the end."""
        if answer is not None and not self.is_ending:
            self.write(answer)
        self._unfinished -= 1
        if not self._unfinished and self._end_answer is not None:
            self._end_answer()

    def end(self, answer: Callable[[], None]) -> None:
        """Call ``answer`` after the last call of ``finish_answer``."""
        if self._unfinished:
            self._end_answer = answer
        else:
            answer()
