"""Endpoint of an AMQP session: what its links and deliveries share. Pure.

Windows count frames. This side's window never ends; the client's bounds the frames of deliveries to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from tandemmq.broker.core.commands import Command
from tandemmq.broker.protocols.amqp.links import OutLink
from tandemmq.broker.protocols.amqp.schema import UINT_MAX, Begin, Composite, Flow
from tandemmq.broker.protocols.amqp.transactions import Transactions

# Our window, in frames: sent again with each flow, so it never ends.
WINDOW: Final = (1 << 31) - 1


class Connected(Protocol):
    """Part of a connection that a session uses."""

    now: int
    frame_bytes_max: int  # of the client
    message_bytes_max: int
    unsettled_max: int  # deliveries of one link that wait for its client, or for its window
    partial_bytes: int  # of deliveries that are not whole, in all sessions
    waiting_bytes: int  # of deliveries that wait for the windows of all sessions
    transactions: Transactions

    def say(self, channel: int, performative: Composite) -> None: ...

    def write(self, data: bytes | memoryview) -> None: ...

    def accept(self, channel: int, delivery_id: int, state: Composite) -> None: ...

    def settle(self, channel: int, first: int, last: int, state: Any) -> None: ...

    def next_message_id(self) -> str: ...

    def ask(self, command: Command) -> None:
        """Give the engine a command in the next turn."""

    def ask_for(self, link: OutLink) -> None:
        """Acknowledge what was written to the link, in the next turn."""

    def tell_waiting(self) -> None:
        """Have the transport count ``waiting_bytes``."""

    def may_send(self) -> bool:
        """Return whether a frame of a delivery that waits may be written in this turn, and count it."""

    def put_off(self, channel: int, step: Callable[[list[Command]], None]) -> None:
        """Have a function called before the next frame of the client: the rest of the present one."""

    def go_on(self, step: Callable[[], None]) -> None:
        """Have a function called in the next turn in which the output has room."""


class Endpoint:
    """State of a session. ``number`` is its channel in both directions. ``is_ending``: it ended with an error of its
    own, and frames of the client are dropped until the client ends it, too."""

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
        self.scanned = 0  # deliveries that a step looked at, for the turn of the connection
        self.window = begin.incoming_window  # of the client: frames that it still takes
        self._next_in = begin.next_outgoing_id
        self._next_out = 0
        self._unfinished = 0  # answers that an end waits for
        self._end_answer: Callable[[], None] | None = None

    def say(self, performative: Composite) -> None:
        self.connection.say(self.number, performative)

    # ---- windows

    def came(self) -> None:
        """Count a transfer of the client."""
        self._next_in = (self._next_in + 1) & UINT_MAX

    def sent(self) -> None:
        """Count a transfer to the client."""
        self._next_out = (self._next_out + 1) & UINT_MAX
        self.window -= 1

    def widen(self, flow: Flow) -> None:
        """Take over the window that the client grants."""
        if flow.next_incoming_id is None or not self._next_out:
            # The client did not see our first frames, or gives a number that it cannot know yet (rhea, AMQPNetLite).
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

    def owe(self) -> None:
        """Have the end of the session wait for one call of ``finish`` more."""
        self._unfinished += 1

    def finish(self, answer: Composite | None) -> None:
        """Write an answer that the end of the session waits for, and that to the end behind the last of them."""
        if answer is not None and not self.is_ending:
            self.say(answer)
        self._unfinished -= 1
        if not self._unfinished and self._end_answer is not None:
            self._end_answer()

    def end(self, answer: Callable[[], None]) -> None:
        """Call ``answer`` behind the last answer that the end waits for."""
        if self._unfinished:
            self._end_answer = answer
        else:
            answer()
