"""Loopback ports for servers that a bench or a test starts."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

# Below the range of outgoing connections (ip_local_port_range: 32768 to 60999). A client may have been given a port of
# that range before the server that it was chosen for has bound it.
FIRST_PORT = 12_000
LAST_PORT = 32_000
_TRIES_MAX = 1_000

# Not the seeded `random`: two runs with the same seed, side by side, would choose the same ports.
_chosen_by = random.SystemRandom()
_given: set[int] = set()
# Byte N is locked by the process that was given port N, until that process ends: between the choice of a port and the
# bind by its server, nothing else marks the port as taken. Opened once: closing would release all locks.
_reservations = os.open(Path(tempfile.gettempdir(), f"tandemmq-ports-{os.geteuid()}"), os.O_RDWR | os.O_CREAT, 0o600)


def free_port() -> int:
    """Return a port of 127.0.0.1 that is not in use; no two calls give the same, in this process or in a concurrent one
    of this user.

    Raises OSError when no port of the range is free.
    """
    for _ in range(_TRIES_MAX):
        port = _chosen_by.randint(FIRST_PORT, LAST_PORT)
        # Reserved first: a probe must not hold a port at the moment at which another server binds it.
        if port not in _given and _reserve(port) and _can_be_bound(port):
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


def _reserve(port: int) -> bool:
    try:
        fcntl.lockf(_reservations, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True
