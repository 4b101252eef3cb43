"""Names by which this broker is reached, against pages whose own name was made to lead here (DNS rebinding)."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit


class KnownHosts:
    """Addresses, ``localhost``, this machine's name, names without a dot, and ``names``."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in names)}

    def knows(self, host: str) -> bool:
        """Return whether the header Host, with or without a port, names this broker."""
        name = name_of(host)
        try:
            ip_address(name.partition("%")[0])
        except ValueError:
            return name in self._names or bool(name and "." not in name)
        return True


def name_of(host: str) -> str:
    """Return the name or address in a Host, in lower case; "": there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
