"""Check of the sites whose pages may connect by WebSocket. Browsers leave this check to the server (RFC 6455, 10.2)."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from tandemmq.broker.net.known_hosts import KnownHosts, name_of
from tandemmq.config.websocket import ANY


class Origins:
    """Permitted sites. ``allowed``: origins that are permitted in addition to pages of the requested host; ``hosts``:
    host names of this broker."""

    __slots__ = ("_allowed", "_hosts")

    def __init__(self, allowed: Iterable[str] = (), hosts: Iterable[str] = ()) -> None:
        self._allowed = frozenset(origin.lower() for origin in allowed)
        self._hosts = KnownHosts(hosts)

    def may(self, origin: str | None, host: str) -> bool:
        """Return whether a request with these headers may connect. A request without an origin does not come from a web
        page."""
        if origin is None or ANY in self._allowed or origin.lower() in self._allowed:
            return True
        try:
            site = urlsplit(origin)
            name = site.hostname
        except ValueError:
            return False
        return site.scheme in ("http", "https") and name == name_of(host) and self._hosts.knows(host)
