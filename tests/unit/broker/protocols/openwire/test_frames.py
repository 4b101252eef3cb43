"""Frames out of a stream: cut anyhow, the same; sizes judged before anything is kept."""

from __future__ import annotations

import struct
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.protocols.openwire.errors import WireError
from tandemmq.broker.protocols.openwire.frames import HANDSHAKE_BYTES_MAX, FrameCutter


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def cut(cutter: FrameCutter, pieces: list[bytes]) -> list[bytes]:
    frames = []
    for piece in pieces:
        cutter.feed(piece)
        while (frame := cutter.next_frame()) is not None:
            frames.append(frame)
    return frames


SHORT = st.binary(min_size=1, max_size=20)


@given(
    st.lists(st.one_of(SHORT, st.builds(mul, SHORT, st.integers(200, 450))), max_size=8),
    st.data(),
)
def test_however_the_bytes_were_cut_the_same_frames_come_out(bodies: list[bytes], data: st.DataObject) -> None:
    frames = [framed(body) for body in bodies]
    stream = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    cutter = FrameCutter()
    assert cut(cutter, pieces) == frames
    assert cutter.pending_bytes == 0


def test_frames_of_one_length_that_came_together() -> None:
    frames = [framed(bytes([number]) * 100) for number in range(4)]
    assert cut(FrameCutter(), [b"".join(frames)]) == frames
    assert cut(FrameCutter(), [b"".join(frames[:3])]) == frames[:3]


def test_a_frame_that_came_alone_is_not_copied() -> None:
    frame = framed(b"x" * 1000)
    cutter = FrameCutter()
    cutter.feed(frame)
    assert cutter.next_frame() is frame


def test_what_is_kept_of_an_unfinished_frame_is_what_came_of_it() -> None:
    cutter = FrameCutter(1 << 30)
    assert cut(cutter, [struct.pack(">i", 1 << 30), b"abc"]) == []
    assert cutter.pending_bytes == 7


def test_small_pieces_are_gathered_so_that_they_cost_little_more_than_their_bytes() -> None:
    cutter = FrameCutter(1 << 30)
    assert cut(cutter, [struct.pack(">i", 1 << 20), *[b"x"] * 100_000]) == []
    assert len(cutter._pieces) <= 100_004 // 4096 + 1
    assert cut(cutter, [b"x" * ((1 << 20) - 100_000)]) == [framed(b"x" * (1 << 20))]


@pytest.mark.parametrize("size", [0, -1, -(1 << 31), HANDSHAKE_BYTES_MAX + 1, 0x47455420])  # the last: GET of HTTP
@pytest.mark.parametrize("piece", [1, 2, 4])
def test_a_size_that_breaks_the_limit_is_refused_as_soon_as_it_is_there(size: int, piece: int) -> None:
    prefix = struct.pack(">i", size)
    pieces = [prefix[start : start + piece] for start in range(0, 4, piece)]
    cutter = FrameCutter()
    assert cut(cutter, pieces[:-1]) == []
    with pytest.raises(WireError, match=rf"a frame of {size} bytes; 1 to {HANDSHAKE_BYTES_MAX} are allowed"):
        cut(cutter, pieces[-1:])


def test_the_limit_may_be_raised_between_two_frames_of_one_piece() -> None:
    first, second = framed(b"x"), framed(b"y" * 100_000)
    cutter = FrameCutter()
    cutter.feed(first + second)
    assert cutter.next_frame() == first
    cutter.frame_bytes_max = 100_000
    assert cutter.next_frame() == second
    assert cutter.next_frame() is None


def test_a_frame_of_exactly_the_limit_passes() -> None:
    cutter = FrameCutter(10)
    assert cut(cutter, [framed(b"x" * 10)]) == [framed(b"x" * 10)]
    with pytest.raises(WireError):
        cut(cutter, [framed(b"x" * 11)])
