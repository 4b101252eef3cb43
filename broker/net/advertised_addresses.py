"""Addresses of all brokers, which are advertised to OpenWire clients: set by the operator, otherwise advertised by the
members of the set."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tandemmq.config.addresses import OPENWIRE, SCHEMES, Address
from tandemmq.config.addresses import advertised as read_advertised

_LOOPBACK: Final = ("127.", "localhost", "::1")


def is_everywhere(host: str) -> bool:
    """Return whether the host is a wildcard (all interfaces), which cannot be advertised."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether the host is a loopback address, with which a client connects to its own machine."""
    return host.startswith(_LOOPBACK)


def advertised_address(address: Address, advertised: str | None, hostname: str) -> Address:
    """Return the advertised address of the connector at ``address``: ``advertised`` if the operator set it, otherwise
    ``address``, with ``hostname`` in place of a wildcard."""
    if advertised is not None:
        return read_advertised(advertised)
    return Address(hostname, address.port) if is_everywhere(address.host) else address


class MemberConnectors(NamedTuple):
    """Host of a member of a set and the addresses where its clients connect, as the member advertises them."""

    host: str
    connectors: tuple[str, ...]


class AdvertisedAddresses:
    """Advertised addresses of all brokers. Connectors refer to the lists ``plain`` and ``tls``, which change in place.
    On the loop.

    ``configured``: broker.failover_uris. If it is not empty, the lists do not change.
    """

    def __init__(self, configured: Sequence[str]) -> None:
        self.plain: list[str] = list(configured)
        self.tls: list[str] = list(configured)
        self._is_configured = bool(configured)
        self._known: dict[str, MemberConnectors] = {}

    def update(self, voters: Iterable[str], members: Mapping[str, MemberConnectors]) -> bool:
        """Update the lists. ``voters``: store ids of all members; ``members``: the connectors of the reachable ones, by
        store id. Return whether the lists changed. The addresses of a member that is not reachable stay in the lists,
        because it may return."""
        if self._is_configured:
            return False
        known = {**self._known, **members}
        self._known = {store: known[store] for store in sorted(voters) if store in known}
        if len(self._known) < 2:
            return False
        plain, tls = (list(_urls(self._known.values(), is_tls=is_tls)) for is_tls in (False, True))
        if (plain, tls) == (self.plain, self.tls):
            return False
        self.plain[:], self.tls[:] = plain, tls
        return True


def _urls(members: Iterable[MemberConnectors], *, is_tls: bool) -> Iterable[str]:
    for member in members:
        is_on_loopback = is_loopback(member.host)
        for connector in member.connectors:
            parts = urlsplit(connector)
            if SCHEMES.get(parts.scheme) != (OPENWIRE, is_tls):
                continue
            if is_on_loopback or not is_loopback(parts.hostname or ""):
                yield f"{'ssl' if is_tls else 'tcp'}://{parts.netloc}"
