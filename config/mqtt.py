"""The tables [mqtt] (limits for its clients) and [websocket] (allowed clients, and the detection of silent ones).
Options of a connector are in its URI.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from tandemmq.config.section import AnyCase, Bytes, Count, Listed, Milliseconds, MillisecondsOrNever, Section

#: Range of both values: two bytes (MQTT 5, 3.2.2.3).
TWO_BYTES_MAX: Final = 65_535


class MqttSettings(Section):
    max_session_expiry_interval: Milliseconds | None = None
    """Longest time that a session is kept while its client is away. Default: as long as the client requests; with MQTT
    3.1.1 without end."""
    retained_messages_max: Count = 100_000
    """Maximum number of topics with a retained message. For a further topic the message is sent, but not retained."""
    retained_bytes_max: Bytes = 64 << 20
    """Maximum bytes of all retained messages. With their overhead they also take at most a quarter of
    `broker.memory_limit`."""
    receive_maximum: Count = Field(1_024, ge=1, le=TWO_BYTES_MAX)
    """Maximum number of unconfirmed messages of QoS 1 and 2 that an MQTT 5 client can send."""
    topic_alias_maximum: Count = Field(16, ge=0, le=TWO_BYTES_MAX)
    """Maximum number of topic aliases of an MQTT 5 client; 0: none."""
    refused_publish: Annotated[Literal["close", "acknowledge"], AnyCase] = "close"
    """Reaction when a message of an MQTT 3.1 or 3.1.1 client is refused, for example for missing rights. `close`:
    the connection ends. `acknowledge`: the message is dropped and confirmed, as in ActiveMQ, so a client that repeats
    it stays connected. Both are logged."""
    sys_interval: MillisecondsOrNever = 10_000
    """Interval of the figures on topics below `$SYS/`; 0: none."""


ANY: Final = "*"
#: Origin of a page that a browser read from a file.
FROM_A_FILE: Final = "null"


def _origin(text: str) -> str:
    scheme, separator, host = text.partition("://")
    is_origin = bool(separator and host) and scheme in ("http", "https") and not any(each in host for each in "/?#@* ")
    if not is_origin and text not in (ANY, FROM_A_FILE):
        raise ValueError('origins like "https://shop.example" or "http://localhost:3000", "null" or "*"')
    return text.lower()


class WebSocketSettings(Section):
    allowed_origins: Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], Listed] = ()
    """Sites whose pages can connect, besides those of the host itself: `https://shop.example`; `null`: pages from
    files; `*`: all. Programs that are not browsers can always connect."""
    hosts: Annotated[tuple[str, ...], Listed] = ()
    """Additional host names with dots by which pages of the same host reach the broker. Addresses, `localhost`, this
    machine's name, names without a dot and those of connectors are always allowed."""
    handshake_timeout: Milliseconds = Field(10_000, ge=1)
    """Time for the HTTP request of a WebSocket. After it, the connection is closed."""
    ping_interval: MillisecondsOrNever = 30_000
    """Silence after which the broker pings a WebSocket. If no answer comes within the same time, the connection is
    closed. 0: no pings."""
