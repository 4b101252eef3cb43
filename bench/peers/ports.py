"""Loopback ports for servers that a bench or a test starts."""

from __future__ import annotations

import random
import socket

# Below what Linux gives to outgoing connections by itself (ip_local_port_range: 32768 to 60999). A port
# from that range may have become some client's own before the server that it was chosen for has bound it.
FIRST_PORT = 12_000
LAST_PORT = 32_000
_TRIES_MAX = 1_000

# Not the seeded `random`: two runs with the same seed, side by side, would choose the same ports.
_chosen_by = random.SystemRandom()
_given: set[int] = set()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now; no two calls in one process give the same.

    Raises OSError when no port of the range can be had.
    """
    for _ in range(_TRIES_MAX):
        port = _chosen_by.randint(FIRST_PORT, LAST_PORT)
        if port not in _given and _can_be_bound(port):
            _given.add(port)
            return port
    raise OSError(f"no free port of 127.0.0.1 among {FIRST_PORT} to {LAST_PORT}: tried {_TRIES_MAX} times")


def _can_be_bound(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
