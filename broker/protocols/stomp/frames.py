"""STOMP frames: bytes in, frames out; header blocks out again. Pure.

    frame = command EOL *(header EOL) EOL *octet NUL *EOL          (STOMP 1.2, Augmented BNF)

Promises: however the bytes were cut on their way, the same frames come out; no byte is searched twice, and
the part of an unfinished frame that is kept stays under the limits. Differences of the versions stand in three
values of :class:`Dialect`, nowhere else. Gets the commands whose body may hold a NUL, and knows no others, and none
of the states a connection may be in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Sized
from typing import Final, NamedTuple, cast

from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.protocols.stomp.destinations import write_destination
from tandemmq.store.records.message import Destination
from tandemmq.store.records.remembered import remember

try:
    from tandemmq.broker.protocols.stomp import native
except ImportError:  # not compiled
    native = None  # type: ignore[assignment]

LF: Final = 0x0A
CR: Final = 0x0D


class Limits(NamedTuple):
    """Limits of what a peer may send (ActiveMQ's StompWireFormat, and its maxDataLength for the frame)."""

    command_bytes_max: int = 1024
    header_line_bytes_max: int = 10 * 1024
    headers_max: int = 1000
    # ActiveMQ has no limit for all headers together: 10 MiB of them take the parser 40 ms.
    head_bytes_max: int = 1024 * 1024
    frame_bytes_max: int = 100 * 1024 * 1024


class Dialect:
    """Rules of one version for lines and escapes.

    ``drops_cr``: a CR right before LF belongs to the line's end. STOMP 1.2 says so; ActiveMQ does it in 1.0 too,
    and so for every CONNECT, which is read before the version is known. In 1.1 it belongs to the value.
    ``trims``: blanks around a value do not count (ActiveMQ in 1.0).
    """

    __slots__ = ("_destinations", "_escapes", "_producers", "_undoes", "_unescapes", "drops_cr", "trims", "version")

    def __init__(self, version: str, escapes: dict[str, str], *, drops_cr: bool, trims: bool) -> None:
        self.version = version
        self.drops_cr = drops_cr
        self.trims = trims
        # Backslash first, for other escapes contain it. A chain of replacements: a third of translate's time.
        self._escapes = tuple((escapes | {"\0": " "} | ({} if "\n" in escapes else {"\n": " ", "\r": " "})).items())
        self._unescapes = {escape: character for character, escape in escapes.items()}
        # Likewise: an escaped backslash is a NUL until nothing else is escaped.
        self._undoes = tuple((escape, "\0" if escape == "\\\\" else each) for escape, each in self._unescapes.items())
        self._destinations: dict[Destination, str] = {}
        self._producers: dict[str, str] = {}

    @property
    def has_escapes(self) -> bool:
        return bool(self._unescapes)

    def may_name(self, name: str) -> bool:
        """Return whether a header may have that name. Without escapes it would end at a colon, and ``JMSXUserID:admin``
        of another client would be read as the header JMSXUserID; and where blanks do not count none may surround it."""
        return self.has_escapes or (":" not in name and "\n" not in name and name == name.strip())

    def escape(self, text: str) -> str:
        """Return ``text`` as it may stand in a header name or value.

        Characters that a version cannot express (NUL in any, line ends in 1.0) become a blank: no client may add
        headers or end a frame by a value.
        """
        for character, escape in self._escapes:
            text = text.replace(character, escape)
        return text

    def destination(self, value: Destination) -> str:
        """Return ``write_destination``, escaped; keep it for the next time."""
        text = self._destinations.get(value)
        if text is None:
            text = self.escape(write_destination(value))
            remember(self._destinations, value, text, len(text))
        return text

    def message_id(self, value: str) -> str:
        """Return ``value``, escaped; keep what precedes its number for the next one."""
        producer, _, number = value.rpartition(":")
        if not producer or not number.isdecimal():
            return self.escape(value)
        text = self._producers.get(producer)
        if text is None:
            text = self.escape(value[: -len(number)])
            remember(self._producers, producer, text, len(text))
        return text + number

    def unescape(self, text: str) -> str:
        """Undo the escapes of ``text``, which has no NUL. STOMP 1.1 and 1.2, Value Encoding: undefined escape sequences
        are a fatal protocol error."""
        if "\\" not in text:
            return text
        plain = text
        for escape, character in self._undoes:
            plain = plain.replace(escape, character)
        if "\\" in plain:
            undefined = next(found[0] for found in _ESCAPE.finditer(text) if found[0] not in self._unescapes)
            raise ClientError(
                f"Undefined escape sequence {undefined!r} in a header",
                f"STOMP {self.version} knows only {', '.join(self._unescapes)} in header names and values.",
            )
        return plain.replace("\0", "\\")


_LINE_ENDS: Final = re.compile(rb"[\r\n]*")
_ESCAPE: Final = re.compile(r"\\.?", re.DOTALL)

V10: Final = Dialect("1.0", {}, drops_cr=True, trims=True)
# Of CONNECT: read before it is known whether blanks count, so they are kept.
CONNECTING: Final = Dialect("1.0", {}, drops_cr=True, trims=False)
V11: Final = Dialect("1.1", {"\\": "\\\\", "\n": "\\n", ":": "\\c"}, drops_cr=False, trims=False)
V12: Final = Dialect("1.2", {"\\": "\\\\", "\n": "\\n", ":": "\\c", "\r": "\\r"}, drops_cr=True, trims=False)
# CONNECT and CONNECTED are never escaped (STOMP 1.2, Value Encoding), and read before the version is known.
DIALECTS: Final = {dialect.version: dialect for dialect in (V10, V11, V12)}

Headers = dict[str, str]
Frame = tuple[str, Headers, bytes]
Head = tuple[str, Headers, int]  # and where the body begins
SEND_ALONE: Final = frozenset(("SEND",))
# A frame that is too long is passed over, unless its content-length says that it is longer than this.
PASSED_OVER_BYTES_MAX: Final = 1 << 31


class FrameTooLong(ClientError):
    """Frame beyond the limit, whose head was read. The frame alone is refused, and passed over. ``transaction``: of
    which it was to be a part."""

    def __init__(self, message: str, detail: str, headers: Headers) -> None:
        super().__init__(message, detail, is_fatal=False, kind=ErrorKind.RESOURCE, receipt=headers.get("receipt"))
        self.transaction = headers.get("transaction")


class FrameParser:
    """Cuts what arrives into frames: ``feed`` each piece, then ask for ``next_frame`` until it gives None.

    Both raise a fatal :class:`ClientError` when the peer breaks the grammar or a limit; the parser is of no use
    after that. With ``passes_over`` a frame beyond the limit is a FrameTooLong, and those behind it come out.
    ``dialect`` may be changed between two frames: it counts from the next one on. ``data``: what
    waits, of which ``offset`` bytes were used for frames; empty once all were.
    """

    __slots__ = (
        "_bodied",
        "_left",
        "_line_start",
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
        # An unfinished frame waits in ``partial`` until it has _wanted bytes; or, by the two values below that
        # no length can have, until the end of its head or its NUL is seen.
        self.partial = bytearray()
        self._wanted = 0
        self._left = 0  # bytes to come of a frame that is too long, or _UNTIL_NUL
        self._lines = 0
        self._line_start = 0

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
        searched = len(partial)
        partial += data
        wanted = self._wanted
        if wanted == _UNTIL_NUL:
            is_worth_parsing = b"\0" in data or len(partial) > self.limits.frame_bytes_max
        elif wanted == _UNTIL_HEAD_END:
            is_worth_parsing = self._may_end_head(searched)
        else:
            is_worth_parsing = len(partial) >= wanted
        if is_worth_parsing:
            self.data = bytes(partial)
            self.partial = bytearray()

    def next_frame(self) -> Frame | None:
        """Return the next whole frame as (command, headers, body), or None when more bytes are needed."""
        data = self.data
        start = self.offset
        size = len(data)
        # Any number of EOLs may stand between frames: they are the heart-beats.
        if start < size and (data[start] == LF or data[start] == CR):
            start = cast("re.Match[bytes]", _LINE_ENDS.match(data, start)).end()
        if start == size:
            self.data = b""
            self.offset = 0
            return None
        head: Head | None = None
        if native is not None and not self.dialect.trims:  # nearly all heads, where that was compiled
            head = native.plain_head(data, start, self.limits.command_bytes_max, self.limits.headers_max)
        if head is None:
            head = self._head(data, start)
            if head is None:
                return None
        command, headers, body_start = head
        if command in self._bodied and (length := headers.get("content-length")) is not None:
            body_end = body_start + self._content_length(length, headers)
            if body_end - start > self.limits.frame_bytes_max:
                raise self._pass_over(headers, body_end + 1)
            if body_end >= size:
                self._wait(start, body_end + 1 - start)
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
            if (size if body_end < 0 else body_end) - start > self.limits.frame_bytes_max:
                raise self._pass_over(headers, _UNTIL_NUL if body_end < 0 else body_end + 1)
            if body_end < 0:
                self._wait(start, _UNTIL_NUL)
                return None
        end = body_end + 1
        if end == size:
            self.data = b""
            self.offset = 0
        else:
            self.offset = end
        return command, headers, data[body_start:body_end]

    def _head(self, data: bytes, start: int) -> Head | None:
        """Return the head that begins at ``start``. None: it is not whole, and waits."""
        dialect = self.dialect
        head_end = data.find(b"\n\n", start)
        if head_end >= 0:
            body_start = head_end + 2
            head = data[start:head_end]
            has_cr = b"\r" in head and dialect.drops_cr
            if has_cr and (cr_end := data.find(b"\n\r\n", start, body_start)) >= 0:
                body_start = cr_end + 3
                head = data[start:cr_end]
        elif dialect.drops_cr and (cr_end := data.find(b"\n\r\n", start)) >= 0:
            body_start = cr_end + 3
            head = data[start:cr_end]
            has_cr = True
        else:
            self._wait(start, _UNTIL_HEAD_END)
            return None
        if len(head) > self.limits.command_bytes_max:
            self._check_head(len(head))
            self._check_lengths(head.split(b"\n"), is_start=True)
        try:
            text = head.decode()
        except UnicodeDecodeError:
            raise ClientError("The headers are not UTF-8", "STOMP frames are encoded in UTF-8.") from None
        if "\0" in text:
            raise _no_blank_line()
        lines = text.split("\n")
        command = lines[0]
        if has_cr:
            lines = [line.removesuffix("\r") for line in lines]
            command = lines[0]
        if len(lines) > self.limits.headers_max:
            self._check_count(len(lines))
        try:
            # STOMP 1.2, Repeated Header Entries: the first one counts; so they are entered backwards.
            headers = dict([line.split(":", 1) for line in lines[:0:-1]])
        except ValueError:
            raise self._no_colon(lines) from None
        if "\\" in text and dialect.has_escapes:
            unescape = dialect.unescape
            # Backwards again, for two names may be the same once they are unescaped.
            headers = {unescape(name): unescape(value) for name, value in [line.split(":", 1) for line in lines[:0:-1]]}
        if dialect.trims:
            headers = {name: value.strip() for name, value in headers.items()}
        return command, headers, body_start

    # ---- frames that are too long

    def _pass_over(self, headers: Headers, end: int) -> ClientError:
        """Return the error for the next frame, which is too long, and skip it: it ends before ``end``, or with a NUL
        that has not come (_UNTIL_NUL)."""
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
        """Return the bytes of ``data`` behind a frame that is too long."""
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
        """Keep the frame that begins at ``start`` until there is a reason to parse it again."""
        partial = bytearray(memoryview(self.data)[start:])
        self.data = b""
        self.offset = 0
        self.partial = partial
        self._wanted = wanted
        if wanted == _UNTIL_HEAD_END:
            self._lines = 0
            self._line_start = 0
            self._may_end_head(0)

    def _may_end_head(self, searched: int) -> bool:
        """Return whether the head in the partial frame is whole, of which ``searched`` bytes were searched before.

        Counts its lines on the way: an endless head must not fill the memory before it is parsed.
        """
        partial = self.partial
        for end in (b"\n\n", b"\n\r\n") if self.dialect.drops_cr else (b"\n\n",):
            if partial.find(end, max(0, searched - len(end) + 1)) >= 0:
                return True
        if partial.find(b"\0", searched) >= 0:
            raise _no_blank_line()
        last_line_end = partial.rfind(b"\n", searched)
        if last_line_end >= 0:
            lines = partial[self._line_start : last_line_end].split(b"\n")
            self._check_lengths(lines, is_start=self._lines == 0)
            self._lines += len(lines)
            self._line_start = last_line_end + 1
            self._check_count(self._lines)
            self._check_head(last_line_end)
        self._check_lengths([memoryview(partial)[self._line_start :]], is_start=self._lines == 0)
        return False

    # ---- limits and mistakes

    def _check_lengths(self, lines: Sequence[Sized], *, is_start: bool) -> None:
        limits = self.limits
        if is_start and len(lines[0]) > limits.command_bytes_max:
            raise ClientError(
                "The maximum command length was exceeded",
                f"The first line of a frame may have {limits.command_bytes_max} bytes at most. Is this a STOMP client?",
            )
        if max(map(len, lines)) > limits.header_line_bytes_max:
            raise ClientError(
                "The maximum header length was exceeded",
                f"A header line may have {limits.header_line_bytes_max} bytes at most (name, colon and value).",
            )

    def _check_head(self, size: int) -> None:
        if size > self.limits.head_bytes_max:
            raise ClientError(
                "The maximum length of the headers was exceeded",
                f"All headers of a frame together may have {self.limits.head_bytes_max} bytes at most.",
            )

    def _check_count(self, lines: int) -> None:
        if lines > self.limits.headers_max + 1:
            raise ClientError(
                "The maximum number of headers was exceeded",
                f"A frame may have {self.limits.headers_max} headers at most.",
            )

    def _content_length(self, text: str, headers: Headers) -> int:
        if not (text.isascii() and text.isdigit()):
            raise ClientError(
                f"Not a content-length: {text[:40]!r}",
                "It is the body's number of bytes, in digits.",
                receipt=headers.get("receipt"),
            )
        # The digits are counted first, for Python refuses to make a number of very many.
        return int(text) if len(text) <= _LENGTH_DIGITS_MAX else 10**_LENGTH_DIGITS_MAX

    def _no_colon(self, lines: list[str]) -> ClientError:
        line = next(line for line in lines[1:] if ":" not in line)
        return ClientError(
            f"A header line without a colon: {line[:80]!r}",
            "Headers are lines of the form name:value; a blank line ends them.",
        )


_UNTIL_HEAD_END: Final = -1
_UNTIL_NUL: Final = -2
_LENGTH_DIGITS_MAX: Final = 18


def _no_blank_line() -> ClientError:
    return ClientError(
        "The frame ended before its headers did",
        "A blank line must stand between the headers and the body, also when there is no body.",
    )


def missing(command: str, header: str) -> ClientError:
    """Return the error for a frame that lacks a header."""
    return ClientError(f"{command} lacks the header {header}", f"{command} must have the header {header}.")
