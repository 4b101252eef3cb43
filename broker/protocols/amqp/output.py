"""Output of an AMQP connection, until the transport takes it. Consecutive accepted deliveries share one disposition. A
long delivery is made frame by frame."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from tandemmq.broker.protocols.amqp import hot
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.frames import FRAME_BYTES_MIN, FRAME_HEAD_BYTES, frame_of, head_of
from tandemmq.broker.protocols.amqp.schema import ACCEPTED, UINT_MAX, Composite, Disposition, Transfer
from tandemmq.broker.protocols.output import asleep, roomy, uncounted

# Number of bytes in ``pending_bytes`` for a disposition whose range may still grow.
_RANGE_BYTES: Final = 60
# A transfer performative has fewer bytes than this.
TRANSFER_BYTES_MAX: Final = 64


class AmqpOutput:
    """Pieces of bytes in order. ``pending_bytes``: their total length. ``frame_bytes_max``: max-frame-size of the
    client. ``wake`` requests a turn for the session (``Session.set_wake``). ``waiting_bytes``: bytes of the
    deliveries that wait for the window of the client; call ``report_waiting`` after a change."""

    def __init__(self) -> None:
        self._out: list[bytes | memoryview] = []
        self.pending_bytes = 0
        self.frame_bytes_max = FRAME_BYTES_MIN
        self.wake: Callable[[], None] = asleep
        self.has_room: Callable[[], bool] = roomy
        self.waiting_bytes = 0
        self._reported_bytes = 0
        self._count_waiting: Callable[[int], None] = uncounted
        # Outcome of a range of deliveries, whose disposition is not written yet; None: there is none.
        self._range_state: Composite | None = None
        self._range_channel = 0
        self._range_first = 0
        self._range_last = 0

    def set_wake(self, wake: Callable[[], None]) -> None:
        """See ``Session.set_wake``."""
        self.wake = wake

    def set_output(self, has_room: Callable[[], bool], count_waiting: Callable[[int], None]) -> None:
        """See ``Session.set_output``."""
        self.has_room, self._count_waiting = has_room, count_waiting

    def report_waiting(self) -> None:
        """Report the bytes of the deliveries that wait to the transport."""
        if self.waiting_bytes != self._reported_bytes:
            self._reported_bytes = self.waiting_bytes
            self._count_waiting(self.waiting_bytes)

    def take(self) -> bytes:
        """Return the pending bytes, and clear them."""
        return b"".join(self.take_parts())

    def take_parts(self) -> list[bytes | memoryview]:
        """Return the same as ``take``, in pieces."""
        self._end_range()
        parts, self._out = self._out, []
        self.pending_bytes = 0
        return parts

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        self._end_range()
        self._out.append(data)
        self.pending_bytes += len(data)

    def write_performative(self, channel: int, performative: Composite, *, type: int = 0) -> None:
        """Append a frame without payload."""
        frame = frame_of(channel, write_composite(performative), type)
        if len(frame) > self.frame_bytes_max:
            self.too_long(len(frame))
        else:
            self.write(frame)

    def too_long(self, frame_bytes: int) -> None:
        """End the connection: an answer exceeds the max-frame-size of the client."""
        raise NotImplementedError

    def accept(self, channel: int, delivery_id: int, state: Composite) -> None:
        """Settle a delivery of the client as accepted. ``state``: one object for all deliveries that can share a
        disposition."""
        is_next = (self._range_last + 1) & UINT_MAX == delivery_id and self._range_channel == channel
        if self._range_state is not state or not is_next:
            self._end_range()
            self._range_state, self._range_channel, self._range_first = state, channel, delivery_id
            self.pending_bytes += _RANGE_BYTES
        self._range_last = delivery_id

    def settle(self, channel: int, first: int, last: int, state: Any) -> None:
        """Append a disposition that settles deliveries of the client."""
        self.write_performative(channel, Disposition(role=True, first=first, last=last, settled=True, state=state))

    def _end_range(self) -> None:
        state, self._range_state = self._range_state, None
        if state is not None:
            self.pending_bytes -= _RANGE_BYTES
            if state is ACCEPTED:
                self.write(hot.accepted(self._range_channel, self._range_first, self._range_last))
            else:
                self.settle(self._range_channel, self._range_first, self._range_last, state)


class Frames:
    """Makes the frames of a delivery one by one, without copying the message. ``size``: bytes of the message, which is
    in memory until the last frame is made."""

    __slots__ = ("_left", "_pieces", "_transfer", "size")

    def __init__(self, transfer: Transfer, pieces: list[bytes]) -> None:
        self._transfer = transfer
        self._pieces = deque([memoryview(each) for each in pieces if each])
        self.size = self._left = sum(map(len, pieces))

    @property
    def is_over(self) -> bool:
        """Return whether the last frame was made."""
        return not self._left

    def next(self, channel: int, frame_bytes_max: int) -> list[bytes | memoryview]:
        """Return the next frame, in pieces."""
        size = min(self._left, frame_bytes_max - FRAME_HEAD_BYTES - TRANSFER_BYTES_MAX)
        self._left -= size
        transfer = self._transfer
        transfer.more = self._left > 0
        self._transfer = Transfer(handle=transfer.handle, settled=transfer.settled)
        head = write_composite(transfer)
        frame: list[bytes | memoryview] = [head_of(channel, len(head) + size) + head]
        while size:
            piece = self._pieces.popleft()
            if len(piece) > size:
                self._pieces.appendleft(piece[size:])
                piece = piece[:size]
            frame.append(piece)
            size -= len(piece)
        return frame
