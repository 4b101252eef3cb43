"""Output of a session as messages of a WebSocket. Pure.

STOMP: each frame is one message, as ActiveMQ's are, for clients that know no others; of text if it is UTF-8. MQTT:
output of one turn is one message (MQTT 5, 6.0: packets need not be aligned with them); AMQP likewise.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Final

from tandemmq.broker.protocols.websocket.frames import BINARY, TEXT, head

Parts = Sequence[bytes | memoryview]
Cut = Callable[[Parts], list[bytes | memoryview]]
# A longer body that is not ASCII is sent as binary without a check: that takes a millisecond a megabyte.
TEXT_BYTES_MAX: Final = 8 << 20
# Bytes that are checked at once, without a copy of the whole.
_SLICE_BYTES: Final = 256 * 1024


def binary_messages(parts: Parts) -> list[bytes | memoryview]:
    """Return one message of all output."""
    return [head(BINARY, sum(map(len, parts))), *parts]


def stomp_messages(parts: Parts) -> list[bytes | memoryview]:
    """Return a message for each frame and each heart-beat of a STOMP session's output, which are whole: the session
    says how long each body is, unless it has no NUL and is in one piece with its head."""
    made: list[bytes | memoryview] = []
    left = list(reversed(parts))
    while left:
        part = left.pop()
        data = part if isinstance(part, bytes) else bytes(part)
        is_ascii = data.isascii()
        size, start = len(data), 0
        while start < size:
            if data[start] == _LF:
                made += (_HEART_BEAT_HEAD, b"\n")
                start += 1
                continue
            body = data.index(b"\n\n", start) + 2
            length = data.find(_CONTENT_LENGTH, start, body)
            if length >= 0:
                end = body + int(data[length + len(_CONTENT_LENGTH) : data.index(b"\n", length + 1, body)])
            else:
                end = data.index(b"\0", body)
            count = end + _END_BYTES - start
            frame: list[bytes | memoryview] = [data if count == size else data[start : start + count]]
            rest = count - (size - start)
            start += count
            while rest > 0:  # a long body is a part of its own, and so is the end after it
                frame.append(left.pop())
                rest -= len(frame[-1])
            assert not rest or start <= size, "the pieces of a frame end with it"
            made.append(head(TEXT if is_text(frame, is_ascii=is_ascii) else BINARY, count))
            made += frame
    return made


_LF: Final = ord("\n")
_HEART_BEAT_HEAD: Final = head(TEXT, 1)
_CONTENT_LENGTH: Final = b"\ncontent-length:"
_END_BYTES: Final = len(b"\0\n")


def is_text(frame: Parts, *, is_ascii: bool) -> bool:
    """Return whether ``frame`` is UTF-8; ``is_ascii``: its first part is known to be ASCII."""
    if is_ascii and len(frame) == 1:
        return True
    checks_all = sum(map(len, frame)) <= TEXT_BYTES_MAX
    decoder = codecs.getincrementaldecoder("utf-8" if checks_all else "ascii")()
    try:
        for part in frame:
            for start in range(0, len(part), _SLICE_BYTES):
                decoder.decode(part[start : start + _SLICE_BYTES])
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        return False
    return True
