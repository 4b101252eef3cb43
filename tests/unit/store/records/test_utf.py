"""Long texts are read and written in pieces, with the result of the whole; one piece is quick, whatever it contains."""

from __future__ import annotations

import re
import sys
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.store.records import utf
from tandemmq.store.records.errors import RecordDamaged

PIECE = 4096
FACE = "\U0001f600"
# Possible ends of a piece: characters of all lengths, halves of pairs, bytes that belong to no character.
BITS = st.sampled_from(
    [
        *(character.encode() for character in ("a", "\0", "\u00e4", "\u20ac", "\uac00", "\ud7ff", FACE)),
        b"\xc0\x80",
        b"\xed\xa0\xbd",
        b"\xed\xb8\x80",
        b"\xed\xb2\x80",
        b"\x80",
        b"\xbf\xbf\xbf\xbf\xbf",
        b"\xff",
        b"\xe2\x82",
        b"\xed",
    ]
)


def read_whole(content: bytes) -> bytes:
    """Read Java's text in one piece, with nothing but the codecs."""
    text = content.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    text = text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def write_whole(body: bytes) -> bytes:
    text = body.decode("utf-8", "surrogateescape")
    units = re.sub("[\U00010000-\U0010ffff]", lambda found: _halves(found[0]), text)
    return units.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def _halves(character: str) -> str:
    units = character.encode("utf-16-be")
    return chr(int.from_bytes(units[:2])) + chr(int.from_bytes(units[2:]))


# Behind these a text is not quick.
LONG_READ = utf.encode_modified(FACE) * (utf.QUICK_SURROGATES_MAX // 2 + 1)
LONG_WRITTEN = FACE.encode() * (utf.QUICK_WRITTEN_BYTES_MAX // 4 + 1)


@given(st.integers(PIECE - 12, PIECE + 2), st.lists(BITS, max_size=12), st.lists(BITS, max_size=4))
@settings(max_examples=200)
def test_a_text_in_pieces_is_read_and_written_as_in_one(fill: int, middle: list[bytes], end: list[bytes]) -> None:
    data = b"x" * fill + b"".join(middle) + b"y" * PIECE + b"".join(end)
    for read in (data + b"z", data + b"z" + LONG_READ):
        try:
            expected = read_whole(read)
        except UnicodeDecodeError:
            with pytest.raises(RecordDamaged):
                utf.utf8_of_modified(read + b"\xc0\x80", 0, len(read) + 2)
        else:
            assert utf.utf8_of_modified(read, 0, len(read)) == expected
            assert utf.utf8_of_modified(b"\x80" + read + LONG_READ, 1, 1 + len(read)) == expected
    for body in (data, data + LONG_WRITTEN):
        assert utf.modified_of_utf8(body) == write_whole(body)
    try:
        data.decode()
    except UnicodeDecodeError:
        assert not utf.is_utf8(data)
    else:
        assert utf.is_utf8(data)


@given(st.text(alphabet=st.characters(min_codepoint=0xD7F0, max_codepoint=0x10FFFF), max_size=50))
def test_every_character_comes_back(text: str) -> None:
    data = utf.encode_modified(text)
    joined = text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
    assert utf.decode_modified(data) == joined
    assert b"\xf0" not in data


def test_no_piece_of_a_long_text_is_long() -> None:
    """Other threads have their turn between two pieces."""
    for content in (utf.encode_modified(FACE) * 20_000, b"\x80" * 100_000, b"\xed\xb2\x80" * 40_000):
        pieces = list(utf.pieces(content, 0, len(content)))
        assert b"".join(pieces) == content
        assert max(map(len, pieces)) <= PIECE


def test_the_conversion_of_a_long_text_is_in_memory_once() -> None:
    """The pieces are not in memory beside the whole."""
    content = utf.encode_modified(FACE) * 200_000
    body = FACE.encode() * 200_000
    tracemalloc.start()
    try:
        assert utf.utf8_of_modified(content, 0, len(content)) == body
        assert tracemalloc.get_traced_memory()[1] < 1.3 * len(body)
        tracemalloc.reset_peak()
        assert utf.modified_of_utf8(body) == content
        assert tracemalloc.get_traced_memory()[1] < 1.3 * len(content)
    finally:
        tracemalloc.stop()


def test_a_text_is_quick_unless_it_is_long_or_of_surrogates() -> None:
    face = utf.encode_modified(FACE)
    assert utf.is_quick(face * (utf.QUICK_SURROGATES_MAX // 2))
    assert not utf.is_quick(face * (utf.QUICK_SURROGATES_MAX // 2 + 1))
    assert utf.is_quick("\u4e2d".encode() * 300_000)
    assert not utf.is_quick(b"x" * (utf.QUICK_BYTES_MAX + 1))


def test_a_text_is_quickly_written_unless_it_is_long_or_of_characters_beyond_ffff() -> None:
    some = "gr\u00fcn \u4e2d".encode() * 10_000
    assert utf.is_quickly_written(some + LONG_WRITTEN[4:])
    assert not utf.is_quickly_written(some + LONG_WRITTEN)
    assert not utf.is_quickly_written("\U0010ffff".encode() * (len(LONG_WRITTEN) // 4))
    assert not utf.is_quickly_written(b"x" * (utf.QUICK_BYTES_MAX + 1))


@pytest.mark.parametrize(
    "data", [utf.encode_modified(FACE) * 5_000, "gr\u00fcn".encode() * 100_000], ids=["faces", "long"]
)
def test_a_quick_text_is_converted_without_a_pause(data: bytes) -> None:
    """On the event loop a rest lets threads go first, each for as long as its compiled code takes. Compiled, nothing
    is seen here."""
    called: list[object] = []
    sys.setprofile(lambda frame, event, function: called.append(function) if event == "c_call" else None)
    try:
        body = utf.utf8_of_modified(data, 0, len(data))
        utf.modified_of_utf8(body)
    finally:
        sys.setprofile(None)
    assert time.sleep not in called
