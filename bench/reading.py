"""Reading of STOMP frames for a while, which bench.cores runs once, and twice at once."""

from __future__ import annotations

import time

from tandemmq.broker.protocols.stomp.frames import FrameParser, Limits

FRAMES = 200
BODY_BYTES = 1024


def frames() -> bytes:
    """Return SEND frames like the driver's."""
    head = b"SEND\ndestination:/queue/bench.%d\npersistent:true\ncontent-length:%d\nreceipt:%010d\n\n"
    return b"".join(head % (number % 4, BODY_BYTES, number) + b"x" * BODY_BYTES + b"\0" for number in range(FRAMES))


def read(seconds: float, start: float = 0.0) -> int:
    """Read for this time, from ``start`` on by ``time.monotonic``. Return the number of frames."""
    data = frames()
    count = 0
    time.sleep(max(0.0, start - time.monotonic()))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        parser = FrameParser(Limits())
        parser.feed(data)
        while parser.next_frame() is not None:
            count += 1
    return count
