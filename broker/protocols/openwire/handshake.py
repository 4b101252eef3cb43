"""Greeting of a broker to every OpenWire client, and the terms that follow from both greetings. Pure.

Both sides send a WireFormatInfo immediately, and use the terms that both allow. Then the broker sends a BrokerInfo
without a request, because a Java client waits for the broker's id before its first XA transaction, without a time
limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tandemmq.broker.protocols.openwire.codec import STORED, WireFormat
from tandemmq.broker.protocols.openwire.schema import BrokerInfo, WireFormatInfo
from tandemmq.broker.protocols.openwire.types import BrokerId
from tandemmq.broker.protocols.openwire.wireformat import INACTIVITY_MS, INITIAL_DELAY_MS, LONG_MAX, negotiate, our_info

FRAME_BYTES_MAX = 100 * 1024 * 1024
# Bytes of a MessageDispatch beside its message: names and ids. Thus a message of the maximum size can also be
# delivered.
DISPATCH_BYTES = 64 * 1024


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
