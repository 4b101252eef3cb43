"""The bytes of messages between the members of a set. Pure: bytes in, messages out.

    | length of the rest u32 | CRC-32 of the rest u32 | type u8 | content |

The content is JSON in UTF-8, with a key for each field; only BYTES and PIECE have a head of fixed fields, and the
unchanged bytes of the journal. All numbers are big-endian.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from typing import Final

from tandemmq.broker.replication.fields import (
    FILE_MAX,
    NUMBER_MAX,
    REASON_CHARACTERS_MAX,
    FieldError,
    as_json,
    checks_of,
    parse_object,
)
from tandemmq.broker.replication.messages import CODES, KINDS, Bytes, Hello, Message, Piece, name_of

FRAME_BYTES_MAX: Final = 4 << 20
# Limit of the buffer for a peer that has not proved that it knows the token.
HANDSHAKE_BYTES_MAX: Final = 16 << 10
# An incomplete frame of at least this size has a separate buffer, and its data stays there.
LONG_FRAME_BYTES_MIN: Final = 64 << 10

_PREFIX: Final = struct.Struct(">II")
_TYPE_BYTES: Final = 1
# epoch (PIECE: id), file, offset, end, length
_BYTES_HEAD: Final = struct.Struct(">QIQQQ")
DATA_BYTES_MAX: Final = FRAME_BYTES_MAX - _TYPE_BYTES - _BYTES_HEAD.size


class FrameError(Exception):
    """A peer sent an invalid frame; the message shows why. The stream cannot be used from there on."""


#: Values of keys that an older version does not send.
_DEFAULTS: Final = {"acknowledged": [0, 0]}
_CHECKS: Final = {kind: checks_of(kind) for kind in CODES if not issubclass(kind, Bytes | Piece)}


# ---- messages to bytes


def encode(message: Message) -> bytes:
    """Return the whole frame."""
    head, data = encode_parts(message)
    return head + data if data else head


def encode_parts(message: Message) -> tuple[bytes, bytes | bytearray | memoryview]:
    """Return the frame in two parts, to be sent one after the other; the second is the data of BYTES or PIECE, not a
    copy.

    The first part of a BYTES, with the checksum, is encoded once for all members.
    """
    if isinstance(message, Bytes | Piece):
        return message.head or _encode_head(message), message.data
    kind = type(message)
    content = {key: getattr(message, key) for key in _CHECKS[kind]}
    if "reason" in content:  # it may hold an error text of the operating system, and a path
        content["reason"] = content["reason"][:REASON_CHARACTERS_MAX]
    body = b"%c%b" % (CODES[kind][0], _encode_json(content).encode())
    assert len(body) <= FRAME_BYTES_MAX, f"{name_of(message)} of {len(body)} bytes"
    return _PREFIX.pack(len(body), zlib.crc32(body)) + body, b""


def content_of(hello: Hello) -> bytes:
    """Return the content of a HELLO, byte by byte as it was or will be sent: the proofs of both sides cover it."""
    return hello.as_sent if hello.as_sent is not None else encode(hello)[_PREFIX.size + _TYPE_BYTES :]


def _encode_head(message: Bytes | Piece) -> bytes:
    data = message.data
    assert len(data) <= DATA_BYTES_MAX, f"{name_of(message)} with {len(data)}"
    first = message.epoch if isinstance(message, Bytes) else message.id
    fields = (first, message.file, message.offset, message.end, message.length)
    covered = b"%c%b" % (CODES[type(message)][0], _BYTES_HEAD.pack(*fields))
    checksum = zlib.crc32(data, zlib.crc32(covered))
    head = _PREFIX.pack(len(covered) + len(data), checksum) + covered
    object.__setattr__(message, "head", head)
    return head


_encode_json: Final = json.JSONEncoder(default=as_json, separators=(",", ":")).encode


# ---- bytes to messages


class FrameReader:
    """Reads bytes in pieces of any size, and returns the messages in them.

    It holds at most one incomplete frame (``bytes_max``, which may be raised after the handshake), and bytes that were
    fed and not taken. The rest of a long frame may be received into ``place``: then its bytes are not copied. After a
    FrameError every call raises that error.
    """

    __slots__ = ("_at", "_buffer", "_have", "_long", "_need", "_parts", "_wrong", "bytes_max")

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._buffer = b""
        self._at = 0
        self._parts: list[bytes] = []  # after the buffer; joined to it when all needed bytes are there
        self._long: memoryview | None = None  # an incomplete frame; ``_have`` bytes of it are there
        self._have = 0
        self._need = _PREFIX.size
        self._wrong: FrameError | None = None

    def feed(self, data: bytes) -> None:
        """Add bytes, if there is no ``place`` or it is not used."""
        if self._wrong is not None:
            return
        if self._long is not None:
            part = memoryview(data)[: self._need - self._have]
            self._long[self._have : self._have + len(part)] = part
            data = data[len(part) :]
            self._have += len(part)
        if data:
            self._parts.append(data)
            self._have += len(data)

    @property
    def place(self) -> memoryview | None:
        """Buffer for the rest of a long frame: receive the next bytes into it, then call ``filled``. Valid when
        ``next_message`` has returned all messages."""
        return None if self._long is None else self._long[self._have :]

    def filled(self, count: int) -> None:
        """Note that ``count`` bytes were put into ``place``."""
        self._have += count

    @property
    def is_between_frames(self) -> bool:
        """Return whether no byte of a next frame is there: the peer may end the stream here."""
        return not self._have

    def next_message(self) -> Message | None:
        """Return the next message, or None if it is not complete yet. Raises FrameError."""
        if self._wrong is not None:
            raise self._wrong
        try:
            return self._next()
        except FrameError as error:
            self._wrong = error
            self._buffer = b""
            self._parts.clear()
            self._long = None
            raise

    def _next(self) -> Message | None:
        if self._have < self._need:
            return None
        if self._need == _PREFIX.size:
            self._gather()
            length: int = _PREFIX.unpack_from(self._buffer, self._at)[0]
            if not _TYPE_BYTES <= length <= self.bytes_max:
                raise FrameError(f"a frame of {length} bytes; from 1 to {self.bytes_max} are allowed here")
            self._need += length
            if self._have < self._need:
                if self._need >= LONG_FRAME_BYTES_MIN:
                    self._begin_long()
                return None
        long, self._long = self._long, None
        if long is None:
            self._gather()
            frame = memoryview(self._buffer)[self._at : self._at + self._need]
            self._at += self._need
        else:
            frame = long
        self._have -= self._need
        self._need = _PREFIX.size
        return decode(frame, is_own=long is not None)

    def _begin_long(self) -> None:
        """Move all bytes that are there into a buffer of this one frame."""
        frame = memoryview(bytearray(self._need))
        at = 0
        for part in (memoryview(self._buffer)[self._at :], *(memoryview(each) for each in self._parts)):
            frame[at : at + len(part)] = part
            at += len(part)
        self._buffer, self._at = b"", 0
        self._parts.clear()
        self._long = frame

    def _gather(self) -> None:
        """Join the needed bytes in the buffer."""
        if len(self._buffer) - self._at >= self._need:
            return
        if self._at < len(self._buffer):
            self._parts.insert(0, self._buffer[self._at :])
        self._buffer = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._at = 0
        self._parts.clear()


def decode(frame: memoryview | bytes, *, is_own: bool = False) -> Message:
    """Decode one whole frame. ``is_own``: its buffer is not used elsewhere, so data need not be copied. Raises
    FrameError."""
    view = memoryview(frame)
    length, checksum = _PREFIX.unpack_from(view)
    body = view[_PREFIX.size :]
    assert len(body) == length, "the frame is whole"
    if zlib.crc32(body) != checksum:
        raise FrameError(f"the checksum of a frame of {length} bytes is wrong")
    kind = KINDS.get(body[0])
    if kind is None:
        raise FrameError(f"a message of type {body[0]}, which is unknown")
    if issubclass(kind, Bytes | Piece):
        return _decode_bytes(body, kind, is_own)
    name = CODES[kind][1]
    content = body[_TYPE_BYTES:]
    key = ""
    try:
        given = parse_object(content)
        values = {}
        for key, check in _CHECKS[kind].items():
            values[key] = check(given[key] if key in given else _DEFAULTS[key])
    except KeyError:
        raise FrameError(f"{name} without {key}") from None
    except FieldError as error:
        raise FrameError(f"{name}: {key}{': ' if key else ''}{error}") from None
    if kind is Hello:
        values["as_sent"] = bytes(content)
    build: Callable[..., Message] = kind
    return build(**values)


def _decode_bytes(body: memoryview, kind: type[Bytes] | type[Piece], is_own: bool) -> Bytes | Piece:
    begin = _TYPE_BYTES + _BYTES_HEAD.size
    name = CODES[kind][1]
    if len(body) < begin:
        raise FrameError(f"{name} of {len(body)} bytes, less than its head")
    first, file, offset, end, length = _BYTES_HEAD.unpack_from(body, _TYPE_BYTES)
    if max(first, offset, end, length) > NUMBER_MAX or file > FILE_MAX:
        raise FrameError(f"{name} of epoch {first}, file {file}, offset {offset}, end {end}, length {length}")
    data = body[begin:]
    return kind(first, file, offset, end, length, data if is_own else bytes(data))
