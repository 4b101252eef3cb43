"""Host names of this broker: a check against DNS rebinding, where a foreign site lets its own host name resolve to this
broker."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit


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
