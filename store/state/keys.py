"""Codec of the keys and values in the index. Pure.

    | key                                             | value                                                   |
    | 'A' chunk u32                                   | a piece of the producer audit                           |
    | 'C' chunk u32                                   | a piece of the JSON list of connection ids' users       |
    | 'E' owner u32                                   | as 'O', for an ended owner that still has entries       |
    | 'F' file u32, chunk u16                         | live bytes u64, pinned file u32 ...                     |
    | 'G' chunk u32                                   | a piece of the JSON of missing files: given up, passed  |
    | 'H' file u32, owner u32                         | live u64, bytes u64: the owner's messages in the file   |
    | 'I' owner u32, producer, 00, sequence u64       | order key (12 bytes)                                    |
    | 'L' file u32, owner u32, order key (12 bytes)   | 01: this message is in this file, not in its key's file |
    | 'M' owner u32, order key (12 bytes)             | size u32, flags u8, [location u64 if not 0],            |
    |                                                 | [user u32 if bit 5 of the flags is set], message id     |
    | 'O' owner u32                                   | JSON: the owner, its number of messages and bytes       |
    | 'P' owner u32, rank u8, order key (12 bytes)    | 01: this message has this rank                          |
    | 'R' owner u32                                   | file u32: messages from its start on have a rank        |
    | 'S' owner u32, location u64                     | 01: a later record of a durable subscription            |
    | 'U' chunk u32                                   | a piece of the JSON list of users' stored bytes         |
    | 'X' chunk u32                                   | a piece of the JSON list of open transactions           |

An order key is the place where a message took effect: file u32, offset u32, number of the operation in its commit u32.
The highest bit of a size is set if another owner counts the record's bytes: several subscriptions of a topic share a
record. Flags: bit 0: the location is stored, because it differs from the order key; bits 1 to 4: 1 + rank, if the
message has a rank; bit 5: the number of the user that is charged for the record follows (store.state.user_bytes). With
a rank or a user, the location is always stored.

A rank is 9 - priority, so that the highest priority comes first. As long as all messages of an owner have the default
priority, no message has a rank. After the first message with another priority, all messages in later journal files have
a rank; in earlier files, only messages with another priority have one.

A message id is split at its last ':' into producer and sequence, so that the ids of one producer are adjacent and in
the order of their numbers. An id without such a number, or with a producer of more than PRODUCER_BYTES_MAX bytes, is
stored by its hash.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tandemmq.store.records.acknowledgements import SubscriptionInfo
from tandemmq.store.records.commands import DEFAULT_PRIORITY
from tandemmq.store.records.message import Destination, DestinationKind

PRODUCER_BYTES_MAX: Final = 400
# Lists are stored in chunks of this size. The limit of a value is a quarter of a page: 2,048 bytes of 8,192.
CHUNK_BYTES: Final = 1600

AUDIT: Final = b"A"
CONNECTIONS: Final = b"C"
ENDED: Final = b"E"
FILE: Final = b"F"
GONE: Final = b"G"
HOLDER: Final = b"H"
ID: Final = b"I"
DISPLACED: Final = b"L"
MESSAGE: Final = b"M"
OWNER: Final = b"O"
RANK: Final = b"P"
RANKED: Final = b"R"
LATER_RECORD: Final = b"S"
USERS: Final = b"U"
TRANSACTIONS: Final = b"X"

# Set in a stored size: another owner of the same record counts its bytes.
SHARED: Final = 1 << 31
SIZE_MASK: Final = SHARED - 1
# In memory, the bits of a size from here on are the number of the user that is charged for the record; 0: no user.
MARK_SHIFT: Final = 32

PRIORITY_MAX: Final = 9
DEFAULT_RANK: Final = PRIORITY_MAX - DEFAULT_PRIORITY
RANKS: Final = PRIORITY_MAX + 1

_MOVED: Final = 1
_RANK_SHIFT: Final = 1
_RANK_BITS: Final = 15
_MARKED: Final = 1 << 5

_NUMBERED: Final = struct.Struct(">cI")
_FILE: Final = struct.Struct(">cIH")
_HOLDER: Final = struct.Struct(">cII")
_LATER_RECORD: Final = struct.Struct(">cIQ")
_LIVE: Final = struct.Struct(">Q")
_HELD: Final = struct.Struct(">QQ")
_RANK: Final = struct.Struct(">cIB")
_SIZE_FLAGS: Final = struct.Struct(">IB")
_U64: Final = struct.Struct(">Q")
_U32: Final = struct.Struct(">I")


class Entry(NamedTuple):
    """Stored message: ``location`` of its newest record, ``size`` of that record in bytes, message id.

    Inside the state the size also has marks in its upper bits (``SHARED``, ``MARK_SHIFT``)."""

    location: int
    size: int
    message_id: str


class Terms(NamedTuple):
    """Terms of a durable subscription: the content of its journal record without its name."""

    selector: str | None
    no_local: bool | None  # None: unknown, see SubscriptionInfo
    # Pattern of the topics to which the client subscribed; there is a record for each topic. None: one topic.
    pattern: str | None = None
    # User of the subscription; None: no user is stored.
    user: str | None = None


def terms_of(destination: Destination, info: SubscriptionInfo, user: str | None) -> Terms:
    """Return the terms in the record ``info`` of a subscription of the topic ``destination`` and of ``user``."""
    subscribed = info.subscribed_destination or destination
    return Terms(info.selector, info.no_local, None if subscribed == destination else subscribed.name, user)


class OwnerRecord(NamedTuple):
    """Queue or durable subscription in the index."""

    destination: Destination
    client_id: str | None
    subscription_name: str | None
    record_location: int  # of the oldest needed record of the subscription; 0 for a queue
    messages: int
    bytes: int
    latest_record: int = 0  # location of its newest record; 0: it is at ``record_location``
    # None for a queue. For a subscription, None means that its newest record must be read: the terms are too long for
    # the index, or an earlier version wrote the index.
    terms: Terms | None = None


_TERMS_AT: Final[int] = OwnerRecord._fields.index("terms") - 1  # after kind and name, which are one field


def message_key(owner: int, order_key: int) -> bytes:
    return b"M" + owner.to_bytes(4, "big") + order_key.to_bytes(12, "big")


def numbered(kind: bytes, number: int) -> bytes:
    """Return the key of an owner's or file's entry of this kind, or the prefix of the keys of its entries."""
    return _NUMBERED.pack(kind, number)


def order_in(key: bytes) -> int:
    """Return the order key in the key of a message, a rank or a displaced message."""
    return int.from_bytes(key[-12:], "big")


def message_value(order_key: int, entry: tuple[int, int, str], rank: int | None = None) -> bytes:
    location, size, message_id = entry
    if size >> MARK_SHIFT:
        flags = _MARKED | _MOVED if rank is None else _MARKED | (rank + 1) << _RANK_SHIFT | _MOVED
        head = _SIZE_FLAGS.pack(size & 0xFFFFFFFF, flags) + location.to_bytes(8, "big")
        return head + (size >> MARK_SHIFT).to_bytes(4, "big") + message_id.encode()
    if rank is not None:
        flags = (rank + 1) << 1 | _MOVED
        return _SIZE_FLAGS.pack(size, flags) + location.to_bytes(8, "big") + message_id.encode()
    if order_key >> 32 == location:
        return size.to_bytes(4, "big") + b"\0" + message_id.encode()
    return size.to_bytes(4, "big") + b"\1" + location.to_bytes(8, "big") + message_id.encode()


def entry_of(order_key: int, value: bytes) -> Entry:
    size, flags = _SIZE_FLAGS.unpack_from(value)
    if flags & _MARKED:
        marked = size | _U32.unpack_from(value, 13)[0] << MARK_SHIFT
        return Entry(_U64.unpack_from(value, 5)[0], marked, value[17:].decode())
    if flags:
        return Entry(_U64.unpack_from(value, 5)[0], size, value[13:].decode())
    return Entry(order_key >> 32, size, value[5:].decode())


def rank_in(value: bytes) -> int | None:
    """Return the rank in the value of a message, or None."""
    rank = value[4] >> _RANK_SHIFT & _RANK_BITS
    return rank - 1 if rank else None


def rank_of(priority: int) -> int:
    """Return the rank of a priority; 0 is delivered first. As in ActiveMQ, priorities are limited to 0 to 9."""
    return PRIORITY_MAX - min(max(priority, 0), PRIORITY_MAX)


def rank_key(owner: int, rank: int, order_key: int) -> bytes:
    return _RANK.pack(RANK, owner, rank) + order_key.to_bytes(12, "big")


def ranked_value(file: int) -> bytes:
    return _U32.pack(file)


def ranked_of(key: bytes, value: bytes) -> tuple[int, int]:
    """Return (owner, file) of a RANKED entry."""
    return _NUMBERED.unpack(key)[1], _U32.unpack(value)[0]


def producer_key(owner: int, message_id: str) -> tuple[bytes, int | None]:
    """Return (prefix of the keys of all ids of the producer, sequence). If the sequence is None, the first value is the
    whole key, with a hash of the id."""
    producer, colon, sequence = message_id.rpartition(":")
    if colon and sequence.isdecimal() and sequence.isascii() and (len(sequence) == 1 or sequence[0] != "0"):
        text = producer.encode()
        number = int(sequence)
        if len(text) <= PRODUCER_BYTES_MAX and number < 1 << 64 and b"\0" not in text:
            return b"I" + owner.to_bytes(4, "big") + text + b"\0", number
    digest = hashlib.blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=32).digest()
    return b"I" + owner.to_bytes(4, "big") + b"\0" + digest, None


def id_keys(owner: int, message_ids: Iterable[str]) -> Iterator[bytes]:
    """Yield ``id_key`` of many ids. It is fast for ids of few producers, as in a checkpoint."""
    prefixes: dict[str, bytes] = {}
    for message_id in message_ids:
        producer, _, sequence = message_id.rpartition(":")
        prefix = prefixes.get(producer)
        if prefix is not None and sequence.isdecimal() and sequence.isascii() and sequence[0] != "0":
            number = int(sequence)
            if number < 1 << 64:
                yield prefix + number.to_bytes(8, "big")
                continue
        key = id_key(owner, message_id)
        if key[5] != 0:  # not a hash: the prefix is the same for all ids of this producer
            prefixes[producer] = key[:-8]
        yield key


def id_key(owner: int, message_id: str) -> bytes:
    prefix, sequence = producer_key(owner, message_id)
    return prefix if sequence is None else prefix + sequence.to_bytes(8, "big")


def file_values(file: int, live_bytes: int, pins: Iterable[int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, value) of the entries of one journal file, in key order."""
    packed = b"".join(_U32.pack(pin) for pin in sorted(pins))
    pieces = [packed[n : n + CHUNK_BYTES] for n in range(0, len(packed), CHUNK_BYTES)] or [b""]
    for chunk, piece in enumerate(pieces):
        yield _FILE.pack(FILE, file, chunk), _LIVE.pack(live_bytes) + piece


def file_of_entry(key: bytes, value: bytes) -> tuple[int, int, list[int]]:
    """Return (file, live bytes, pins) of one entry of a file."""
    _, file, _ = _FILE.unpack(key)
    return file, _LIVE.unpack_from(value)[0], [pin for (pin,) in _U32.iter_unpack(value[_LIVE.size :])]


def holder_key(file: int, owner: int) -> bytes:
    return _HOLDER.pack(HOLDER, file, owner)


def holder_value(count: int, size: int) -> bytes:
    return _HELD.pack(count, size)


def holder_of(key: bytes, value: bytes) -> tuple[int, int, int, int]:
    """Return (file, owner, count, bytes) of a HOLDER entry."""
    _, file, owner = _HOLDER.unpack(key)
    return file, owner, *_HELD.unpack(value)


def holder_owner(key: bytes) -> int:
    return int(_HOLDER.unpack(key)[2])


def displaced_prefix(file: int, owner: int) -> bytes:
    return _HOLDER.pack(DISPLACED, file, owner)


def displaced_key(file: int, owner: int, order_key: int) -> bytes:
    return _HOLDER.pack(DISPLACED, file, owner) + order_key.to_bytes(12, "big")


def owner_value(record: OwnerRecord) -> bytes:
    value = _json(record)
    if record.terms is not None and len(value) > CHUNK_BYTES:
        return _json(record._replace(terms=None))
    return value


# Made once, because a checkpoint may encode tens of thousands of records.
_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _json(record: OwnerRecord) -> bytes:
    kind, name = record.destination
    # Empty fields that older versions do not have are omitted, so that these versions can read the record.
    fields: list[object] = list(record[1:-1])
    if record.terms is not None:
        fields.append(record.terms if record.terms.user is not None else record.terms[:-1])
    return _encode_json([int(kind), name, *fields]).encode("utf-8", "surrogatepass")


def owner_of(key: bytes, value: bytes) -> tuple[int, OwnerRecord]:
    kind, name, *rest = json.loads(value.decode("utf-8", "surrogatepass"))
    if len(rest) > _TERMS_AT and rest[_TERMS_AT] is not None:
        rest[_TERMS_AT] = Terms(*rest[_TERMS_AT])
    return _NUMBERED.unpack(key)[1], OwnerRecord(Destination(DestinationKind(kind), name), *rest)


def later_record_key(owner: int, location: int) -> bytes:
    return _LATER_RECORD.pack(LATER_RECORD, owner, location)


def later_record_of(key: bytes) -> tuple[int, int]:
    """Return (owner, location) of the key of a LATER_RECORD."""
    _, owner, location = _LATER_RECORD.unpack(key)
    return owner, location


def chunk_key(kind: bytes, chunk: int) -> bytes:
    return kind + _U32.pack(chunk)
