"""What two peers agree on."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.protocols.openwire.codec import STORED
from tandemmq.broker.protocols.openwire.errors import WireError
from tandemmq.broker.protocols.openwire.frames import HANDSHAKE_BYTES_MAX
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
    assert OURS.version == 11
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
    assert agreed == Agreement(11, False, False, False, 1024, LIMIT, 30_000, 10_000)
    assert agreed.wire_format().is_stored_form


def test_a_peer_without_properties_gets_the_plainest_form_and_no_heart_beats() -> None:
    agreed = negotiate(OURS, vector_info("WireFormatInfo-noProperties"))
    assert (agreed.version, agreed.is_tight, agreed.is_cached, agreed.has_stack_traces) == (9, False, False, False)
    assert (agreed.inactivity_ms, agreed.initial_delay_ms, agreed.max_frame_size) == (0, 0, LIMIT)


def test_what_both_want_they_do_and_the_lesser_number_holds() -> None:
    both = negotiate(peer(12, **EAGER), peer(9, **EAGER | {"CacheSize": 300, "MaxFrameSize": Long(900)}))
    assert both == Agreement(9, True, True, True, 200, 900, 5000, 20_000)
    form = both.wire_format()
    assert (form.version, form.is_tight, form.is_cached, form.has_stack_traces) == (9, True, True, True)


@pytest.mark.parametrize("name", ["StackTraceEnabled", "CacheEnabled", "TightEncodingEnabled"])
@pytest.mark.parametrize("value", [False, None])
def test_what_one_does_not_want_neither_does(name: str, value: bool | None) -> None:
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
def test_who_says_0_watches_for_no_silence_and_limits_no_frame(value: int) -> None:
    agreed = negotiate(OURS, peer(**EAGER | {"MaxInactivityDuration": Long(value), "MaxFrameSize": Long(value)}))
    assert agreed.inactivity_ms == 0
    assert agreed.max_frame_size == LIMIT


def test_no_cache_size_means_the_one_of_java() -> None:
    assert negotiate(peer(**EAGER), peer(**EAGER | {"CacheSize": 0})).cache_size == 16383


def test_later_versions_are_accepted_and_too_early_ones_refused() -> None:
    assert negotiate(OURS, peer(99)).version == 11
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
def test_properties_that_nobody_may_say_are_refused(properties: dict[str, Any], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        negotiate(OURS, peer(**properties))


def test_properties_that_are_no_map_are_refused() -> None:
    with pytest.raises(WireError, match="the properties are truncated"):
        negotiate(OURS, WireFormatInfo(version=11, marshalled_properties=b"\0\0\0\1"))


def test_properties_that_we_do_not_know_are_no_matter() -> None:
    assert negotiate(OURS, peer(Unheard=3, MaxFrameSizeEnabled=True)).version == 11
