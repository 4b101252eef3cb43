"""Heads that the compiled C code reads, compared with the same heads read in Python."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandemmq.broker.protocols.stomp.dialects import V11, V12, Dialect
from tandemmq.broker.protocols.stomp.frames import FrameParser, Limits

native = pytest.importorskip("tandemmq.broker.protocols.stomp.native", reason="native.c is not compiled")

LIMITS = Limits(command_bytes_max=60, header_line_bytes_max=40, headers_max=6, frame_bytes_max=200)
# What heads are made of, and what spoils them.
WORDS = "SEND", "ACK", ":", "a", "b:1", "destination:/queue/a", "content-length:3", "x" * 30, "\x7f", " "
ENDS = "\n", "\n\n", "\r", "\r\n", "\\", "\\n", "\\c", "\0", "é"
SEND = "SEND\ndestination:/queue/a\nreceipt:1\n\nbody\0"


@given(st.lists(st.sampled_from([*WORDS, *ENDS]), max_size=14).map("".join), st.sampled_from([V11, V12]))
@example(SEND, V12)
@example("SEND\na:1\na:2\n\n\0", V12)
@example("SEND\n" + "a:1\n" * 7 + "\n\0", V12)
def test_the_compiled_reader_reads_what_python_reads(text: str, dialect: Dialect) -> None:
    data = text.encode()
    start = len(data) - len(data.lstrip(b"\r\n"))
    found = native.plain_head(data, start, LIMITS.command_bytes_max, LIMITS.headers_max)
    if found is None:
        return
    parser = FrameParser(LIMITS)
    parser.dialect = dialect
    head = parser._head(data, start)
    assert head is not None
    assert (found, list(found[1])) == (head, list(head[1]))


def test_the_usual_head_is_read_in_c() -> None:
    assert native.plain_head(SEND.encode(), 0, 1024, 1000) == (
        "SEND",
        {"receipt": "1", "destination": "/queue/a"},
        SEND.index("body"),
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SEND",
        b"SEND\n",
        b"SEND\na:1\n",
        b"SEND\na:1",
        b"SEND\na\n\n",
        b"SEND\na:\\n\n\n",
        b"SEND\r\n\r\n",
        "SEND\na:é\n\n".encode(),
        b"SEND\na:\0\n\n",
        b"SEND\n" + b"a:1\n" * 65 + b"\n",
    ],
    ids=repr,
)
def test_of_any_other_nothing_is_said(data: bytes) -> None:
    assert native.plain_head(data, 0, 1024, 1000) is None


def test_limits_are_kept_to_the_byte() -> None:
    head = b"SEND\na:1"
    assert native.plain_head(head + b"\n\n", 0, len(head), 3) is not None
    assert native.plain_head(head + b"\n\n", 0, len(head) - 1, 3) is None
    assert native.plain_head(head + b"\n\n", 0, len(head), 1) is None


def test_an_offset_outside_of_the_data_is_refused() -> None:
    for start in (-1, 5):
        with pytest.raises(ValueError, match="within the data"):
            native.plain_head(b"SEND", start, 10, 10)
    with pytest.raises(TypeError):
        native.plain_head("SEND", 0, 10, 10)
