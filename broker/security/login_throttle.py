"""Throttle against password guessing: it counts failed logins by address and name.

So a guesser, or a program with an old password, does not lock out other clients with the same address. Failures of very
many names stop all unknown logins of an address. The first 64 bits of an IPv6 address count as one address, because one
client may use all addresses of such a network. Pure; time is passed in.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from ipaddress import IPv6Address, ip_address
from typing import Final

WINDOW_SECONDS: Final = 60.0
#: Maximum number of remembered addresses, and of names at addresses. The one whose last failure is the oldest is
#: forgotten first.
REMEMBERED_MAX: Final = 20_000
#: Permitted failures of one address, as a multiple of the permitted failures of one name at an address.
NAMES_FACTOR: Final = 20
#: Maximum number of logins of one address, and of one name at an address, that are checked at the same time.
TRIES_MAX: Final = 100
TRIES_OF_NAME_MAX: Final = 10

_Place = tuple[str, bytes | None]


class LoginThrottle:
    """Failed logins and logins in progress, by address and by name at an address."""

    def __init__(self, failures_max: int) -> None:
        self._failures_max = failures_max
        self._failures: OrderedDict[_Place, deque[float]] = OrderedDict()
        self._tries: dict[_Place, int] = {}
        self._given_up: OrderedDict[_Place, float] = OrderedDict()

    def holds(self, host: str, login: str, now: float, *, is_known: bool = False) -> bool:
        """Return whether logins of that name from that address are refused without a check. ``is_known``: the name has
        logged in from this address before, so only its own limits apply, not those of the address."""
        for place in _places(host, login):
            is_name = place[1] is not None
            if is_known and not is_name:  # prove: others-there-hold-back-no-known-login
                continue
            if self._tries.get(place, 0) >= (TRIES_OF_NAME_MAX if is_name else TRIES_MAX):
                return True
            if self._failed_lately(place, now) >= self._failures_max * (1 if is_name else NAMES_FACTOR):
                return True
        return False

    def has_tried(self, host: str, login: str, now: float) -> bool:
        """Return whether a login of this name from this host is being checked, or failed or was given up in the last
        WINDOW_SECONDS."""
        place = _places(host, login)[0]
        given_up = self._given_up.get(place)
        # prove: who-was-given-up-waits-with-others " or (given_up is not None and now - given_up < WINDOW_SECONDS)"
        is_given_up = place in self._tries or (given_up is not None and now - given_up < WINDOW_SECONDS)
        return is_given_up or self._failed_lately(place, now) > 0

    def given_up(self, host: str, login: str, now: float) -> None:
        """Record that a login was given up without a check."""
        place = _places(host, login)[0]
        self._given_up[place] = now
        self._given_up.move_to_end(place)
        if len(self._given_up) > REMEMBERED_MAX:
            self._given_up.popitem(last=False)

    def _failed_lately(self, place: _Place, now: float) -> int:
        failures = self._failures.get(place)
        if failures is None:
            return 0
        while failures and now - failures[0] >= WINDOW_SECONDS:
            failures.popleft()
        if not failures:
            del self._failures[place]
        return len(failures)

    def begun(self, host: str, login: str) -> None:
        """Record that the check of a login begins. Call ``ended`` when it ends."""
        for place in _places(host, login):
            self._tries[place] = self._tries.get(place, 0) + 1

    def ended(self, host: str, login: str) -> None:
        for place in _places(host, login):
            tries = self._tries[place] - 1
            if tries:
                self._tries[place] = tries
            else:
                del self._tries[place]

    def failed(self, host: str, login: str, now: float) -> None:
        for place in _places(host, login):
            # More failures than the limit need not be stored.
            most = self._failures_max * (1 if place[1] is not None else NAMES_FACTOR)
            self._failures.setdefault(place, deque(maxlen=most)).append(now)
            self._failures.move_to_end(place)
            if len(self._failures) > REMEMBERED_MAX:
                self._failures.popitem(last=False)


def _places(host: str, login: str) -> tuple[_Place, _Place]:
    """Return the keys of the counts: the address with a digest of the name (names may be long), and the address
    alone."""
    address = network(host)
    return (address, hashlib.blake2b(login.encode("utf-8", "surrogatepass"), digest_size=16).digest()), (address, None)


def network(host: str) -> str:
    """Return the part of an address that counts as one address: of IPv6 the network of 64 bits."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"
