"""Checks of the web pages that may use this broker: the host name that a page requests, and the site that it is from.

A foreign site may let its own host name resolve to this broker (DNS rebinding), so the requested host must be a name of
this broker. Browsers leave the check of the site to the server of a WebSocket (RFC 6455, 10.2).
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from tandemmq.config.mqtt import ANY


class KnownHosts:
    """Host names of this broker: all IP addresses, ``localhost``, this machine's name, names without a dot, and
    ``names``."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in names)}

    def knows(self, host: str) -> bool:
        """Return whether ``host`` (a Host header, with or without a port) is a name of this broker."""
        name = name_of(host)
        try:
            ip_address(name.partition("%")[0])
        except ValueError:
            return name in self._names or bool(name and "." not in name)
        return True


def name_of(host: str) -> str:
    """Return the name or address in a Host header, in lower case; "": there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class Origins:
    """Sites whose pages may connect by WebSocket. ``allowed``: origins that are permitted in addition to pages
    of the requested host; ``hosts``: host names of this broker."""

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
