"""STOMP frames: bytes in, frames out; header blocks out again. Pure.

    frame = command EOL *(header EOL) EOL *octet NUL *EOL          (STOMP 1.2, Augmented BNF)

Promises: the frames do not depend on the pieces in which the bytes arrive; no byte is searched twice, and the part of
an unfinished frame that is kept stays under the limits. The caller names the commands whose body may hold a NUL; this
module knows no other commands, and no state of a connection.
"""

from __future__ import annotations

import re
from sys import getsizeof
from typing import Final, NamedTuple, cast

from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.protocols.stomp.dialects import V10, Dialect

try:
    from tandemmq.broker.protocols.stomp import native
except ImportError:  # not compiled
    native = None  # type: ignore[assignment]

CR: Final = 0x0D


class Limits(NamedTuple):
    """Limits of a peer's input (ActiveMQ's StompWireFormat, and its maxDataLength for the frame)."""

    command_bytes_max: int = 1024
    header_line_bytes_max: int = 10 * 1024
    headers_max: int = 1000
    # ActiveMQ has no limit for all headers together: 10 MiB of them take the parser 40 ms.
    head_bytes_max: int = 1024 * 1024
    frame_bytes_max: int = 100 * 1024 * 1024


_LINE_ENDS: Final = re.compile(rb"[\r\n]*")

Headers = dict[str, str]
Frame = tuple[str, Headers, bytes]
Head = tuple[str, Headers, int]  # and where the body begins
SEND_ALONE: Final = frozenset(("SEND",))
# A frame that is too long is passed over, unless its content-length is larger than this.
PASSED_OVER_BYTES_MAX: Final = 1 << 31
# Part of a longer head that is read in one call: its escapes take 0.2 ms (plain Python). A line is read as a whole.
HEAD_PIECE_BYTES: Final = 16 * 1024
HEAD_PIECE_LINES: Final = 64
# Memory of a header beside its two texts.
HEADER_BYTES: Final = 100


class FrameTooLong(ClientError):
    """Frame beyond the limit, whose head was read. The frame alone is refused, and passed over. ``transaction``: the
    transaction of the frame."""

    def __init__(self, message: str, detail: str, headers: Headers) -> None:
        super().__init__(message, detail, is_fatal=False, kind=ErrorKind.RESOURCE, receipt=headers.get("receipt"))
        self.transaction = headers.get("transaction")


def _is_beyond(limits: Limits, head: bytes) -> bool:
    """Return whether ``head`` breaks a limit of its bytes."""
    lines = head.split(b"\n")
    return (
        len(head) > limits.head_bytes_max
        or len(lines[0]) > limits.command_bytes_max
        or max(map(len, lines)) > limits.header_line_bytes_max
    )


class HeadLines:
    """Head that is read line by line, because it is long, incomplete or has a mistake: each call takes little time.

    ``size``: of the lines taken so far, in bytes; ``held_bytes``: memory that ``headers`` take; ``line_bytes_max``: of
    the next line. Both methods raise a fatal ClientError, which names the mistake.
    """

    __slots__ = (
        "_count",
        "_dialect",
        "_limits",
        "command",
        "headers",
        "held_bytes",
        "is_whole",
        "line_bytes_max",
        "size",
    )

    def __init__(self, dialect: Dialect, limits: Limits) -> None:
        self._dialect = dialect
        self._limits = limits
        self._count = 0
        self.command = ""
        self.headers: Headers = {}
        self.is_whole = False
        self.line_bytes_max = limits.command_bytes_max
        self.size = self.held_bytes = 0

    def take(self, line: bytes) -> None:
        """Take the next line, which is not too long, without its line feed. A blank one completes the head."""
        dialect, limits = self._dialect, self._limits
        if not line or (line == b"\r" and dialect.drops_cr):
            self.size += len(line) + 1
            self.is_whole = True
            # In the order in which a head that is read at once has them.
            self.headers = dict(reversed(self.headers.items()))
            return
        size = self.size + len(line)
        if size > limits.head_bytes_max:
            raise ClientError(
                "The maximum length of the headers was exceeded",
                f"All headers of a frame together may have {limits.head_bytes_max} bytes at most.",
            )
        if self._count > limits.headers_max:
            raise ClientError(
                "The maximum number of headers was exceeded",
                f"A frame may have {limits.headers_max} headers at most.",
            )
        if b"\0" in line:
            raise _no_blank_line()
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise ClientError("The headers are not UTF-8", "STOMP frames are encoded in UTF-8.") from None
        if dialect.drops_cr:
            text = text.removesuffix("\r")
        if self._count == 0:
            self.command = text
            self.line_bytes_max = limits.header_line_bytes_max
        else:
            self._enter(text)
        self._count += 1
        self.size = size + 1

    def _enter(self, line: str) -> None:
        name, colon, value = line.partition(":")
        if not colon:
            raise ClientError(
                f"A header line without a colon: {line[:80]!r}",
                "Headers are lines of the form name:value; a blank line ends them.",
            )
        dialect = self._dialect
        if dialect.has_escapes:
            name = dialect.unescape(name)
            value = dialect.unescape(value)
        if dialect.trims:
            value = value.strip()
        # STOMP 1.2, Repeated Header Entries: the first one counts.
        if name not in self.headers:
            self.headers[name] = value
            self.held_bytes += getsizeof(name) + getsizeof(value) + HEADER_BYTES

    def check_unfinished(self, rest: bytes) -> None:
        """Check the beginning of the next line, the end of which has not come: only as much of it as shows that it is
        too long."""
        limits = self._limits
        if b"\0" in rest:
            raise _no_blank_line()
        if len(rest) <= self.line_bytes_max:
            return
        if self._count == 0:
            raise ClientError(
                "The maximum command length was exceeded",
                f"The first line of a frame may have {limits.command_bytes_max} bytes at most. Is this a STOMP client?",
            )
        raise ClientError(
            "The maximum header length was exceeded",
            f"A header line may have {limits.header_line_bytes_max} bytes at most (name, colon and value).",
        )


def _no_blank_line() -> ClientError:
    return ClientError(
        "The frame ended before its headers did",
        "A blank line must stand between the headers and the body, also when there is no body.",
    )


class FrameParser:
    """Cuts received bytes into frames: ``feed`` each piece, then call ``next_frame`` until it returns None.

    Both raise a fatal :class:`ClientError` when the peer breaks the grammar or a limit; do not use the parser after
    that. With ``passes_over`` a frame beyond the limit is a FrameTooLong, and later frames are returned. ``dialect``
    may be changed between two frames: it applies from the next one on. ``data``: the waiting bytes, of which ``offset``
    were used for frames; empty once all were used.
    """

    __slots__ = (
        "_bodied",
        "_left",
        "_lines",
        "_wanted",
        "data",
        "dialect",
        "limits",
        "offset",
        "partial",
        "passes_over",
    )

    def __init__(self, limits: Limits, bodied: frozenset[str] = SEND_ALONE) -> None:
        # The commands whose body may hold a NUL: SEND at a broker, MESSAGE and ERROR at a client.
        self._bodied = bodied
        self.dialect = V10
        self.limits = limits
        self.passes_over = False
        self.data = b""
        self.offset = 0
        # The unparsed part of an unfinished frame waits in ``partial`` until it has _wanted bytes; or until the end of
        # a header line is seen; or, with _UNTIL_NUL, the frame's NUL.
        self.partial = bytearray()
        self._wanted = 0
        self._left = 0  # bytes to come of a frame that is too long, or _UNTIL_NUL
        self._lines: HeadLines | None = None  # of an incomplete frame

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of memory for an incomplete frame. Read while ``data`` is empty."""
        return len(self.partial) + (0 if self._lines is None else self._lines.held_bytes)

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._left:
            data = self._passed_over(data)
        partial = self.partial
        if not partial:
            # Frames that were not fetched yet come first.
            self.data = self.data[self.offset :] + data if self.data else data
            self.offset = 0
            return
        partial += data
        wanted = self._wanted
        if wanted == _UNTIL_NUL:
            is_worth_parsing = b"\0" in data or len(partial) > self.limits.frame_bytes_max
        else:
            is_in_head = self._lines is not None and not self._lines.is_whole
            is_worth_parsing = len(partial) >= wanted or (is_in_head and (b"\n" in data or b"\0" in data))
        if is_worth_parsing:
            self.data = bytes(partial)
            self.partial = bytearray()

    def next_frame(self) -> Frame | None:
        """Return the next whole frame as (command, headers, body), or None: more bytes are needed if ``data`` is empty;
        if not, a long head is read, and the next call reads its next piece."""
        data = self.data
        start = self.offset
        size = len(data)
        lines = self._lines
        # Any number of EOLs may stand between frames: they are the heart-beats.
        if start < size and data[start] <= CR and lines is None:
            start = cast("re.Match[bytes]", _LINE_ENDS.match(data, start)).end()
        if start == size:
            self.data = b""
            self.offset = 0
            return None
        head: Head | None = None
        if lines is not None:
            head = self._by_lines(lines, data, start)
            if head is None:
                return None
        elif native is not None and not self.dialect.trims:  # nearly all heads, where that was compiled
            head = native.plain_head(data, start, self.limits.command_bytes_max, self.limits.headers_max)
        if head is None:
            head = self._head(data, start)
            if head is None:
                self.offset = start
                self._lines = HeadLines(self.dialect, self.limits)
                return self.next_frame()
        command, headers, body_start = head
        if lines is not None:
            start = body_start - lines.size
        if command in self._bodied and (length := headers.get("content-length")) is not None:
            body_end = body_start + self._content_length(length, headers)
            if body_end - start > self.limits.frame_bytes_max:
                raise self._pass_over(headers, body_end + 1)
            if body_end >= size:
                kept = start if lines is None else body_start
                self._wait(kept, body_end + 1 - kept)
                return None
            if data[body_end] != 0:
                raise ClientError(
                    "The body is not as long as its content-length",
                    f"After {length} bytes of body the frame must end with a NUL byte; leave content-length out"
                    " for bodies without NUL bytes.",
                    receipt=headers.get("receipt"),
                )
        else:
            body_end = data.find(b"\0", body_start)
            if body_end - start > self.limits.frame_bytes_max:
                raise self._pass_over(headers, body_end + 1)
            if body_end < 0:
                if size - start > self.limits.frame_bytes_max:
                    raise self._pass_over(headers, _UNTIL_NUL)
                self._wait(start if lines is None else body_start, _UNTIL_NUL)
                return None
        if lines is not None:
            self._lines = None
        end = body_end + 1
        if end == size:
            self.data = b""
            self.offset = 0
        else:
            self.offset = end
        return command, headers, data[body_start:body_end]

    def _head(self, data: bytes, start: int) -> Head | None:
        """Return the head that begins at ``start``. None: it is long, incomplete or has a mistake; its lines must be
        taken one by one."""
        dialect, limits = self.dialect, self.limits
        stop = start + HEAD_PIECE_BYTES
        head_end = data.find(b"\n\n", start, stop)
        if head_end >= 0:
            body_start = head_end + 2
            head = data[start:head_end]
            has_cr = b"\r" in head and dialect.drops_cr
            if has_cr and (cr_end := data.find(b"\n\r\n", start, body_start)) >= 0:
                body_start = cr_end + 3
                head = data[start:cr_end]
        elif dialect.drops_cr and (cr_end := data.find(b"\n\r\n", start, stop)) >= 0:
            body_start = cr_end + 3
            head = data[start:cr_end]
            has_cr = True
        else:
            return None
        if len(head) > limits.command_bytes_max and _is_beyond(limits, head):
            return None
        try:
            text = head.decode()
            lines = text.split("\n")
            count = len(lines)
            if count > HEAD_PIECE_LINES or count > limits.headers_max or "\0" in text:
                return None
            if has_cr:
                lines = [line.removesuffix("\r") for line in lines]
            # STOMP 1.2, Repeated Header Entries: the first one counts; so they are entered backwards.
            headers = dict([line.split(":", 1) for line in lines[:0:-1]])
        except ValueError:  # not UTF-8, or a line without a colon
            return None
        if "\\" in text and dialect.has_escapes:
            unescape = dialect.unescape
            # Backwards again, because two names may be the same once they are unescaped.
            headers = {unescape(name): unescape(value) for name, value in [line.split(":", 1) for line in lines[:0:-1]]}
        if dialect.trims:
            headers = {name: value.strip() for name, value in headers.items()}
        return lines[0], headers, body_start

    def _by_lines(self, lines: HeadLines, data: bytes, at: int) -> Head | None:
        """Return the head whose lines ``lines`` takes, HEAD_PIECE_BYTES in one call; its next line begins at ``at``.
        None: the head is incomplete."""
        stop = at + HEAD_PIECE_BYTES
        left = HEAD_PIECE_LINES
        while not lines.is_whole:
            if at >= stop or left == 0:
                self.offset = at
                return None
            end = data.find(b"\n", at, at + lines.line_bytes_max + 1)
            if end < 0:
                lines.check_unfinished(data[at : at + lines.line_bytes_max + 1])
                self._wait(at, lines.line_bytes_max + 1)
                return None
            lines.take(data[at:end])
            at = end + 1
            left -= 1
        return lines.command, lines.headers, at

    # ---- frames that are too long

    def _pass_over(self, headers: Headers, end: int) -> ClientError:
        """Return the error for the next frame, which is too long, and skip it: it ends before ``end``, or with a NUL
        that has not come (_UNTIL_NUL)."""
        self._lines = None
        message = "The maximum frame length was exceeded"
        limit = self.limits.frame_bytes_max
        detail = f"A frame may have {limit} bytes at most (wireFormat.maxFrameSize of the connector)."
        if not self.passes_over or end > PASSED_OVER_BYTES_MAX:
            return ClientError(message, detail, receipt=headers.get("receipt"))
        if 0 <= end <= len(self.data):
            self.offset = end
        else:
            self._left = end if end == _UNTIL_NUL else end - len(self.data)
            self.data = b""
            self.offset = 0
        return FrameTooLong(message, detail, headers)

    def _passed_over(self, data: bytes) -> bytes:
        """Return the bytes of ``data`` after a frame that is too long."""
        end = data.find(b"\0") + 1 if self._left == _UNTIL_NUL else min(self._left, len(data))
        if self._left > 0:
            self._left -= end
        elif end:
            self._left = 0
        else:
            return b""
        return data[end:]

    # ---- unfinished frames

    def _wait(self, start: int, wanted: int) -> None:
        """Keep the bytes from ``start`` until there is a reason to parse them (again)."""
        partial = bytearray(memoryview(self.data)[start:])
        self.data = b""
        self.offset = 0
        self.partial = partial
        self._wanted = wanted

    def _content_length(self, text: str, headers: Headers) -> int:
        if not (text.isascii() and text.isdigit()):
            raise ClientError(
                f"Not a content-length: {text[:40]!r}",
                "It is the body's number of bytes, in digits.",
                receipt=headers.get("receipt"),
            )
        # The digits are counted first, because Python refuses to make a number of very many.
        return int(text) if len(text) <= _LENGTH_DIGITS_MAX else 10**_LENGTH_DIGITS_MAX


_UNTIL_NUL: Final = -1  # no length is less than 0
_LENGTH_DIGITS_MAX: Final = 18


def missing(command: str, header: str) -> ClientError:
    """Return the error for a frame that lacks a header."""
    return ClientError(f"{command} lacks the header {header}", f"{command} must have the header {header}.")
