"""The two Java objects of a KahaDB journal: the producer audit and the ack message file map. Pure.

    audit     ActiveMQMessageAuditNoSync: depth, producers, LRUCache(producer id -> BitArrayBin)
    bin       BitArrayBin: first sequence, LinkedList of (depth + 1) // 64 + 1 BitArrays of 64 bits, or null
    ack map   HashMap(file -> HashSet(files whose records the acknowledgements in it concern))

What Java writes is read to the last byte, and what is written here reads like Java's own (kahadb.md 3.8, 3.9).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from store.audit import AuditImage
from store.kahadb.java_stream import (
    SERIALIZABLE,
    WRITES_ITSELF,
    JavaClass,
    JavaField,
    JavaObject,
    JavaWriter,
    read_object,
)
from store.records.errors import RecordDamaged

ARRAY_BITS = 64
LOAD_FACTOR = 0.75
HASH_BUCKETS = 16  # of a java.util.HashMap or HashSet that nobody sized

_CUSTOM = SERIALIZABLE | WRITES_ITSELF
_HASH_MAP = JavaClass(
    "java.util.HashMap",
    0x0507DAC1C31660D1,
    (JavaField("F", "loadFactor"), JavaField("I", "threshold")),
    flags=_CUSTOM,
)
_LINKED_HASH_MAP = JavaClass(
    "java.util.LinkedHashMap", 0x34C04E5C106CC0FB, (JavaField("Z", "accessOrder"),), parent=_HASH_MAP
)
_LRU_CACHE = JavaClass(
    "org.apache.activemq.util.LRUCache",
    -342098639681884413,
    (JavaField("I", "maxCacheSize"),),
    parent=_LINKED_HASH_MAP,
)
_AUDIT = JavaClass(
    "org.apache.activemq.ActiveMQMessageAuditNoSync",
    1,
    (
        JavaField("I", "auditDepth"),
        JavaField("I", "maximumNumberOfProducersToTrack"),
        JavaField("Lorg/apache/activemq/util/LRUCache;", "map"),
    ),
)
_BIN = JavaClass(
    "org.apache.activemq.util.BitArrayBin",
    1,
    (
        JavaField("I", "firstIndex"),
        JavaField("J", "lastInOrderBit"),
        JavaField("J", "longFirstIndex"),
        JavaField("I", "maxNumberOfArrays"),
        JavaField("Ljava/util/LinkedList;", "list"),
    ),
)
_LINKED_LIST = JavaClass("java.util.LinkedList", 0x0C29535D4A608822, flags=_CUSTOM)
_BIT_ARRAY = JavaClass(
    "org.apache.activemq.util.BitArray", 1, (JavaField("J", "bits"), JavaField("I", "length")), flags=_CUSTOM
)
_NUMBER = JavaClass("java.lang.Number", -8742448824652078965)
_INTEGER = JavaClass("java.lang.Integer", 0x12E2A0A4F7818738, (JavaField("I", "value"),), parent=_NUMBER)
_HASH_SET = JavaClass("java.util.HashSet", 0xBA44859596B8B734 - (1 << 64), flags=_CUSTOM)

_COUNT = struct.Struct(">i")
_BUCKETS_AND_COUNT = struct.Struct(">ii")
_SET_HEAD = struct.Struct(">ifi")

# length of a BitArray, at most -> how its bits are written
_BIT_WIDTHS = ((8, 1), (16, 2), (32, 4), (64, 8))


def encode_audit(audit: AuditImage) -> bytes:
    """The payload of KahaProducerAuditCommand. Of a window that is longer than ``depth`` the newest part is kept; a
    window's first sequence is rounded down to a multiple of 64, and what is added counts as not seen."""
    out = JavaWriter()
    out.begin(_AUDIT)
    out.number("I", audit.depth)
    out.number("I", audit.producers_max)
    out.begin(_LRU_CACHE)
    buckets, threshold = _grown(1, len(audit.windows)) if audit.windows else (1, 1)
    out.number("F", LOAD_FACTOR)
    out.number("I", threshold)
    out.block(_BUCKETS_AND_COUNT.pack(buckets, len(audit.windows)))
    for producer, (first, bitmap) in audit.windows.items():
        out.string(producer)
        _encode_window(out, audit.depth, first, bitmap)
    out.end()
    out.number("Z", True)
    out.number("I", audit.producers_max)
    return out.stream()


def decode_audit(data: bytes) -> AuditImage:
    """The inverse. Raises RecordDamaged."""
    audit = _checked(read_object(data), _AUDIT)
    cache = _checked(audit.fields.get("map"), _LRU_CACHE)
    windows: dict[str, tuple[int, int]] = {}
    for producer, held in _pairs(cache):
        if not isinstance(producer, str):
            raise RecordDamaged("a producer audit has a producer without a name")
        windows[producer.removesuffix(":")] = _decode_window(_checked(held, _BIN))  # 5.3 and 5.4 kept a colon
    return AuditImage(_int(audit, "auditDepth"), _int(audit, "maximumNumberOfProducersToTrack"), windows)


def _encode_window(out: JavaWriter, depth: int, first: int, bitmap: int) -> None:
    arrays_max = max((depth + 1) // ARRAY_BITS + 1, 1)
    bitmap <<= first % ARRAY_BITS
    first -= first % ARRAY_BITS
    arrays = -(-bitmap.bit_length() // ARRAY_BITS)
    if arrays > arrays_max:
        bitmap >>= (arrays - arrays_max) * ARRAY_BITS
        first += (arrays - arrays_max) * ARRAY_BITS
    out.begin(_BIN)
    out.number("I", -1)
    out.number("J", -1)
    out.number("J", first)
    out.number("I", arrays_max)
    out.begin(_LINKED_LIST)
    out.block(_COUNT.pack(arrays_max))
    for number in range(arrays_max):
        bits = bitmap >> number * ARRAY_BITS & (1 << ARRAY_BITS) - 1
        if not bits:
            out.null()
            continue
        length = bits.bit_length()
        width = next(width for most, width in _BIT_WIDTHS if length <= most)
        out.begin(_BIT_ARRAY)
        out.block(bytes((length,)) + bits.to_bytes(width, "big"))
        out.end()
    out.end()


def _decode_window(held: JavaObject) -> tuple[int, int]:
    # Before 5.6 the first sequence was an int.
    first = _int(held, "longFirstIndex") if "longFirstIndex" in held.fields else _int(held, "firstIndex")
    arrays = _checked(held.fields.get("list"), _LINKED_LIST).custom[1:]
    bitmap = 0
    for number, array in enumerate(arrays):
        if array is not None:
            bitmap |= _bits(_checked(array, _BIT_ARRAY)) << number * ARRAY_BITS
    return max(first, 0), bitmap


def _bits(array: JavaObject) -> int:
    data = b"".join(part for part in array.custom if isinstance(part, bytes))
    if len(data) < 2 or data[0] > ARRAY_BITS:
        raise RecordDamaged("a BitArray of a producer audit is damaged")
    # Java writes a whole byte, short, int or long; bits from the length on are the sign, and mean nothing.
    return int.from_bytes(data[1:], "big") & (1 << data[0]) - 1


# ---- ack map


def encode_ack_map(files: Mapping[int, Iterable[int]]) -> bytes:
    """The payload of KahaAckMessageFileMapCommand: file -> files that its acknowledgements concern."""
    out = JavaWriter()
    numbers: dict[int, int] = {}
    out.begin(_HASH_MAP)
    buckets, threshold = _grown(HASH_BUCKETS, len(files)) if files else (HASH_BUCKETS, 0)
    out.number("F", LOAD_FACTOR)
    out.number("I", threshold)
    out.block(_BUCKETS_AND_COUNT.pack(buckets, len(files)))
    for file in _by_bucket(files, buckets):
        _encode_integer(out, file, numbers)
        concerned = set(files[file])
        capacity, _ = _grown(HASH_BUCKETS, len(concerned))
        out.begin(_HASH_SET)
        out.block(_SET_HEAD.pack(capacity, LOAD_FACTOR, len(concerned)))
        for number in _by_bucket(concerned, capacity):
            _encode_integer(out, number, numbers)
        out.end()
    out.end()
    return out.stream()


def decode_ack_map(data: bytes) -> dict[int, set[int]]:
    """The inverse. Raises RecordDamaged."""
    found: dict[int, set[int]] = {}
    for file, concerned in _pairs(_checked(read_object(data), _HASH_MAP)):
        members = _checked(concerned, _HASH_SET).custom[1:]
        found[_int(_checked(file, _INTEGER), "value")] = {_int(_checked(m, _INTEGER), "value") for m in members}
    return found


def _encode_integer(out: JavaWriter, value: int, known: dict[int, int]) -> None:
    handle = known.get(value)
    if handle is not None:
        out.reference(handle)
        return
    known[value] = out.begin(_INTEGER)
    out.number("I", value)


# ---- java.util


def _grown(buckets: int, count: int) -> tuple[int, int]:
    """(buckets, threshold) of a java.util.HashMap that began with ``buckets`` and holds ``count`` entries."""
    while count > int(buckets * LOAD_FACTOR):
        buckets *= 2
    return buckets, int(buckets * LOAD_FACTOR)


def _by_bucket(numbers: Iterable[int], buckets: int) -> list[int]:
    """In the order in which a java.util.HashMap of Integers is walked."""
    return sorted(sorted(numbers), key=lambda number: (number ^ number >> 16) & buckets - 1)


def _pairs(found: JavaObject) -> list[tuple[Any, Any]]:
    entries = found.custom[1:]  # behind the counts
    if len(entries) % 2:
        raise RecordDamaged(f"a {found.name} has a key without a value")
    return list(zip(entries[::2], entries[1::2], strict=True))


def _checked(value: Any, expected: JavaClass) -> JavaObject:
    if not isinstance(value, JavaObject) or value.name != expected.name:
        what = value.name if isinstance(value, JavaObject) else type(value).__name__
        raise RecordDamaged(f"a Java object is a {what}, not a {expected.name}")
    return value


def _int(found: JavaObject, name: str) -> int:
    value = found.fields.get(name)
    if not isinstance(value, int):
        raise RecordDamaged(f"a {found.name} has no {name}")
    return value
