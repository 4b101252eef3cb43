"""Terms of two peers, and frames out of a stream."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from contextlib import suppress
from io import BytesIO
from operator import mul
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.protocols.openwire.codec import STORED
from tandemmq.broker.protocols.openwire.errors import FrameTooLong, WireError
from tandemmq.broker.protocols.openwire.frames import HANDSHAKE_BYTES_MAX, HEAD_BYTES_MAX, FrameCutter
from tandemmq.broker.protocols.openwire.schema import WireFormatInfo
from tandemmq.broker.protocols.openwire.wireformat import (
    PROPERTIES_BYTES_MAX,
    PROPERTIES_MAX,
    Agreement,
    negotiate,
    our_info,
    properties_of,
)
from tandemmq.store.records.properties import Long, decode_properties, encode_properties
from tests.support.protocols.openwire.vectors import vectors

LIMIT = 100 * 1024 * 1024
OURS = our_info(max_frame_size=LIMIT, provider_version="1.2.3")
# Somebody who would have all of it.
EAGER: dict[str, Any] = {
    "StackTraceEnabled": True,
    "CacheEnabled": True,
    "TightEncodingEnabled": True,
    "CacheSize": 200,
    "MaxInactivityDuration": Long(5000),
    "MaxInactivityDurationInitalDelay": Long(20_000),
    "MaxFrameSize": Long(1000),
}


def peer(version: int = 12, **properties: Any) -> WireFormatInfo:
    return WireFormatInfo(version=version, marshalled_properties=encode_properties(properties))


def test_we_ask_for_what_the_journal_holds() -> None:
    assert OURS.version == 12
    data = OURS.marshalled_properties
    assert data is not None
    assert decode_properties(data) == {
        "StackTraceEnabled": False,
        "TcpNoDelayEnabled": True,
        "CacheEnabled": False,
        "TightEncodingEnabled": False,
        "SizePrefixDisabled": False,
        "CacheSize": 1024,
        "MaxInactivityDuration": 30_000,
        "MaxInactivityDurationInitalDelay": 10_000,
        "MaxFrameSize": LIMIT,
        "ProviderName": "TandemMQ",
        "ProviderVersion": "1.2.3",
    }
    assert len(STORED.encode(OURS)) < HANDSHAKE_BYTES_MAX


def test_our_numbers_have_the_types_that_java_casts_to() -> None:
    theirs = properties_of(vector_info("WireFormatInfo"))
    ours = properties_of(OURS)
    for name in ours:
        assert type(ours[name]) is type(theirs[name]), name


def vector_info(name: str) -> WireFormatInfo:
    vector = next(vector for vector in vectors() if vector.name == name)
    info = vector.wire_format().decode(vector.frames[0])
    assert isinstance(info, WireFormatInfo)
    return info


def test_with_a_java_client_we_speak_the_stored_form() -> None:
    agreed = negotiate(OURS, vector_info("WireFormatInfo"))
    assert agreed == Agreement(12, False, False, False, 1024, LIMIT, 30_000, 10_000)
    assert agreed.wire_format().is_stored_form


def test_a_peer_without_properties_gets_the_plainest_form_and_no_heart_beats() -> None:
    agreed = negotiate(OURS, vector_info("WireFormatInfo-noProperties"))
    assert (agreed.version, agreed.is_tight, agreed.is_cached, agreed.has_stack_traces) == (9, False, False, False)
    assert (agreed.inactivity_ms, agreed.initial_delay_ms, agreed.max_frame_size) == (0, 0, LIMIT)


def test_an_option_of_both_peers_is_used_and_the_lesser_number_applies() -> None:
    both = negotiate(peer(12, **EAGER), peer(9, **EAGER | {"CacheSize": 300, "MaxFrameSize": Long(900)}))
    assert both == Agreement(9, True, True, True, 200, 900, 5000, 20_000)
    form = both.wire_format()
    assert (form.version, form.is_tight, form.is_cached, form.has_stack_traces) == (9, True, True, True)


@pytest.mark.parametrize("name", ["StackTraceEnabled", "CacheEnabled", "TightEncodingEnabled"])
@pytest.mark.parametrize("value", [False, None])
def test_an_option_that_one_peer_refuses_is_not_used(name: str, value: bool | None) -> None:
    one = peer(12, **EAGER)
    other = peer(12, **EAGER | {name: value})
    attribute = {
        "StackTraceEnabled": "has_stack_traces",
        "CacheEnabled": "is_cached",
        "TightEncodingEnabled": "is_tight",
    }[name]
    assert getattr(negotiate(one, one), attribute)
    assert not getattr(negotiate(one, other), attribute)
    assert not getattr(negotiate(other, one), attribute)


@pytest.mark.parametrize("value", [0, -5])
def test_zero_means_no_limit_of_silence_and_of_frames(value: int) -> None:
    agreed = negotiate(OURS, peer(**EAGER | {"MaxInactivityDuration": Long(value), "MaxFrameSize": Long(value)}))
    assert agreed.inactivity_ms == 0
    assert agreed.max_frame_size == LIMIT


def test_a_peer_without_a_size_check_gets_frames_of_any_size() -> None:
    assert negotiate(OURS, peer(MaxFrameSize=Long(1000), MaxFrameSizeEnabled=False)).max_frame_size == (1 << 63) - 1


def test_no_cache_size_means_the_one_of_java() -> None:
    assert negotiate(peer(**EAGER), peer(**EAGER | {"CacheSize": 0})).cache_size == 16383


def test_later_versions_are_accepted_and_too_early_ones_refused() -> None:
    assert negotiate(OURS, peer(99)).version == 12
    for version in (0, -1):
        with pytest.raises(WireError, match=f"there is no OpenWire {version}"):
            negotiate(OURS, peer(version))


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"MaxFrameSize": "big"}, "MaxFrameSize is 'big'; int expected"),
        ({"CacheSize": True}, "CacheSize is True; int expected"),
        ({"TightEncodingEnabled": 1}, "TightEncodingEnabled is 1; bool expected"),
        ({"Host": 7}, "Host is 7; str expected"),
        ({str(n): 1 for n in range(PROPERTIES_MAX + 1)}, "65 properties, at most 64"),
        ({"x": "y" * PROPERTIES_BYTES_MAX}, "bytes of properties, at most 16384"),
    ],
)
def test_invalid_properties_are_refused(properties: dict[str, Any], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        negotiate(OURS, peer(**properties))


def test_properties_that_are_no_map_are_refused() -> None:
    with pytest.raises(WireError, match="the properties are truncated"):
        negotiate(OURS, WireFormatInfo(version=11, marshalled_properties=b"\0\0\0\1"))


def test_properties_that_we_do_not_know_are_no_matter() -> None:
    assert negotiate(OURS, peer(Unheard=3, MaxFrameSizeEnabled=True)).version == 12


# ---- frames out of a stream: cut anyhow, the same; sizes judged before anything is kept


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def cut(cutter: FrameCutter, pieces: list[bytes]) -> list[bytes]:
    frames = []
    for piece in pieces:
        cutter.feed(piece)
        while (frame := cutter.next_frame()) is not None:
            frames.append(frame if isinstance(frame, bytes) else frame.getvalue())
    return frames


SHORT = st.binary(min_size=1, max_size=20)


@given(st.lists(st.one_of(SHORT, st.builds(mul, SHORT, st.integers(200, 450))), max_size=8), st.data())
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
    (alone,) = cut(FrameCutter(), [frames[0]])
    assert alone is frames[0], "one that came alone is not copied"


def test_an_unfinished_frame_takes_the_memory_of_its_received_bytes() -> None:
    cutter = FrameCutter(1 << 30)
    assert cut(cutter, [struct.pack(">i", 1 << 30), b"abc"]) == []
    assert cutter.pending_bytes == 7


@pytest.mark.parametrize("length", [10, 1_000])
def test_a_collected_frame_takes_little_more_than_its_bytes_and_is_not_copied(length: int) -> None:
    frame = framed(b"x" * (1 << 20))
    cutter = FrameCutter(1 << 30)
    tracemalloc.start()
    try:
        for start in range(0, len(frame), length):
            cutter.feed(frame[start : start + length])
            came = cutter.next_frame()
        assert tracemalloc.get_traced_memory()[1] < 1.25 * len(frame)
    finally:
        tracemalloc.stop()
    assert isinstance(came, BytesIO)
    assert came.getvalue() == frame


@pytest.mark.parametrize("size", [0, -1, -(1 << 31), HANDSHAKE_BYTES_MAX + 1, 0x47455420])  # the last: GET of HTTP
@pytest.mark.parametrize("piece", [1, 2, 4])
def test_a_size_that_breaks_the_limit_is_refused_as_soon_as_it_is_there(size: int, piece: int) -> None:
    prefix = struct.pack(">i", size)
    pieces = [prefix[start : start + piece] for start in range(0, 4, piece)]
    cutter = FrameCutter()
    assert cut(cutter, pieces[:-1]) == []
    with pytest.raises(WireError, match=rf"a frame of {size} bytes; 1 to {HANDSHAKE_BYTES_MAX} are allowed"):
        cut(cutter, pieces[-1:])


@pytest.mark.parametrize("size", [21, HEAD_BYTES_MAX - 4, HEAD_BYTES_MAX - 3, 3 * HEAD_BYTES_MAX])
@pytest.mark.parametrize("piece", [1, 7, 5_000, 1 << 20])
def test_a_frame_beyond_the_limit_is_passed_over_and_its_head_is_given(size: int, piece: int) -> None:
    before, long, behind = framed(b"a"), framed(b"x" * size), framed(b"b")
    stream = before + long + long + behind
    cutter = FrameCutter(20)
    cutter.passes_over = True
    came: list[bytes | tuple[int, bytes]] = []
    for start in range(0, len(stream), piece):
        cutter.feed(stream[start : start + piece])
        frame: bytes | None = b""
        while frame is not None:
            try:
                frame = cutter.next_frame()
                came += [] if frame is None else [frame]
            except FrameTooLong as error:
                came.append((error.size, error.head))
        assert cutter.pending_bytes <= HEAD_BYTES_MAX
    assert came == [before, *[(size, long[:HEAD_BYTES_MAX])] * 2, behind]


@pytest.mark.parametrize("behind", [b"", framed(b"y" * 50_000)[:6_000], framed(b"z" * 300_000)[:100_000]])
def test_a_chunk_of_which_little_is_kept_is_let_go(behind: bytes) -> None:
    """Only the kept bytes count (pending_bytes)."""
    cutter = FrameCutter(200_000)
    cutter.passes_over = True
    chunk = framed(b"x" * 120_000) + behind
    holders = sys.getrefcount(chunk)
    cutter.feed(chunk)
    assert cutter.next_frame() == framed(b"x" * 120_000)
    with suppress(FrameTooLong):
        assert cutter.next_frame() is None
    assert cutter.next_frame() is None
    assert sys.getrefcount(chunk) == holders


def test_the_limit_may_be_raised_between_two_frames_of_one_piece() -> None:
    first, second = framed(b"x"), framed(b"y" * 100_000)
    cutter = FrameCutter()
    cutter.feed(first + second)
    assert cutter.next_frame() == first
    cutter.frame_bytes_max = 100_000
    assert cutter.next_frame() == second
    assert cutter.next_frame() is None
    with pytest.raises(WireError):
        cut(cutter, [framed(b"y" * 100_001)])
