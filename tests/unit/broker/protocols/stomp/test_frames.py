"""The frame codec: one table of samples, fed in three ways; invalid frames; and the limits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.protocols.stomp.dialects import V10, V11, V12, Dialect
from tandemmq.broker.protocols.stomp.frames import (
    HEAD_PIECE_BYTES,
    HEAD_PIECE_LINES,
    Frame,
    FrameParser,
    FrameTooLong,
    Limits,
)

SMALL = Limits(command_bytes_max=16, header_line_bytes_max=32, headers_max=3, head_bytes_max=60, frame_bytes_max=200)


def parse(pieces: list[bytes], dialect: Dialect = V12, limits: Limits | None = None) -> list[Frame]:
    parser = FrameParser(limits or Limits())
    parser.dialect = dialect
    frames = []
    for piece in pieces:
        parser.feed(piece)
        while parser.data:
            if (frame := parser.next_frame()) is not None:
                frames.append(frame)
    return frames


def single_bytes(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


SAMPLES: list[tuple[str, Dialect, bytes, list[Frame]]] = [
    ("no headers", V12, b"DISCONNECT\n\n\0", [("DISCONNECT", {}, b"")]),
    ("body to NUL", V12, b"SEND\na:b\n\nhello\0", [("SEND", {"a": "b"}, b"hello")]),
    (
        "content-length covers NUL and blank lines",
        V12,
        b"SEND\ncontent-length:5\n\n\n\n\0ab\0",
        [("SEND", {"content-length": "5"}, b"\n\n\0ab")],
    ),
    (
        "content-length means nothing but in SEND",
        V12,
        b"ACK\ncontent-length:99\n\n\0",
        [("ACK", {"content-length": "99"}, b"")],
    ),
    ("heart-beats between frames", V12, b"\n\r\nA\n\n\0\n\r\n\nB\n\n\0\n", [("A", {}, b""), ("B", {}, b"")]),
    ("CR LF in 1.2", V12, b"SEND\r\na:b\r\n\r\nx\n\ny\0", [("SEND", {"a": "b"}, b"x\n\ny")]),
    ("CR LF in 1.0", V10, b"SEND\r\na:b\r\n\r\nx\0", [("SEND", {"a": "b"}, b"x")]),
    ("CR LF and LF mixed", V12, b"SEND\na:b\r\nc:d\n\r\nx\0", [("SEND", {"a": "b", "c": "d"}, b"x")]),
    (
        "CR LF frame, then LF frame",
        V12,
        b"A\r\nb:c\r\n\r\n\0A\nb:d\n\n\0",
        [("A", {"b": "c"}, b""), ("A", {"b": "d"}, b"")],
    ),
    ("CR belongs to the value in 1.1", V11, b"SEND\na:b\r\n\nx\0", [("SEND", {"a": "b\r"}, b"x")]),
    ("CR LF in a body stays", V12, b"SEND\na:b\n\nx\r\n\r\n\0", [("SEND", {"a": "b"}, b"x\r\n\r\n")]),
    ("first repeated header wins", V12, b"SEND\na:1\na:2\n\n\0", [("SEND", {"a": "1"}, b"")]),
    ("first wins also when escaped", V12, b"SEND\na\\cb:1\na\\cb:2\n\n\0", [("SEND", {"a:b": "1"}, b"")]),
    ("1.2 escapes", V12, b"S\n\\c\\n:\\\\\\r\\n\n\n\0", [("S", {":\n": "\\\r\n"}, b"")]),
    ("1.1 escapes", V11, b"S\nk:a\\cb\\\\n\n\n\0", [("S", {"k": "a:b\\n"}, b"")]),
    ("1.0 knows no escapes", V10, b"S\nk:a\\cb\\x\n\n\0", [("S", {"k": "a\\cb\\x"}, b"")]),
    ("1.0 trims values", V10, b"S\nk: a b \n\n\0", [("S", {"k": "a b"}, b"")]),
    ("1.2 does not", V12, b"S\nk: a \n\n\0", [("S", {"k": " a "}, b"")]),
    ("colons in a value", V12, b"S\nk:a:b\n\n\0", [("S", {"k": "a:b"}, b"")]),
    ("empty name and value", V12, b"S\n:\n\n\0", [("S", {"": ""}, b"")]),
    ("UTF-8", V12, "S\nä:€\n\nö\0".encode(), [("S", {"ä": "€"}, "ö".encode())]),
]


@pytest.mark.parametrize(("dialect", "data", "expected"), [s[1:] for s in SAMPLES], ids=[s[0] for s in SAMPLES])
def test_a_sample_is_read_in_any_pieces(dialect: Dialect, data: bytes, expected: list[Frame]) -> None:
    assert parse([data], dialect) == expected
    assert parse(single_bytes(data), dialect) == expected
    for cut in range(len(data)):
        assert parse([data[:cut], data[cut:]], dialect) == expected
    assert parse([data + b"\nTRAIL\nx:", b"y\n\n\0"], dialect) == [*expected, ("TRAIL", {"x": "y"}, b"")]


MISTAKES: list[tuple[str, Dialect, bytes, str]] = [
    ("no colon", V12, b"SEND\nnocolon\n\n\0", "without a colon: 'nocolon'"),
    ("no blank line", V12, b"SEND\na:b\n\0", "ended before its headers"),
    ("NUL in a header", V12, b"SEND\na:b\0\n\n\0", "ended before its headers"),
    ("undefined escape in 1.2", V12, b"SEND\na:\\t\n\n\0", "Undefined escape sequence '\\\\t'"),
    ("CR escape in 1.1", V11, b"SEND\na:\\r\n\n\0", "Undefined escape sequence '\\\\r'"),
    ("backslash at the end", V12, b"SEND\na:b\\\n\n\0", "Undefined escape sequence '\\\\'"),
    ("not UTF-8", V12, b"SEND\na:\xff\n\n\0", "not UTF-8"),
    ("content-length not a number", V12, b"SEND\ncontent-length:x\n\n\0", "Not a content-length: 'x'"),
    ("content-length negative", V12, b"SEND\ncontent-length:-1\n\n\0", "Not a content-length: '-1'"),
    ("content-length too short", V12, b"SEND\ncontent-length:1\n\nab\0", "not as long as its content-length"),
    ("content-length too large", V12, b"SEND\ncontent-length:201\n\n", "maximum frame length"),
    ("content-length of many digits", V12, b"SEND\ncontent-length:" + b"9" * 16 + b"\n\n", "maximum frame length"),
    ("endless body", V12, b"SEND\n\n" + b"x" * 300, "maximum frame length"),
    ("endless command", V12, b"X" * 17, "maximum command length"),
    ("long command", V12, b"X" * 17 + b"\n\n\0", "maximum command length"),
    ("endless header line", V12, b"SEND\n" + b"x" * 33, "maximum header length"),
    ("long header line", V12, b"SEND\na:" + b"x" * 31 + b"\n\n\0", "maximum header length"),
    ("endless long headers", V12, b"SEND\n" + (b"a:" + b"x" * 28 + b"\n") * 2, "maximum length of the headers"),
    ("long headers", V12, b"SEND\n" + (b"a:" + b"x" * 28 + b"\n") * 2 + b"\n\0", "maximum length of the headers"),
    ("endless headers", V12, b"SEND\n" + b"a:b\n" * 5, "maximum number of headers"),
    ("many headers", V12, b"SEND\n" + b"a:b\n" * 4 + b"\n\0", "maximum number of headers"),
]


@pytest.mark.parametrize(("dialect", "data", "message"), [s[1:] for s in MISTAKES], ids=[s[0] for s in MISTAKES])
@pytest.mark.parametrize("cut", [lambda data: [data], single_bytes], ids=["whole", "byte by byte"])
def test_a_mistake_is_named(cut, dialect: Dialect, data: bytes, message: str) -> None:
    with pytest.raises(ClientError) as caught:
        parse(cut(data), dialect, SMALL)
    assert message in caught.value.message
    assert caught.value.is_fatal
    assert caught.value.detail


@pytest.mark.parametrize("cut", [lambda data: [data], single_bytes], ids=["whole", "byte by byte"])
@pytest.mark.parametrize(
    "data",
    [
        b"SEND\nreceipt:r\ncontent-length:201\n\n%b\0" % bytes(201),
        b"SEND\nreceipt:r\n\n%b\0" % (b"x" * 300),
        b"ACK\nreceipt:r\ncontent-length:1\n\n%b\0" % (b"x" * 300),
    ],
    ids=["content-length", "to NUL", "content-length means nothing"],
)
def test_a_frame_that_is_too_long_is_passed_over(cut, data: bytes) -> None:
    parser = FrameParser(SMALL)
    parser.dialect = V12
    parser.passes_over = True
    came: list[object] = []
    for piece in cut(data * 2 + b"\nA\n\n\0"):
        parser.feed(piece)
        while parser.data:
            try:
                frame = parser.next_frame()
                came += [] if frame is None else [frame]
            except FrameTooLong as error:
                came.append((error.message, error.is_fatal, error.receipt))
        assert len(parser.partial) <= 201
    told = "The maximum frame length was exceeded", False, "r"
    assert came == [told, told, ("A", {}, b"")]


@pytest.mark.parametrize("cut", [lambda data: [data], single_bytes], ids=["whole", "byte by byte"])
def test_a_frame_exactly_at_the_limits_is_read(cut) -> None:
    data = b"C" * 16 + b"\n" + b"a:" + b"x" * 30 + b"\nb:1\nc:1\n\n\0"
    assert parse(cut(data), V12, SMALL) == [("C" * 16, {"a": "x" * 30, "b": "1", "c": "1"}, b"")]


# What each version can say in a header. 1.0 has no escapes, and values lose the blanks around them.
_any_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
_any_headers = st.dictionaries(_any_text, _any_text, max_size=5)
_header_text = {
    "1.2": _any_headers,
    "1.1": _any_headers,
    "1.0": st.dictionaries(
        _any_text.filter(lambda text: not set(text) & set(":\n\r")),
        _any_text.filter(lambda text: not set(text) & set("\n\r")).map(str.strip),
        max_size=5,
    ),
}


@pytest.mark.parametrize("dialect", [V10, V11, V12], ids=lambda dialect: dialect.version)
@given(data=st.data(), fillers=st.integers(0, 6), cuts=st.lists(st.integers(0, 70_000), max_size=6).map(sorted))
def test_any_headers_survive_the_wire(dialect: Dialect, data: st.DataObject, fillers: int, cuts: list[int]) -> None:
    """The test includes lines so long that the head is read in pieces."""
    headers = data.draw(_header_text[dialect.version])
    long = {f"long-{number}": "\\:\u20ac"[number % 3] * 3_000 for number in range(fillers)}
    if dialect is V10:
        long = {name: value.replace(":", "x") for name, value in long.items()}
    items = [*headers.items()]
    items[len(items) // 2 : len(items) // 2] = long.items()
    lines = "".join(f"{dialect.escape(name)}:{dialect.escape(value)}\n" for name, value in items)
    frame = f"SEND\n{lines}\nbody\0".encode()
    expected = [("SEND", {**headers, **long}, b"body")]
    assert parse([frame], dialect) == expected
    assert parse([frame[start:end] for start, end in pairwise([0, *cuts, len(frame)])], dialect) == expected
    assert list(parse([frame], dialect)[0][1]) == [name for name, _ in reversed(items)]


@given(pieces=st.lists(st.binary(max_size=40) | st.sampled_from([b"SEND\n", b"a:b\n", b"\n", b"\0", b"\r\n"])))
def test_any_bytes_give_the_same_however_they_are_cut(pieces: list[bytes]) -> None:
    def outcome(pieces: list[bytes]) -> list[Frame] | str:
        try:
            return parse(pieces, V12, SMALL)
        except ClientError as error:
            return error.message

    whole, cut = outcome([b"".join(pieces)]), outcome(pieces)
    # A head may break two limits; which is seen first depends on the cut. Frames may not differ.
    assert whole == cut or (isinstance(whole, str) and isinstance(cut, str))


def pieces(data: bytes) -> Iterator[tuple[int, Frame | None]]:
    """Each call's part of the bytes, and its frame."""
    parser = FrameParser(Limits())
    parser.dialect = V12
    parser.feed(data)
    while parser.data:
        before = parser.offset
        frame = parser.next_frame()
        yield (parser.offset or len(data)) - before, frame


@pytest.mark.parametrize(
    ("name", "value", "count"),
    [("", r"\c" * 5_000, 104), (r"\c" * 5_000, "", 104), ("", r"\n", 999), ("", "x", 999), ("", "x" * 10_000, 104)],
    ids=["escapes", "escaped names", "many", "many without escapes", "without escapes"],
)
def test_a_long_head_is_read_in_pieces(name: str, value: str, count: int) -> None:
    lines = [f"{number}{name}:{value}\n".encode() for number in range(count)]
    found = list(pieces(b"SEND\n" + b"".join(lines) + b"\nbody\0"))
    longest = max(map(len, lines))
    most = min(HEAD_PIECE_BYTES + longest, HEAD_PIECE_LINES * longest) + len("\nbody\0")
    assert max(used for used, _ in found) <= most
    assert [frame for _, frame in found[:-1]] == [None] * (len(found) - 1)
    frame = found[-1][1]
    assert frame is not None
    assert frame[2] == b"body"
    assert len(frame[1]) == count
    assert frame[1]["0" + V12.unescape(name)] == V12.unescape(value)


@pytest.mark.parametrize("letter", ["x", "\u20ac", "\U0001f600"])
def test_the_headers_of_a_frame_that_is_not_whole_are_counted(letter: str) -> None:
    parser = FrameParser(Limits())
    parser.dialect = V12
    value = letter * 2_000
    held = []
    for piece in [b"SEND\n", *(f"{number}:{value}\n".encode() for number in range(50)), b"\n", b"b" * 1_000]:
        parser.feed(piece)
        while parser.data:
            assert parser.next_frame() is None
        held.append(parser.unfinished_bytes)
    assert held == sorted(held)
    assert held[-3] >= 50 * sys.getsizeof(value)
    assert held[-1] == held[-2] + 1_000
    parser.feed(b"\0")
    assert parser.next_frame() is not None
    assert parser.unfinished_bytes == 0


def test_no_frame_is_lost_if_requested_between_the_bytes() -> None:
    parser = FrameParser(Limits())
    parser.dialect = V12
    frames = []
    for byte in single_bytes(b"SEND\na:b\n\nbody\0SEND\ncontent-length:3\n\na\0b\0"):
        parser.feed(byte)
        frames += [parser.next_frame(), parser.next_frame()]
    assert [frame for frame in frames if frame] == [
        ("SEND", {"a": "b"}, b"body"),
        ("SEND", {"content-length": "3"}, b"a\0b"),
    ]


def test_a_long_line_is_not_copied_for_each_byte_of_it() -> None:
    parser = FrameParser(Limits())
    parser.dialect = V12
    parser.feed(b"SEND\n:")
    assert parser.next_frame() is None
    for _ in range(10_000):
        parser.feed(b":")
        assert not parser.data
    parser.feed(b"\n\n\0")
    assert parser.next_frame() == ("SEND", {"": ":" * 10_000}, b"")
