"""The frames of the load, built and read in bulk. Pure.

A body contains its producer, number and time, and is then padded to the requested size:

    | producer, 4 digits | blank | sequence, 10 digits | blank | microseconds, 16 digits | x ... |

No body holds a NUL, so a stream of MESSAGE frames may be split at NULs: the driver reads only queues that it
filled itself. Header values are given back as they came, still escaped, so that an ``ack`` id of any broker
is right without knowing its alphabet.
"""

import re
from collections.abc import Sequence

BODY_SIZE_MIN = 40
SEQUENCE_START = 5
STAMP_START = 16
STAMP_END = 32

_receipts = re.compile(rb"receipt-id:(\d+)").findall


class SendStream:
    """SEND frames of one producer to one destination."""

    __slots__ = ("_filler", "_head", "_middle")

    def __init__(self, destination: str, producer: int, body_bytes: int, *, is_persistent: bool) -> None:
        if body_bytes < BODY_SIZE_MIN:
            raise ValueError(f"a body has at least {BODY_SIZE_MIN} bytes, not {body_bytes}")
        persistent = b"persistent:true\n" if is_persistent else b""
        self._head = b"SEND\ndestination:%b\n%bcontent-length:%d\nreceipt:" % (
            destination.encode(),
            persistent,
            body_bytes,
        )
        self._middle = b"\n\n%04d " % producer
        self._filler = b"x" * (body_bytes - STAMP_END) + b"\0"

    def frames(self, first: int, count: int, stamp_microseconds: int) -> bytes:
        """Return the frames ``first`` to ``first + count - 1``, receipts numbered alike, all stamped with one time."""
        head, middle = self._head, self._middle
        tail = b" %016d" % stamp_microseconds + self._filler
        numbers = [b"%010d" % number for number in range(first, first + count)]
        return b"%b%b%b" % (head, (tail + head).join([number + middle + number for number in numbers]), tail)


class TransactedStream:
    """SEND frames as of SendStream, in transactions of ``batch`` messages: only COMMIT requests a receipt, with the
    number of the last message before it."""

    __slots__ = ("_batch", "_filler", "_head")

    def __init__(self, destination: str, producer: int, body_bytes: int, batch: int) -> None:
        head = b"SEND\ndestination:%b\npersistent:true\ntransaction:t\ncontent-length:%d\n\n%04d "
        self._head = head % (destination.encode(), body_bytes, producer)
        self._filler = b"x" * (body_bytes - STAMP_END) + b"\0"
        self._batch = batch

    def frames(self, first: int, count: int, stamp_microseconds: int) -> bytes:
        """Return the frames ``first`` to ``first + count - 1``; the last transaction may be shorter."""
        tail = b" %016d" % stamp_microseconds + self._filler
        parts = []
        for begin in range(first, first + count, self._batch):
            end = min(begin + self._batch, first + count)
            parts.append(b"BEGIN\ntransaction:t\n\n\0")
            parts += [b"%b%010d%b" % (self._head, number, tail) for number in range(begin, end)]
            parts.append(b"COMMIT\ntransaction:t\nreceipt:%010d\n\n\0" % (end - 1))
        return b"".join(parts)


def read_receipts(data: bytes) -> list[int]:
    """Return the numbers of the RECEIPT frames; the caller compares their count with the NULs."""
    return list(map(int, _receipts(data)))


class Acknowledgement:
    """Acknowledgements in one version of STOMP: the header that names the message, and the ACK frames for it.

    STOMP 1.2, ACK: ``id`` repeats the ``ack`` header. STOMP 1.1, ACK: ``message-id`` and ``subscription``.
    """

    __slots__ = ("_between", "_end", "_start", "header")

    def __init__(self, version: str, subscription: str) -> None:
        if version == "1.2":
            self.header = b"\nack:"
            self._start = b"ACK\nid:"
        else:
            self.header = b"\nmessage-id:"
            self._start = b"ACK\nsubscription:%b\nmessage-id:" % subscription.encode()
        self._end = b"\n\n\0"
        self._between = self._end + self._start

    def frames(self, identities: Sequence[bytes]) -> bytes:
        """Return one ACK frame for each identity."""
        return self._start + self._between.join(identities) + self._end if identities else b""


def message_identities(frames: Sequence[bytes], header: bytes) -> list[bytes]:
    """Return the value of ``header`` in each MESSAGE frame, raw. ValueError at the first frame without it."""
    length = len(header)
    identities: list[bytes] = []
    add = identities.append
    for frame in frames:
        start = frame.index(header) + length
        add(frame[start : frame.index(b"\n", start)])
    return identities


def sent_microseconds(frame: bytes) -> int:
    """Return the time when the message was sent, on the clock of the machine that sent it."""
    start = frame.index(b"\n\n") + 2
    return int(frame[start + STAMP_START : start + STAMP_END])


def producer_and_sequence(frame: bytes) -> tuple[int, int]:
    """Return the producer of a message, and its number among the messages of that producer."""
    start = frame.index(b"\n\n") + 2
    return int(frame[start : start + 4]), int(frame[start + SEQUENCE_START : start + SEQUENCE_START + 10])


class OrderCheck:
    """Checks that each producer's messages come out once, and in the order sent.

    All is well if ``seen`` is the number of sent messages and both other counts are 0.
    """

    __slots__ = ("_next", "late", "seen", "skipped")

    def __init__(self, seen: int = 0, skipped: int = 0, late: int = 0) -> None:
        self._next: dict[int, int] = {}
        self.seen = seen
        self.skipped = skipped
        self.late = late

    def add(self, frames: Sequence[bytes]) -> None:
        """Check MESSAGE frames, in the order in which they came."""
        expected_of = self._next
        for frame in frames:
            producer, sequence = producer_and_sequence(frame)
            expected = expected_of.get(producer, 0)
            if sequence == expected:
                expected_of[producer] = expected + 1
            elif sequence < expected:  # seen before, or overtaken by a later one
                self.late += 1
            else:
                self.skipped += sequence - expected
                expected_of[producer] = sequence + 1
        self.seen += len(frames)


def header_of(frame: bytes, name: bytes) -> bytes | None:
    """Return the first value of a header (STOMP 1.2, Repeated Header Entries), raw; None if absent."""
    head = frame.partition(b"\n\n")[0]
    for line in head.split(b"\n"):
        key, colon, value = line.partition(b":")
        if colon and key == name:
            return value
    return None


def command_frame(command: str, headers: Sequence[tuple[str, str]]) -> bytes:
    """Return a frame without a body."""
    return "".join((command, "\n", *(f"{name}:{value}\n" for name, value in headers), "\n\0")).encode()
