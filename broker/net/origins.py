"""Of which sites the pages may connect by WebSocket, where a browser asks nobody else (RFC 6455, 10.2)."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from tandemmq.broker.net.known_hosts import KnownHosts, name_of
from tandemmq.config.websocket import ANY


class Origins:
    """``allowed``: sites, as browsers name them, beside those on the host that is asked; ``hosts``: its names."""

    __slots__ = ("_allowed", "_hosts")

    def __init__(self, allowed: Iterable[str] = (), hosts: Iterable[str] = ()) -> None:
        self._allowed = frozenset(origin.lower() for origin in allowed)
        self._hosts = KnownHosts(hosts)

    def may(self, origin: str | None, host: str) -> bool:
        """Whether the request with these headers may. Who names no site is no browser's page."""
        if origin is None or ANY in self._allowed or origin.lower() in self._allowed:
            return True
        try:
            site = urlsplit(origin)
            name = site.hostname
        except ValueError:
            return False
        return site.scheme in ("http", "https") and name == name_of(host) and self._hosts.knows(host)
