"""Messages between the members of a set, and their bytes. Pure: bytes in, messages out.

    | length of what follows the CRC u32 | CRC-32 of what follows u32 | type u8 | content |

The content is JSON in UTF-8, with a key for each field; only BYTES has a head of fixed fields, and the unchanged bytes
of the journal. All numbers are big-endian. docs/formats/replication.md defines the meaning and the effect of each
message.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from tandemmq.broker.replication.fields import (
    FILE_MAX,
    NUMBER_MAX,
    REASON_CHARACTERS_MAX,
    Ascending,
    FieldError,
    FileNumber,
    Identity,
    NodeName,
    Number,
    Reason,
    Signed,
    Text,
    checks_of,
    founding_as_json,
    hex_of,
    parse_object,
)
from tandemmq.broker.replication.quorum import Founding, Position

PROTOCOL: Final = 1
FRAME_BYTES_MAX: Final = 4 << 20
# Limit of the buffer for a peer that has not proved that it knows the token.
HANDSHAKE_BYTES_MAX: Final = 16 << 10
# An incomplete frame of at least this size has a buffer of its own, and its data stays there.
LONG_FRAME_BYTES_MIN: Final = 64 << 10
NONCE_BYTES: Final = 32
HMAC_BYTES: Final = 32
CHALLENGE_TYPE: Final = 4

_PREFIX: Final = struct.Struct(">II")
_TYPE_BYTES: Final = 1
# epoch (PIECE: id), file, offset, end, length
_BYTES_HEAD: Final = struct.Struct(">QIQQQ")
DATA_BYTES_MAX: Final = FRAME_BYTES_MAX - _TYPE_BYTES - _BYTES_HEAD.size


class FrameError(Exception):
    """A peer sent an invalid frame; the message says why. The stream cannot be used from there on."""


Nonce = Annotated[str, hex_of(NONCE_BYTES)]


@dataclass(frozen=True, slots=True)
class Hello:
    """Identity of the sender, and a number drawn for this connection alone. ``as_sent``: the content of the frame, if
    it was read."""

    protocol: Number = field(default=PROTOCOL, kw_only=True)
    broker: Text
    set: Identity | None
    node: NodeName
    store: Identity
    life: Number
    address: Text
    nonce: Nonce
    as_sent: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Proof:
    hmac: Annotated[str, hex_of(HMAC_BYTES)]


@dataclass(frozen=True, slots=True)
class Refused:
    """Refusal; the link ends."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Challenge:
    """A number drawn for this connection alone, before any name is sent."""

    nonce: Nonce


@dataclass(frozen=True, slots=True)
class Would:
    """Question whether the receiver would promise. Nothing is written."""

    id: Number
    set: Identity
    epoch: Number
    position: Position
    weight: Signed


@dataclass(frozen=True, slots=True)
class WouldAnswer:
    """Answer to WOULD. ``epoch``: the highest number that the sender knows of promises, epochs and files."""

    id: Number
    yes: bool
    reason: Reason
    epoch: Number
    position: Position
    weight: Signed


@dataclass(frozen=True, slots=True)
class Promise:
    """Request to promise this epoch to the sender, and for ``milliseconds`` no epoch to another node. ``founding``: of
    a set to be founded, which has no ``set`` yet."""

    id: Number
    set: Identity | None
    epoch: Number
    position: Position
    founding: Founding | None
    milliseconds: Number


@dataclass(frozen=True, slots=True)
class PromiseAnswer:
    """Answer to PROMISE. ``promised``: the epoch in the promise file of the sender."""

    id: Number
    epoch: Number
    granted: bool
    reason: Reason
    promised: Number


@dataclass(frozen=True, slots=True)
class Follow:
    """Question whether the receiver is the master, and request to begin from this lineage. ``files``: those of the
    sender."""

    id: Number
    epoch: Number  # the promised one
    set: Identity | None
    lineage: Ascending
    files: tuple[FileNumber, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """Answer of the master of this epoch. ``follow``: the FOLLOW that this answers; ``common``: place up to which both
    journals are the same; ``files``: those that the receiver may keep; ``needed``: those that it must have;
    ``lacking``: those of them that the master sends, by the files in FOLLOW; ``end``: place up to which the master has
    written. ``wants_disk``: the master waits for the receiver's syncs. ``acknowledged``: place up to which the
    receiver's store reported on former links that its disk has all."""

    follow: Number
    epoch: Number
    set: Identity
    common: tuple[FileNumber, Number]
    files: tuple[FileNumber, ...]
    needed: tuple[FileNumber, ...]
    lacking: tuple[FileNumber, ...]
    end: tuple[FileNumber, Number]
    final: tuple[FileNumber, Number]
    wants_disk: bool
    acknowledged: tuple[FileNumber, Number] = (0, 0)


@dataclass(frozen=True, slots=True)
class NotLeading:
    epoch: Number  # the promised one


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes of a journal file that is ``length`` long. ``end``: where the next batch begins if one ends here, else
    0."""

    epoch: int
    file: int
    offset: int
    end: int
    length: int
    data: bytes | bytearray | memoryview
    # Bytes before the data, encoded once for all links. Two threads may encode them at once, with the same result.
    _head: bytes | None = field(default=None, init=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Sealed:
    """Notice that the whole file was sent."""

    epoch: Number
    file: FileNumber
    end: Number


@dataclass(frozen=True, slots=True)
class Skipped:
    """Notice that the file was given up meanwhile."""

    epoch: Number
    file: FileNumber


@dataclass(frozen=True, slots=True)
class FinalUpTo:
    """Place up to which the journal is final."""

    epoch: Number
    file: FileNumber
    end: Number


@dataclass(frozen=True, slots=True)
class Alive:
    """Heartbeat of the master. A node that answers promises nothing to another node for ``milliseconds``."""

    epoch: Number
    number: Number
    milliseconds: Number


@dataclass(frozen=True, slots=True)
class AliveAnswer:
    epoch: Number
    number: Number


@dataclass(frozen=True, slots=True)
class Have:
    """Notice that the sender has everything of the master's files up to there. ``free``: free bytes of its volume."""

    epoch: Number
    file: FileNumber
    end: Number
    on: Literal["memory", "disk"]
    free: Number


@dataclass(frozen=True, slots=True)
class Resign:
    """Notice that the sender no longer leads, and that a node should stand at once. ``to``: the node meant."""

    epoch: Number
    to: Identity | None


@dataclass(frozen=True, slots=True)
class Fetch:
    """Request for the batch that begins there: the sender's is damaged. ``lineage``: of the sender's journal."""

    id: Number
    set: Identity
    lineage: Ascending
    file: FileNumber
    offset: Number


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of the batch that FETCH ``id`` requested. ``end``: as in BYTES; ``length``: of the whole batch, 0: the
    sender has no sound one."""

    id: int
    file: int
    offset: int
    end: int
    length: int
    data: bytes | bytearray | memoryview
    _head: bytes | None = field(default=None, init=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Status:
    """Request for the receiver's status."""


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    status: Mapping[str, Any]

    def __hash__(self) -> int:
        return hash(json.dumps(self.status, sort_keys=True))


Message = (
    Hello
    | Proof
    | Refused
    | Challenge
    | Would
    | WouldAnswer
    | Promise
    | PromiseAnswer
    | Follow
    | Begin
    | NotLeading
    | Bytes
    | Sealed
    | Skipped
    | FinalUpTo
    | Alive
    | AliveAnswer
    | Have
    | Resign
    | Fetch
    | Piece
    | Status
    | StatusAnswer
)

_BYTES: Final = 23
_PIECE: Final = 32
# Type and name on the wire. The keys are the fields. Other keys are ignored: a later version may send more.
_TABLE: Final[tuple[tuple[int, str, type[Message]], ...]] = (
    (1, "HELLO", Hello),
    (2, "PROOF", Proof),
    (3, "REFUSED", Refused),
    (CHALLENGE_TYPE, "CHALLENGE", Challenge),
    (10, "WOULD", Would),
    (11, "WOULD_ANSWER", WouldAnswer),
    (12, "PROMISE", Promise),
    (13, "PROMISE_ANSWER", PromiseAnswer),
    (20, "FOLLOW", Follow),
    (21, "BEGIN", Begin),
    (22, "NOT_LEADING", NotLeading),
    (_BYTES, "BYTES", Bytes),
    (24, "SEALED", Sealed),
    (25, "SKIPPED", Skipped),
    (26, "FINAL", FinalUpTo),
    (27, "ALIVE", Alive),
    (28, "ALIVE_ANSWER", AliveAnswer),
    (29, "HAVE", Have),
    (30, "RESIGN", Resign),
    (31, "FETCH", Fetch),
    (_PIECE, "PIECE", Piece),
    (40, "STATUS", Status),
    (41, "STATUS_ANSWER", StatusAnswer),
)
#: Types with a head of fixed fields before the bytes of the journal.
_WITH_DATA: Final[dict[int, type[Bytes] | type[Piece]]] = {_BYTES: Bytes, _PIECE: Piece}
#: Values of keys that an older version does not send.
_UNSAID: Final = {"acknowledged": [0, 0]}
_BY_TYPE: Final = {code: (name, kind) for code, name, kind in _TABLE}
_BY_CLASS: Final = {kind: (code, name) for code, name, kind in _TABLE}
_CHECKS: Final = {kind: checks_of(kind) for code, _, kind in _TABLE if code not in _WITH_DATA}


def name_of(message: Message) -> str:
    """Return the name of the message in the protocol's table, for logs."""
    return _BY_CLASS[type(message)][1]


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
        return message._head or _encode_head(message), message.data
    kind = type(message)
    content = {key: getattr(message, key) for key in _CHECKS[kind]}
    if "reason" in content:  # it may hold an error text of the operating system, and a path
        content["reason"] = content["reason"][:REASON_CHARACTERS_MAX]
    body = b"%c%b" % (_BY_CLASS[kind][0], _encode_json(content).encode())
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
    covered = b"%c%b" % (_BY_CLASS[type(message)][0], _BYTES_HEAD.pack(*fields))
    checksum = zlib.crc32(data, zlib.crc32(covered))
    head = _PREFIX.pack(len(covered) + len(data), checksum) + covered
    object.__setattr__(message, "_head", head)
    return head


def _as_json(value: object) -> Mapping[str, Any]:
    if isinstance(value, Founding):
        return founding_as_json(value)
    raise AssertionError(f"{type(value).__name__} has no place in a message")


_encode_json: Final = json.JSONEncoder(default=_as_json, separators=(",", ":")).encode


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
    code = body[0]
    if code not in _BY_TYPE:
        raise FrameError(f"a message of type {code}, which is unknown")
    if code in _WITH_DATA:
        return _decode_bytes(body, _WITH_DATA[code], is_own)
    name, kind = _BY_TYPE[code]
    content = body[_TYPE_BYTES:]
    key = ""
    try:
        said = parse_object(content)
        values = {}
        for key, check in _CHECKS[kind].items():
            values[key] = check(said[key] if key in said else _UNSAID[key])
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
    name = _BY_CLASS[kind][1]
    if len(body) < begin:
        raise FrameError(f"{name} of {len(body)} bytes, less than its head")
    first, file, offset, end, length = _BYTES_HEAD.unpack_from(body, _TYPE_BYTES)
    if max(first, offset, end, length) > NUMBER_MAX or file > FILE_MAX:
        raise FrameError(f"{name} of epoch {first}, file {file}, offset {offset}, end {end}, length {length}")
    data = body[begin:]
    return kind(first, file, offset, end, length, data if is_own else bytes(data))
