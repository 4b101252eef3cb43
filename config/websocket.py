"""The table [websocket]: allowed clients of WebSocket, and the detection of silent ones."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from tandemmq.config.section import Listed, Section
from tandemmq.config.units import Milliseconds, MillisecondsOrNever

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
