"""Agreement of two peers before the first command: the contents of WireFormatInfo, and the terms of a connection. Pure.

    properties = primitive map of the names below      (openwire.md 2.3)

Both sides send a WireFormatInfo immediately. It is not confirmed: both sides compute the same agreement from the two
that were sent, and use it from the next frame on. The broker requests loose frames without cache, in the newest
version, so that a message's bytes are the same on the wire and in the journal (RAW_VERSIONS); and a feature is used
only if both want it. Only in version 12 does a 6.x client convert the names of exceptions (errors.py).

Then the broker sends a BrokerInfo without a request, because a Java client waits for the broker's id before its first
XA transaction, without a time limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tandemmq.broker.protocols.openwire.codec import CACHE_SIZE_DEFAULT, STORED, WireFormat
from tandemmq.broker.protocols.openwire.errors import WireError
from tandemmq.broker.protocols.openwire.schema import BrokerInfo, WireFormatInfo
from tandemmq.broker.protocols.openwire.types import VERSION_MAX, BrokerId
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.properties import Long, decode_properties, encode_properties

INACTIVITY_MS = 30_000
INITIAL_DELAY_MS = 10_000
# Java's encoder never ends its sweep of a cache smaller than 100; this is its default.
CACHE_SIZE = 1024

PROPERTIES_MAX = 64  # limit of newer Java readers
PROPERTIES_BYTES_MAX = 16 * 1024

FRAME_BYTES_MAX = 100 * 1024 * 1024
# Bytes of a MessageDispatch beside its message: names and ids. Thus a message of the maximum size can also be
# delivered.
DISPATCH_BYTES = 64 * 1024

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


# ---- the broker's part


class Terms(NamedTuple):
    """Terms of one connection. Intervals in milliseconds, 0: none. A frame to the client has at most
    ``dispatch_bytes_max`` bytes.

    A client that is silent for ``receive_interval_ms`` is disconnected. A client need not send anything before
    ``initial_delay_ms``.
    """

    wire_format: WireFormat
    dispatch_bytes_max: int
    send_interval_ms: int
    receive_interval_ms: int
    initial_delay_ms: int


class Greeting:
    """Greeting of all connections of one connector. ``broker_id`` stays the same for the life of the store.

    ``failover_uris`` are those of all brokers of a pair or set; clients with a failover transport learn them. Its owner
    may change it.
    """

    __slots__ = ("_info", "broker_info", "failover_uris", "frame_bytes_max", "steals_links", "wire_format_info")

    def __init__(
        self,
        broker_name: str,
        broker_id: str,
        broker_url: str,
        *,
        provider_version: str = "",
        frame_bytes_max: int = FRAME_BYTES_MAX,
        inactivity_ms: int = INACTIVITY_MS,
        initial_delay_ms: int = INITIAL_DELAY_MS,
        failover_uris: Sequence[str] = (),
        steals_links: bool = False,
    ) -> None:
        self.failover_uris = failover_uris
        self.steals_links = steals_links
        self.frame_bytes_max = frame_bytes_max
        self._info = our_info(
            max_frame_size=min(frame_bytes_max + DISPATCH_BYTES, LONG_MAX),
            provider_version=provider_version,
            inactivity_ms=inactivity_ms,
            initial_delay_ms=initial_delay_ms,
        )
        self.wire_format_info = STORED.encode(self._info)
        self.broker_info = BrokerInfo(
            broker_id=BrokerId(broker_id), broker_name=broker_name, broker_url=broker_url, peer_broker_infos=()
        )

    def agree(self, theirs: WireFormatInfo) -> Terms:
        """Return the terms with a client. Raises WireError if no version is supported by both."""
        agreement = negotiate(self._info, theirs)
        silence = agreement.inactivity_ms
        # AbstractInactivityMonitor: three signs of life within the time after which a silent connection ends.
        interval = silence // 3 if silence > 3 else silence
        delay = agreement.initial_delay_ms if silence else 0
        return Terms(agreement.wire_format(), agreement.max_frame_size, interval, silence, delay)
