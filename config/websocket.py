"""The table [websocket]: who may connect by WebSocket, and how one that is silent is noticed."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from tandemmq.config.section import Listed, Section
from tandemmq.config.units import Milliseconds, MillisecondsOrNever

ANY: Final = "*"
#: The origin of a page that a browser read from a file.
FROM_A_FILE: Final = "null"


def _origin(text: str) -> str:
    scheme, separator, host = text.partition("://")
    is_origin = bool(separator and host) and scheme in ("http", "https") and not any(each in host for each in "/?#@* ")
    if not is_origin and text not in (ANY, FROM_A_FILE):
        raise ValueError('origins like "https://shop.example" or "http://localhost:3000", "null" or "*"')
    return text.lower()


class WebSocketSettings(Section):
    allowed_origins: Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], Listed] = ()
    """Pages of these sites may connect, beside those of the host that they connect to: `https://shop.example`;
    `null`: pages from files; `*`: any. Programs that are no browser name no site, and may always."""
    hosts: Annotated[tuple[str, ...], Listed] = ()
    """Names with dots by which pages of the same host reach the broker. Addresses, `localhost`, this machine's own
    name, names without dots and those of the connectors are known."""
    handshake_timeout: Milliseconds = Field(10_000, ge=1)
    """So long the HTTP request of a WebSocket may take; then the connection is closed."""
    ping_interval: MillisecondsOrNever = 30_000
    """So often a WebSocket whose client says nothing is asked for a sign of life; who gives none until the next time
    is cut off. 0: never."""
