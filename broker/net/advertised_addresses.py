"""Addresses of all brokers, which are advertised to clients of OpenWire and AMQP: set by the operator, otherwise
advertised by the members of the set."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tandemmq.config.addresses import AMQP, OPENWIRE, SCHEMES, WEBSOCKET, Address
from tandemmq.config.addresses import advertised as read_advertised

_LOOPBACK: Final = ("127.", "localhost", "::1")
# Schemes of clients, by the protocol of a connector and whether it uses TLS. Of the clients that use WebSocket, only
# those of AMQP get addresses.
_OF_CLIENTS: Final = {
    (OPENWIRE, False): "tcp",
    (OPENWIRE, True): "ssl",
    (AMQP, False): "amqp",
    (AMQP, True): "amqps",
    (WEBSOCKET, False): "amqpws",
    (WEBSOCKET, True): "amqpwss",
}
_AMQP_SCHEMES: Final = tuple([scheme for (protocol, _), scheme in _OF_CLIENTS.items() if protocol != OPENWIRE])


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
    """Advertised addresses of all brokers. Connectors refer to the lists that ``of`` returns, which change in place. On
    the loop.

    ``configured``: broker.failover_uris. If it is not empty, the lists do not change.
    """

    def __init__(self, configured: Sequence[str]) -> None:
        self._lists = {kind: _chosen(configured, scheme) for kind, scheme in _OF_CLIENTS.items()}
        self._is_configured = bool(configured)
        self._known: dict[str, MemberConnectors] = {}

    def of(self, protocol: str, *, is_tls: bool) -> list[str]:
        """Return the addresses for clients of connectors with that protocol."""
        return self._lists[protocol, is_tls]

    def update(self, voters: Iterable[str], members: Mapping[str, MemberConnectors]) -> bool:
        """Update the lists. ``voters``: store ids of all members; ``members``: the connectors of the reachable ones, by
        store id. Return whether lists of OpenWire changed: only its clients are informed after they connected. The
        addresses of a member that is not reachable stay in the lists, because it may return."""
        if self._is_configured:
            return False
        known = {**self._known, **members}
        self._known = {store: known[store] for store in sorted(voters) if store in known}
        if len(self._known) < 2:
            return False
        changed = {kind: list(_urls(self._known.values(), kind)) for kind in self._lists}
        is_news = any(changed[OPENWIRE, is_tls] != self._lists[OPENWIRE, is_tls] for is_tls in (False, True))
        for kind, urls in changed.items():
            self._lists[kind][:] = urls
        return is_news


def _chosen(configured: Sequence[str], scheme: str) -> list[str]:
    """Return the addresses for clients with that scheme. Those of OpenWire are for all of its clients."""
    schemes = {each: each.partition("://")[0] for each in configured}
    if scheme in ("tcp", "ssl"):
        return [each for each in configured if schemes[each] not in _AMQP_SCHEMES]
    return [each for each in configured if schemes[each] == scheme]


def _urls(members: Iterable[MemberConnectors], kind: tuple[str, bool]) -> Iterable[str]:
    for member in members:
        is_on_loopback = is_loopback(member.host)
        for connector in member.connectors:
            parts = urlsplit(connector)
            if SCHEMES.get(parts.scheme) != kind:
                continue
            if is_on_loopback or not is_loopback(parts.hostname or ""):
                yield f"{_OF_CLIENTS[kind]}://{parts.netloc}"
