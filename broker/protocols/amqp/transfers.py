"""Frames of a delivery to a client. Pure."""

from __future__ import annotations

from typing import Final

from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.frames import FRAME_HEAD_BYTES, head_of

# The performative of a transfer takes less than this.
TRANSFER_BYTES_MAX: Final = 64


def split(
    channel: int, transfer: schema.Transfer, pieces: list[bytes], frame_bytes_max: int
) -> list[list[bytes | memoryview]]:
    """Return the frames of a delivery, each in pieces. A long message is not copied."""
    size = sum(map(len, pieces))
    head = write_composite(transfer)
    if FRAME_HEAD_BYTES + len(head) + size <= frame_bytes_max:
        return [[head_of(channel, len(head) + size) + head, *pieces]]
    room = frame_bytes_max - FRAME_HEAD_BYTES - TRANSFER_BYTES_MAX
    contents: list[list[bytes | memoryview]] = [[]]
    left = room
    for piece in [memoryview(each) for each in pieces]:
        at = 0
        while at < len(piece):
            if not left:
                contents.append([])
                left = room
            part = piece[at : at + left]
            contents[-1].append(part)
            at += len(part)
            left -= len(part)
    frames: list[list[bytes | memoryview]] = []
    for number, content in enumerate(contents):
        each = transfer if not number else schema.Transfer(handle=transfer.handle, settled=transfer.settled)
        each.more = number < len(contents) - 1
        head = write_composite(each)
        frames.append([head_of(channel, len(head) + sum(map(len, content))) + head, *content])
    return frames
