"""Codec of Java's modified UTF-8 (DataOutput.writeUTF), the encoding of OpenWire's strings and text bodies.

    U+0000          C0 80
    above U+FFFF    the two surrogates, three bytes each
    all else        UTF-8

The decoder also accepts plain UTF-8, which old brokers wrote. The encoder is exact, because Java's decoder is strict.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator
from io import BytesIO

from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.remembered import remember

_ASTRAL = re.compile("[\U00010000-\U0010ffff]")
_PAIR = re.compile(rb"\xed[\xa0-\xaf][\x80-\xbf]\xed[\xb0-\xbf][\x80-\xbf]")
_NUL = b"\0"
_JAVA_NUL = b"\xc0\x80"
# The first byte of a surrogate, and of some Hangul characters.
SURROGATE_LEAD = b"\xed"
_NUL_LEAD = b"\xc0"
_LOW_LEAD = b"\xed\xb0"
_HIGH_LEADS = frozenset(bytes((0xED, byte)) for byte in range(0xA0, 0xB0))

# Limits of a text that can be decoded in a few milliseconds: bytes, and bytes that may begin a surrogate.
QUICK_BYTES_MAX = 1 << 20
QUICK_SURROGATES_MAX = 10_000
# Limits of a text that can be encoded in a few milliseconds: this number of bytes; or QUICK_BYTES_MAX with a limited
# number of characters above U+FFFF.
QUICK_WRITTEN_BYTES_MAX = 32 * 1024
_QUICK_ASTRAL_MAX = QUICK_WRITTEN_BYTES_MAX // 4
# First bytes of characters above U+FFFF in plain UTF-8.
_ASTRAL_LEADS = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4")
# Bytes of a long text that are converted between two pauses.
_PIECE_BYTES = 4096


def is_quick(data: bytes) -> bool:
    """Return whether the event loop can decode any text in ``data`` in a few milliseconds."""
    return len(data) <= QUICK_BYTES_MAX and data.count(SURROGATE_LEAD) <= QUICK_SURROGATES_MAX


def is_quickly_written(body: bytes) -> bool:
    """Return whether the event loop can encode the text ``body`` in modified UTF-8 in a few milliseconds."""
    if len(body) <= QUICK_WRITTEN_BYTES_MAX:
        return True
    return len(body) <= QUICK_BYTES_MAX and sum([body.count(lead) for lead in _ASTRAL_LEADS]) <= _QUICK_ASTRAL_MAX


def encode_modified(text: str) -> bytes:
    """Encode a text in modified UTF-8. Lone surrogates are preserved, because a Java string may contain them."""
    data = text.encode() if text.isascii() else _ASTRAL.sub(_surrogates, text).encode("utf-8", "surrogatepass")
    return data.replace(_NUL, _JAVA_NUL) if _NUL in data else data


def decode_modified(data: bytes) -> str:
    """Decode modified or plain UTF-8. Raises RecordDamaged for bytes that are neither."""
    try:
        if data.isascii():
            return data.decode("ascii")
        if SURROGATE_LEAD in data:
            data = _PAIR.sub(_joined, data)  # surrogatepass would be much slower for pairs of surrogates
        return data.replace(_JAVA_NUL, _NUL).decode("utf-8", "surrogatepass")
    except UnicodeError as error:
        raise RecordDamaged(f"a string is not UTF-8: {error}") from None


def is_utf8(body: bytes) -> bool:
    """Return whether a body is plain UTF-8. Not for the event loop if the text is long; this applies to
    ``modified_of_utf8`` and ``utf8_of_modified`` too."""
    try:
        for piece in pieces(body, 0, len(body)):
            piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def modified_of_utf8(body: bytes) -> bytes:
    """Convert a text body from UTF-8 to modified UTF-8. Bytes that are not UTF-8 become lone surrogates (PEP 383), so
    that ``utf8_of_modified`` can restore them."""
    if body.isascii() and _NUL not in body:
        return body
    if is_quickly_written(body):  # without pauses: on the event loop, a pause would wait for other threads
        return encode_modified(body.decode("utf-8", "surrogateescape"))
    out = BytesIO()  # a list of pieces would need twice the memory
    for piece in pieces(body, 0, len(body)):
        out.write(encode_modified(piece.decode("utf-8", "surrogateescape")))
    return out.getvalue()


def utf8_of_modified(data: bytes, start: int, stop: int) -> bytes:
    """Reverse :func:`modified_of_utf8` for a part of ``data``. Surrogates that do not represent a byte become ``?``, as
    in Java."""
    if stop - start <= _PIECE_BYTES and (content := data[start:stop]).isascii():
        return content  # the quick path for most texts
    if data.find(SURROGATE_LEAD, start, stop) < 0 and data.find(_NUL_LEAD, start, stop) < 0:
        return data[start:stop]
    try:
        return _utf8_of_modified(data, start, stop, "surrogateescape")
    except UnicodeEncodeError:
        return _utf8_of_modified(data, start, stop, "replace")


def _utf8_of_modified(data: bytes, start: int, stop: int, errors: str) -> bytes:
    if stop - start <= QUICK_BYTES_MAX and is_quick(content := data[start:stop]):  # without pauses
        return decode_modified(content).encode("utf-8", errors)
    out = BytesIO()
    for piece in pieces(data, start, stop):
        out.write(decode_modified(piece).encode("utf-8", errors))
    return out.getvalue()


def pieces(data: bytes, start: int, stop: int) -> Generator[bytes, None, None]:
    """Yield a part of ``data`` in pieces that can be converted separately: characters and pairs of surrogates are not
    cut, and bytes that are no UTF-8 stay invalid in a piece. Other threads can run between two pieces; compiled code
    would not let them run otherwise."""
    while stop - start > _PIECE_BYTES:
        end = _boundary(data, start + _PIECE_BYTES)
        yield data[start:end]
        start = end
        time.sleep(0)
    yield data[start:stop]


def _boundary(data: bytes, at: int) -> int:
    """Return the end of a piece: ``at``, or a few bytes before, so that no character is cut."""
    begin = at
    while data[begin] & 0xC0 == 0x80:
        begin -= 1
        if at - begin > 3:
            return at  # a byte that belongs to no character
    if data[begin : begin + 2] >= _LOW_LEAD and data[begin] == 0xED and data[begin - 3 : begin - 1] in _HIGH_LEADS:
        return begin - 3
    return begin


# pairs of surrogates -> character in plain UTF-8; characters -> pair of surrogates
_plain: dict[bytes, bytes] = {}
_split: dict[str, str] = {}


def _joined(match: re.Match[bytes]) -> bytes:
    pair = match[0]
    return _plain.get(pair) or remember(_plain, pair, _character(pair), len(pair))


def _character(pair: bytes) -> bytes:
    high = (pair[1] & 0xF) << 6 | pair[2] & 0x3F
    low = (pair[4] & 0xF) << 6 | pair[5] & 0x3F
    return chr(0x10000 + (high << 10) + low).encode()


def _surrogates(match: re.Match[str]) -> str:
    character = match[0]
    return _split.get(character) or remember(_split, character, _surrogate_pair(character), 1)


def _surrogate_pair(character: str) -> str:
    offset = ord(character) - 0x10000
    return chr(0xD800 + (offset >> 10)) + chr(0xDC00 + (offset & 0x3FF))
