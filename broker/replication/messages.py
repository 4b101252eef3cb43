"""Messages between the members of a set: the type, the name and the fields of each, with their permitted values.

docs/formats/replication.md defines the meaning and the effect of each message; ``frames`` has their bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeVar, dataclass_transform

from tandemmq.broker.replication.fields import (
    Ascending,
    FileNumber,
    Identity,
    NodeName,
    Number,
    Reason,
    Signed,
    Text,
    hex_of,
)
from tandemmq.broker.replication.quorum import Founding, Position

PROTOCOL: Final = 1
NONCE_BYTES: Final = 32
HMAC_BYTES: Final = 32
CHALLENGE_TYPE: Final = 4

Nonce = Annotated[str, hex_of(NONCE_BYTES)]


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all messages. The keys on the wire are the fields. Other keys are ignored: a later version may send
    more."""


M = TypeVar("M", bound=Message)

#: Classes of messages, by the type on the wire; the type and the name in the protocol's table, by class.
KINDS: Final[dict[int, type[Message]]] = {}
CODES: Final[dict[type[Message], tuple[int, str]]] = {}


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def message(code: int, name: str) -> Callable[[type[M]], type[M]]:
    """Return a decorator that makes a class a frozen dataclass, and enters it under its type and name."""

    def enter(fields: type[M]) -> type[M]:
        assert code not in KINDS, "a type on the wire has one message"
        kind = dataclass(frozen=True, slots=True)(fields)
        KINDS[code], CODES[kind] = kind, (code, name)
        return kind

    return enter


def name_of(message: Message) -> str:
    """Return the name of the message in the protocol's table, for logs."""
    return CODES[type(message)][1]


@message(1, "HELLO")
class Hello(Message):
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


@message(2, "PROOF")
class Proof(Message):
    hmac: Annotated[str, hex_of(HMAC_BYTES)]


@message(3, "REFUSED")
class Refused(Message):
    """Refusal; the link ends."""

    reason: Reason


@message(CHALLENGE_TYPE, "CHALLENGE")
class Challenge(Message):
    """A number drawn for this connection alone, before any name is sent."""

    nonce: Nonce


@message(10, "PRE_VOTE")
class PreVote(Message):
    """Request of a pre-vote: would the receiver promise? Nothing is written."""

    id: Number
    set: Identity
    epoch: Number
    position: Position
    weight: Signed


@message(11, "PRE_VOTE_ANSWER")
class PreVoteAnswer(Message):
    """Answer to PRE_VOTE. ``epoch``: the highest number that the sender knows of promises, epochs and files."""

    id: Number
    yes: bool
    reason: Reason
    epoch: Number
    position: Position
    weight: Signed


@message(12, "PROMISE")
class Promise(Message):
    """Request to promise this epoch to the sender, and for ``milliseconds`` no epoch to another node. ``founding``: of
    a set to be founded, which has no ``set`` yet."""

    id: Number
    set: Identity | None
    epoch: Number
    position: Position
    founding: Founding | None
    milliseconds: Number


@message(13, "PROMISE_ANSWER")
class PromiseAnswer(Message):
    """Answer to PROMISE. ``promised``: the epoch in the promise file of the sender."""

    id: Number
    epoch: Number
    granted: bool
    reason: Reason
    promised: Number


@message(20, "FOLLOW")
class Follow(Message):
    """Question whether the receiver is the master, and request to begin from this lineage. ``files``: those of the
    sender."""

    id: Number
    epoch: Number  # the promised one
    set: Identity | None
    lineage: Ascending
    files: tuple[FileNumber, ...]


@message(21, "BEGIN")
class Begin(Message):
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


@message(22, "NOT_LEADING")
class NotLeading(Message):
    epoch: Number  # the promised one


@message(23, "BYTES")
class Bytes(Message):
    """Bytes of a journal file that is ``length`` long. ``end``: where the next batch begins if one ends here, else
    0."""

    epoch: int
    file: int
    offset: int
    end: int
    length: int
    data: bytes | bytearray | memoryview
    # Bytes before the data, encoded once for all links. Two threads may encode them at once, with the same result.
    head: bytes | None = field(default=None, init=False, compare=False, repr=False)


@message(24, "SEALED")
class Sealed(Message):
    """Notice that the whole file was sent."""

    epoch: Number
    file: FileNumber
    end: Number


@message(25, "SKIPPED")
class Skipped(Message):
    """Notice that the file was given up meanwhile."""

    epoch: Number
    file: FileNumber


@message(26, "FINAL")
class FinalUpTo(Message):
    """Place up to which the journal is final."""

    epoch: Number
    file: FileNumber
    end: Number


@message(27, "ALIVE")
class Alive(Message):
    """Heartbeat of the master. A node that answers promises nothing to another node for ``milliseconds``."""

    epoch: Number
    number: Number
    milliseconds: Number


@message(28, "ALIVE_ANSWER")
class AliveAnswer(Message):
    epoch: Number
    number: Number


@message(29, "HAVE")
class Have(Message):
    """Notice that the sender has everything of the master's files up to there. ``free``: free bytes of its volume."""

    epoch: Number
    file: FileNumber
    end: Number
    on: Literal["memory", "disk"]
    free: Number


@message(30, "RESIGN")
class Resign(Message):
    """Notice that the sender no longer leads, and that a node should be a candidate at once. ``to``: that node."""

    epoch: Number
    to: Identity | None


@message(31, "FETCH")
class Fetch(Message):
    """Request for the batch that begins there: the sender's is damaged. ``lineage``: of the sender's journal."""

    id: Number
    set: Identity
    lineage: Ascending
    file: FileNumber
    offset: Number


@message(32, "PIECE")
class Piece(Message):
    """Part of the batch that FETCH ``id`` requested. ``end``: as in BYTES; ``length``: of the whole batch, 0: the
    sender has no sound one."""

    id: int
    file: int
    offset: int
    end: int
    length: int
    data: bytes | bytearray | memoryview
    head: bytes | None = field(default=None, init=False, compare=False, repr=False)


@message(40, "STATUS")
class Status(Message):
    """Request for the receiver's status."""


@message(41, "STATUS_ANSWER")
class StatusAnswer(Message):
    status: Mapping[str, Any]

    def __hash__(self) -> int:
        return hash(json.dumps(self.status, sort_keys=True))
