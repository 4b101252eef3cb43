"""Frames of a delivery to a client. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.frames import FRAME_HEAD_BYTES, head_of

# A transfer performative has fewer bytes than this.
TRANSFER_BYTES_MAX: Final = 64


class Frames:
    """Makes the frames of a delivery one by one, without copying the message. ``size``: bytes of the message, which is
    in memory until the last frame is made."""

    __slots__ = ("_left", "_pieces", "_transfer", "size")

    def __init__(self, transfer: schema.Transfer, pieces: list[bytes]) -> None:
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
        self._transfer = schema.Transfer(handle=transfer.handle, settled=transfer.settled)
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
