"""Agreement of two peers before the first command: the contents of WireFormatInfo.

    properties = primitive map of the names below      (openwire.md 2.3)

A WireFormatInfo is not confirmed: both sides compute the same agreement from the two that were sent, and use
it from the next frame on. The broker requests loose frames without cache, in the newest version, so that a message's
bytes are the same on the wire and in the journal (RAW_VERSIONS); and a feature is used only if both want it. Only in
version 12 does a 6.x client convert the names of exceptions (faults.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tandemmq.broker.protocols.openwire.codec import CACHE_SIZE_DEFAULT, WireFormat
from tandemmq.broker.protocols.openwire.errors import WireError
from tandemmq.broker.protocols.openwire.schema import WireFormatInfo
from tandemmq.broker.protocols.openwire.types import VERSION_MAX
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.properties import Long, decode_properties, encode_properties

INACTIVITY_MS = 30_000
INITIAL_DELAY_MS = 10_000
# Java's encoder never ends its sweep of a cache smaller than 100; this is its default.
CACHE_SIZE = 1024

PROPERTIES_MAX = 64  # limit of newer Java readers
PROPERTIES_BYTES_MAX = 16 * 1024

LONG_MAX = (1 << 63) - 1

# name -> type of its value; the rest is information
_TYPES: dict[str, type] = {
    "StackTraceEnabled": bool,
    "TcpNoDelayEnabled": bool,
    "CacheEnabled": bool,
    "TightEncodingEnabled": bool,
    "SizePrefixDisabled": bool,
    "CacheSize": int,
    "MaxInactivityDuration": int,
    "MaxInactivityDurationInitalDelay": int,
    "MaxFrameSize": int,
    "MaxFrameSizeEnabled": bool,
    "Host": str,
    "ProviderName": str,
    "ProviderVersion": str,
    "PlatformDetails": str,
}


def our_info(
    *,
    max_frame_size: int,
    provider_version: str,
    version: int = VERSION_MAX,
    inactivity_ms: int = INACTIVITY_MS,
    initial_delay_ms: int = INITIAL_DELAY_MS,
) -> WireFormatInfo:
    """Return a broker's first command. ``max_frame_size``: of frames that it writes; ``inactivity_ms`` 0: no
    heart-beats."""
    # The types are fixed: Java casts.
    properties: dict[str, Any] = {
        "StackTraceEnabled": False,
        "TcpNoDelayEnabled": True,
        "CacheEnabled": False,
        "TightEncodingEnabled": False,
        "SizePrefixDisabled": False,
        "CacheSize": CACHE_SIZE,
        "MaxInactivityDuration": Long(inactivity_ms),
        "MaxInactivityDurationInitalDelay": Long(initial_delay_ms),
        "MaxFrameSize": Long(max_frame_size),
        "ProviderName": "TandemMQ",
        "ProviderVersion": provider_version,
    }
    return WireFormatInfo(version=version, marshalled_properties=encode_properties(properties))


def properties_of(info: WireFormatInfo) -> dict[str, Any]:
    """Return the properties of a WireFormatInfo, all but its version. Raises WireError for values that are not allowed
    there."""
    data = info.marshalled_properties
    if data is None:
        return {}
    if len(data) > PROPERTIES_BYTES_MAX:
        raise WireError(f"WireFormatInfo has {len(data)} bytes of properties, at most {PROPERTIES_BYTES_MAX}")
    try:
        found = decode_properties(data)
    except RecordDamaged as error:
        raise WireError(f"WireFormatInfo: {error}") from None
    if len(found) > PROPERTIES_MAX:
        raise WireError(f"WireFormatInfo has {len(found)} properties, at most {PROPERTIES_MAX}")
    for name, value in found.items():
        expected = _TYPES.get(name)
        if expected is None or value is None:
            continue
        # A bool is an int in Python, but not in Java.
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is int):
            raise WireError(f"WireFormatInfo: {name} is {value!r:.80}; {expected.__name__} expected")
    return found


class Agreement(NamedTuple):
    """Terms for both directions. ``inactivity_ms`` 0: a peer may stay silent. ``max_frame_size``: of frames that the
    peer reads; it may switch that check off (MaxFrameSizeEnabled)."""

    version: int
    is_tight: bool
    is_cached: bool
    has_stack_traces: bool
    cache_size: int
    max_frame_size: int
    inactivity_ms: int
    initial_delay_ms: int

    def wire_format(self) -> WireFormat:
        """Return the wire format for one connection: it holds that connection's caches."""
        return WireFormat(
            self.version,
            is_tight=self.is_tight,
            is_cached=self.is_cached,
            has_stack_traces=self.has_stack_traces,
            cache_size=self.cache_size,
        )


def negotiate(ours: WireFormatInfo, theirs: WireFormatInfo) -> Agreement:
    """Return the agreement from both infos (OpenWireFormat.renegotiateWireFormat). Raises WireError where there is
    none."""
    if theirs.version < 1:
        raise WireError(f"WireFormatInfo: there is no OpenWire {theirs.version}")
    mine, peers = properties_of(ours), properties_of(theirs)

    def both(name: str) -> bool:
        return bool(mine.get(name) and peers.get(name))

    def least(name: str, otherwise: int) -> int:
        """Return the least of both values; absent values, and those that are not positive, do not count."""
        return min((value for value in (mine.get(name) or 0, peers.get(name) or 0) if value > 0), default=otherwise)

    def least_or_off(name: str) -> int:
        """Return the least of both values; 0 or None switches the feature off."""
        return max(min(mine.get(name) or 0, peers.get(name) or 0), 0)

    return Agreement(
        version=min(ours.version, theirs.version, VERSION_MAX),
        is_tight=both("TightEncodingEnabled"),
        is_cached=both("CacheEnabled"),
        has_stack_traces=both("StackTraceEnabled"),
        cache_size=least_or_off("CacheSize") or CACHE_SIZE_DEFAULT,
        max_frame_size=LONG_MAX if peers.get("MaxFrameSizeEnabled") is False else least("MaxFrameSize", LONG_MAX),
        inactivity_ms=least_or_off("MaxInactivityDuration"),
        initial_delay_ms=least_or_off("MaxInactivityDurationInitalDelay"),
    )
