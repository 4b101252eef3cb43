"""Java's modified UTF-8 (DataOutput.writeUTF), as OpenWire writes its strings and text bodies.

    U+0000          C0 80
    above U+FFFF    the two surrogates, three bytes each
    all else        UTF-8

Reading is generous (plain UTF-8 is accepted too, old brokers wrote it); writing is exact, for Java's reader is not.
"""

from __future__ import annotations

import re

from tandemmq.store.records.errors import RecordDamaged

_ASTRAL = re.compile("[\U00010000-\U0010ffff]")
_NUL = b"\0"
_JAVA_NUL = b"\xc0\x80"
_SURROGATE_LEAD = b"\xed"
_NUL_LEAD = b"\xc0"


def encode_modified(text: str) -> bytes:
    """Modified UTF-8. Lone surrogates are kept: Java's strings may hold them."""
    data = text.encode() if text.isascii() else _ASTRAL.sub(_surrogates, text).encode("utf-8", "surrogatepass")
    return data.replace(_NUL, _JAVA_NUL) if _NUL in data else data


def decode_modified(data: bytes) -> str:
    """The text of modified or plain UTF-8. Raises RecordDamaged for bytes that are neither."""
    try:
        if data.isascii():
            return data.decode("ascii")
        text = data.replace(_JAVA_NUL, _NUL).decode("utf-8", "surrogatepass")
        if _SURROGATE_LEAD in data:
            text = text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
        return text
    except UnicodeError as error:
        raise RecordDamaged(f"a string is not UTF-8: {error}") from None


def modified_of_utf8(body: bytes) -> bytes:
    """A text body for Java. Bytes that are no UTF-8 travel as lone surrogates (PEP 383), so that they come back."""
    if body.isascii() and _NUL not in body:
        return body
    return encode_modified(body.decode("utf-8", "surrogateescape"))


def utf8_of_modified(content: bytes) -> bytes:
    """The inverse of :func:`modified_of_utf8`. Surrogates that stand for no byte become ``?``, as in Java."""
    if content.isascii() or (_SURROGATE_LEAD not in content and _NUL_LEAD not in content):
        return content
    text = decode_modified(content)
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _surrogates(match: re.Match[str]) -> str:
    offset = ord(match[0]) - 0x10000
    return chr(0xD800 + (offset >> 10)) + chr(0xDC00 + (offset & 0x3FF))
