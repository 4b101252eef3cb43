"""Addresses where OpenWire clients find all brokers: as the operator set them, else as the members of the set
advertise."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tandemmq.config.addresses import OPENWIRE, SCHEMES, Address
from tandemmq.config.addresses import advertised as read_advertised

_LOOPBACK: Final = ("127.", "localhost", "::1")


def is_everywhere(host: str) -> bool:
    """Return whether the host stands for all interfaces, so that it is no address to advertise."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether the host leads a client on another machine to that machine itself."""
    return host.startswith(_LOOPBACK)


def told_address(address: Address, advertised: str | None, hostname: str) -> Address:
    """Return the address by which others reach the connector at ``address``: the one that the operator set, else the
    address itself, with ``hostname`` in place of one of all interfaces."""
    if advertised is not None:
        return read_advertised(advertised)
    return Address(hostname, address.port) if is_everywhere(address.host) else address


class MemberConnectors(NamedTuple):
    """Host of a member of a set and the addresses where its clients connect, as the member advertises them."""

    host: str
    connectors: tuple[str, ...]


class ToldAddresses:
    """``plain`` and ``tls`` are lists that connectors hold; they change in place. On the loop.

    ``said``: broker.failover_uris; where there are some, they stay.
    """

    def __init__(self, said: Sequence[str]) -> None:
        self.plain: list[str] = list(said)
        self.tls: list[str] = list(said)
        self._is_said = bool(said)
        self._known: dict[str, MemberConnectors] = {}

    def take(self, voters: Iterable[str], members: Mapping[str, MemberConnectors]) -> bool:
        """Take the members that are there now, and the ids of all that count, by store id; return whether that changes
        what is advertised to clients. A member that is away keeps its place: it comes back, and clients may try it
        meanwhile."""
        if self._is_said:
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
