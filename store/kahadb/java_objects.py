"""Codec of the Java object in a KahaDB journal: the producer audit. Pure.

    audit     ActiveMQMessageAuditNoSync: depth, producers, LRUCache(producer id -> BitArrayBin)
    bin       BitArrayBin: first sequence, LinkedList of (depth + 1) // 64 + 1 elements: BitArray of 64 bits, or null

The decoder reads all of Java's output. The encoder writes the same form as Java (kahadb.md 3.8, 3.9).
"""

from __future__ import annotations

import struct
from typing import Any

from tandemmq.store.kahadb.java_stream import (
    SERIALIZABLE,
    WRITES_ITSELF,
    JavaClass,
    JavaField,
    JavaObject,
    JavaWriter,
    read_object,
)
from tandemmq.store.records.audit import AuditImage
from tandemmq.store.records.errors import RecordDamaged

ARRAY_BITS = 64
LOAD_FACTOR = 0.75

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

_COUNT = struct.Struct(">i")
_BUCKETS_AND_COUNT = struct.Struct(">ii")

# (longest BitArray in bits, bytes in which its bits are written)
_BIT_WIDTHS = ((8, 1), (16, 2), (32, 4), (64, 8))


def encode_audit(audit: AuditImage) -> bytes:
    """Return the payload of KahaProducerAuditCommand.

    If a window is longer than ``depth``, only its newest part is kept. The first sequence of a window is rounded down
    to a multiple of 64; the added sequences count as not stored.
    """
    out = JavaWriter()
    out.begin(_AUDIT)
    out.numbers("II", audit.depth, audit.producers_max)
    out.begin(_LRU_CACHE)
    buckets, threshold = _grown(1, len(audit.windows)) if audit.windows else (1, 1)
    out.numbers("FI", LOAD_FACTOR, threshold)
    out.block(_BUCKETS_AND_COUNT.pack(buckets, len(audit.windows)))
    for producer, (first, bitmap) in audit.windows.items():
        out.string(producer)
        _encode_window(out, audit.depth, first, bitmap)
    out.end()
    out.numbers("ZI", True, audit.producers_max)
    return out.stream()


def decode_audit(data: bytes) -> AuditImage:
    """Decode the payload of ``encode_audit``. Raises RecordDamaged."""
    audit = _checked(read_object(data), _AUDIT)
    cache = _checked(audit.fields.get("map"), _LRU_CACHE)
    windows: dict[str, tuple[int, int]] = {}
    for producer, held in _pairs(cache):
        if not isinstance(producer, str):
            raise RecordDamaged("a producer audit has a producer without a name")
        windows[producer.removesuffix(":")] = _decode_window(_checked(held, _BIN))  # ActiveMQ 5.3 and 5.4 kept a colon
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
    out.numbers("IJJI", -1, -1, first, arrays_max)
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
    # Before ActiveMQ 5.6 this sequence was an int.
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
    # Java writes a whole byte, short, int or long; bits after the length are an extension of the sign, and are ignored.
    return int.from_bytes(data[1:], "big") & (1 << data[0]) - 1


# ---- java.util


def _grown(buckets: int, count: int) -> tuple[int, int]:
    """Return (buckets, threshold) of a java.util.HashMap that began with ``buckets`` and holds ``count`` entries."""
    while count > int(buckets * LOAD_FACTOR):
        buckets *= 2
    return buckets, int(buckets * LOAD_FACTOR)


def _pairs(found: JavaObject) -> list[tuple[Any, Any]]:
    entries = found.custom[1:]  # after the counts
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
