"""The promise file: the identity of this store, and which epoch it promised to which candidate. A promise is never
withdrawn.

    replication.promise   | slot 0, 4096 | slot 1, 4096 |

    slot  | TMQPROM1 8 | CRC-32 of the rest u32 | sequence u64 | length u32 | JSON | zeros |

All numbers are big-endian. The valid slot with the higher sequence counts. A change writes both slots, each synced
before the next. So after the change either slot alone holds it, and at each moment one slot is whole and synced. The
file has its full length from the start: a full disk stops no promise.

After a failed write or sync nothing more is written: the content of the disk is unknown. Opening the file writes
both slots again, so that the promise in use is on the disk, not only in the kernel's memory. A slot that is not whole
is written first. If both are whole and differ, a change was interrupted: the newer slot may be in the kernel's memory
alone, the older one is on the disk. So the newer one is written first; until it is synced the older one is not touched.
"""

# proofs: promise

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any, Final

from tandemmq.broker.replication.fields import (
    ID_BYTES,
    FieldError,
    Identity,
    NodeName,
    Number,
    as_json,
    checks_of,
    identity,
    mapping,
    number,
    parse_object,
    text,
)
from tandemmq.broker.replication.quorum import Founding
from tandemmq.disk import Disk, has_name, open_regular, read_fully, sync_directory, write_fully
from tandemmq.store.membership import PROMISE_FILE

MAGIC: Final = b"TMQPROM1"
SLOT_BYTES: Final = 4096
SLOT_COUNT: Final = 2
_CHECKSUM: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">QI")  # sequence, length of the JSON
_CHECKED_AT: Final = len(MAGIC) + _CHECKSUM.size
_JSON_AT: Final = _CHECKED_AT + _HEAD.size
JSON_BYTES_MAX: Final = SLOT_BYTES - _JSON_AT
# A life is the number of the start, and this many random bits.
DRAWN_BITS: Final = 32
# Number of other stores whose life is remembered; the store seen longest ago is forgotten first.
LIVES_MAX: Final = 20


class PromiseFileInUse(Exception):
    """Another process runs in this directory."""


class PromiseUnknown(Exception):
    """A slot is whole, but this version cannot read its content. To start anyway would forget a promise."""


class PromiseTooLong(Exception):
    """The promise does not fit into a slot; nothing was written."""


class PromiseLost(Exception):
    """A write or sync failed before: the content of the disk is unknown. The file must be opened again."""


def _lives(value: Any) -> dict[str, int]:
    return {identity(store): number(life) for store, life in mapping(value).items()}


def _boot(value: Any) -> str:
    """Check the id of a boot of the host; "" if it is unknown."""
    return "" if value == "" else text(value)


Lives = Annotated[Mapping[str, int], _lives]
Boot = Annotated[str, _boot]


@dataclass(frozen=True, slots=True)
class Promise:
    """Content of a slot."""

    set: Identity | None  # None until the journal of this node has a header of a set
    store: Identity
    node: NodeName  # its display name now; it decides nothing
    life: Number  # of this store: see ``next_life``
    epoch: Number  # promised: no older master is followed, no older candidate is elected with this store's vote
    candidate: Identity | None  # holder of the promise; None: the node that leads the epoch
    founding: Founding | None  # of the set that this store promised to found
    lives: Lives  # the highest seen of other stores
    boot: Boot = ""  # of the host, when this store ran last
    is_whole: bool = True  # False: its journal lacks something that it once had, and it promises nothing
    is_met: bool = False  # True: another member may have seen this life
    was: NodeName | None = None  # the name before ``node``; None: it had no other

    def saw(self, store: str, life: int) -> Promise:
        """Return the promise with the life of another store that was heard of now; unchanged if there is nothing to
        remember."""
        if self.lives.get(store, 0) >= life:
            return self
        lives = {other: known for other, known in self.lives.items() if other != store} | {store: life}
        return replace(self, lives=dict(list(lives.items())[-LIVES_MAX:]))


def next_life(life: int, drawn: bytes) -> int:
    """Return the life of the next start: the next number, and other bits. A directory restored from a backup continues
    from an older number: its next life has a number that others have seen, but other bits."""
    return (start_of(life) + 1) << DRAWN_BITS | int.from_bytes(drawn, "big")


def start_of(life: int) -> int:
    """Return the number of the start."""
    return life >> DRAWN_BITS


def is_older(life: int, seen: int) -> bool:
    """Return whether ``life`` is another life than ``seen``, and not a later one."""
    return life != seen and start_of(life) <= start_of(seen)  # prove: another-life-of-that-number " <= " -> " < "


class Origin(Enum):
    """Source of the promise of a start. With NEW and UNREADABLE the store has a new id: it is not a voter of any
    set."""

    READ = "the promise file"
    RENAMED = "the promise file, in which the node has another name"
    NEW = "a new promise file"
    UNREADABLE = "a new promise, as no slot of the file could be read"


class PromiseFile:
    """The promise file of a directory, open and locked until ``close``. One thread uses it.

    The lock is flock(2): a lock of fcntl(2) would be lost as soon as this process closed another descriptor of the
    file. It locks a file, not a name. A file that lost its name (`replication leave`, a restored backup) keeps no other
    process away, so nothing is promised in it. Opening raises PromiseFileInUse, PromiseUnknown, or the disk's OSError.
    """

    def __init__(self, directory: str, node: str, disk: Disk | None = None) -> None:
        self._disk: Any = disk if disk is not None else os
        self._node = node
        self.path = os.path.join(directory, PROMISE_FILE)
        self._fd = open_regular(self._disk, self.path, os.O_RDWR | os.O_CREAT)
        self._is_lost = False
        try:
            self._lock()
            promise, self.origin = self._read()
            self._put(promise)
            sync_directory(self._disk, directory)
        except BaseException:
            self._disk.close(self._fd)
            raise

    @property
    def promise(self) -> Promise:
        """Promise as it is on the disk."""
        return self._promise

    def write(self, promise: Promise) -> None:
        """Write the promise to both slots; durable on return. Raises PromiseTooLong, PromiseLost, or OSError. After an
        error either the new or the former promise is on the disk, and no request may be answered."""
        former = self._promise
        assert (promise.store, promise.node, promise.life) == (former.store, former.node, former.life), "one life"
        assert promise.epoch >= former.epoch, "a promise is not taken back"  # prove: epoch-never-falls
        is_granted_again = promise.candidate == former.candidate
        assert promise.epoch > former.epoch or is_granted_again, "once an epoch"  # prove: one-candidate-an-epoch
        if self._is_lost:  # prove: nothing-after-a-failed-write
            raise PromiseLost(f"{self.path} could not be written before")
        self._put(promise)

    @property
    def is_lost(self) -> bool:
        """Return whether a write or sync failed: the file must be opened again."""
        return self._is_lost

    def open_again(self) -> None:
        """Open the file again after a failed write or sync, as another start would: the content read counts, and both
        slots are written again. This is another life of the same store. Raises PromiseLost if the file cannot be read
        any more, or OSError; then it is still lost."""
        promise, origin = self._read()
        if origin not in (Origin.READ, Origin.RENAMED):
            raise PromiseLost(f"{self.path} cannot be read any more")
        self._put(promise)

    def close(self) -> None:
        """Close the file and release the lock."""
        self._disk.close(self._fd)

    def _lock(self) -> None:
        try:
            getattr(self._disk, "flock", fcntl.flock)(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise PromiseFileInUse(f"another process runs in {os.path.dirname(self.path)}") from error
            raise
        # prove: locked-promise-has-its-name "not has_name(self._disk, self._fd, self.path)" -> "False"
        if not has_name(self._disk, self._fd, self.path):
            raise PromiseFileInUse(f"{self.path} was replaced or renamed while it was opened")

    def _read(self) -> tuple[Promise, Origin]:
        data = read_fully(self._disk, self._fd, SLOT_BYTES * SLOT_COUNT, 0)
        found, newest = _slots(data)
        slot = found[newest]
        self._sequence = 0 if slot is None else slot[0]
        self._first = newest  # prove: synced-slot-comes-last "newest" -> "1 - newest"
        if None in found:
            self._first = found.index(None)  # prove: whole-slot-comes-last
        node = self._node
        # prove: a-promise-outlives-a-name "slot is None" -> "slot is None or slot[1].node != node"
        if slot is None:
            new = Promise(None, self._disk.urandom(ID_BYTES).hex(), node, self._next(0), 0, None, None, {})
            return new, Origin.UNREADABLE if any(data) else Origin.NEW
        origin, promise = Origin.READ, slot[1]
        if promise.node != node:
            # The directory identifies the store, whatever its host is called: its promises hold.
            origin, promise = Origin.RENAMED, replace(promise, node=node, was=promise.node)
        if promise.is_met:  # prove: an-unmet-life-goes-on "promise.is_met" -> "True"
            # Otherwise a refused, restored directory would only have to be started often enough.
            promise = replace(promise, life=self._next(promise.life), is_met=False)  # prove: a-start-is-a-life
        return promise, origin

    def _next(self, life: int) -> int:
        return next_life(life, self._disk.urandom(DRAWN_BITS // 8))

    def _put(self, promise: Promise) -> None:
        promise = _that_fits(promise)
        self._is_lost = True
        for slot in (self._first, 1 - self._first):  # prove: a-promise-is-synced-first order a-promise-is-said
            self._sequence += 1
            write_fully(self._disk, self._fd, encode_slot(promise, self._sequence), slot * SLOT_BYTES)
            self._disk.fsync(self._fd)  # prove: each-slot-is-synced
        # prove: promise-is-in-the-file-of-that-name "not has_name(self._disk, self._fd, self.path)" -> "False"
        if not has_name(self._disk, self._fd, self.path):
            raise OSError(errno.ESTALE, "another file has its name", self.path)
        # Set only now: other threads send it to other members, and a sync that hangs may fail.
        self._promise = promise  # prove: a-promise-is-said
        self._is_lost = False


def _that_fits(promise: Promise) -> Promise:
    """Return the promise without its former name if the slot has no space for it. Raises PromiseTooLong."""
    try:
        encode_slot(promise, 0)
    except PromiseTooLong:
        promise = replace(promise, was=None)
        encode_slot(promise, 0)
    return promise


def encode_slot(promise: Promise, sequence: int) -> bytes:
    """Encode one slot. Raises PromiseTooLong."""
    values = {key: getattr(promise, key) for key in _CHECKS}
    content = json.dumps(values, default=as_json, ensure_ascii=False, separators=(",", ":")).encode()
    if len(content) > JSON_BYTES_MAX:
        raise PromiseTooLong(f"a promise of {len(content)} bytes; {JSON_BYTES_MAX} fit into a slot")
    checked = (_HEAD.pack(sequence, len(content)) + content).ljust(SLOT_BYTES - _CHECKED_AT, b"\0")
    slot = MAGIC + _CHECKSUM.pack(zlib.crc32(checked)) + checked
    assert decode_slot(slot) == (sequence, promise), "a written slot can be decoded"
    return slot


def decode_slot(data: bytes) -> tuple[int, Promise] | None:
    """Return the sequence and the content of a slot. None: it is not whole. Raises PromiseUnknown."""
    if len(data) != SLOT_BYTES or not data.startswith(MAGIC):
        return None
    checked = data[_CHECKED_AT:]
    if _CHECKSUM.unpack_from(data, len(MAGIC))[0] != zlib.crc32(checked):  # prove: slot-checksum
        return None
    sequence, length = _HEAD.unpack_from(data, _CHECKED_AT)
    key = ""
    try:
        given = {
            "was": None,
            **parse_object(data[_JSON_AT : _JSON_AT + length]),
        }  # absent in promises of older versions
        values = {}
        for key, check in _CHECKS.items():
            values[key] = check(given[key])
    except KeyError:
        raise PromiseUnknown(f"a promise without {key}") from None
    except FieldError as error:
        raise PromiseUnknown(f"a promise whose {key or 'JSON'} cannot be read: {error}") from None
    return sequence, Promise(**values)


def newest_slot(data: bytes) -> tuple[int, Promise] | None:
    """Return the sequence and the content of the slot that counts in the content of a promise file. None: no slot is
    whole. Raises PromiseUnknown."""
    found, newest = _slots(data)
    return found[newest]


def _slots(data: bytes) -> tuple[list[tuple[int, Promise] | None], int]:
    """Return both slots, and the number of the one that counts."""
    found = [decode_slot(data[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
    sequences = [-1 if slot is None else slot[0] for slot in found]
    return found, sequences.index(max(sequences))  # prove: newest-slot-counts "max" -> "min"


_CHECKS: Final = checks_of(Promise)
