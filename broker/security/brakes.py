"""What slows down who guesses passwords: failures are counted by the address they come from. Pure; time is passed in.

Of IPv6 the network of 64 bits counts as one address: that much anybody has.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from ipaddress import IPv6Address, ip_address
from typing import Final

WINDOW_SECONDS: Final = 60.0
#: Addresses that are remembered; the one that failed longest ago is forgotten first.
ADDRESSES_MAX: Final = 10_000
#: Logins of one address that may be looked into at the same time.
TRIES_MAX: Final = 100


class Brakes:
    """Logins that failed, and those that are looked into, by address."""

    def __init__(self, failures_max: int) -> None:
        self._failures_max = failures_max
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._tries: dict[str, int] = {}

    def holds(self, host: str, now: float) -> bool:
        """Whether logins from there are refused unread."""
        address = network(host)
        if self._tries.get(address, 0) >= TRIES_MAX:
            return True
        failures = self._failures.get(address)
        if failures is None:
            return False
        while failures and now - failures[0] >= WINDOW_SECONDS:
            failures.popleft()
        if not failures:
            del self._failures[address]
        return len(failures) >= self._failures_max

    def begun(self, host: str) -> None:
        """A login from there is looked into; ``ended`` is to follow."""
        address = network(host)
        self._tries[address] = self._tries.get(address, 0) + 1

    def ended(self, host: str) -> None:
        address = network(host)
        tries = self._tries[address] - 1
        if tries:
            self._tries[address] = tries
        else:
            del self._tries[address]

    def failed(self, host: str, now: float) -> None:
        address = network(host)
        # More than that many are not needed to know that it is too many.
        self._failures.setdefault(address, deque(maxlen=self._failures_max)).append(now)
        self._failures.move_to_end(address)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)


def network(host: str) -> str:
    """What counts as one address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"
