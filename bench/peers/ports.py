"""Loopback ports for servers that a bench or a test starts."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

# Below what Linux gives to outgoing connections by itself (ip_local_port_range: 32768 to 60999). A port
# from that range may have become some client's own before the server that it was chosen for has bound it.
FIRST_PORT = 12_000
LAST_PORT = 32_000
_TRIES_MAX = 1_000

# Not the seeded `random`: two runs with the same seed, side by side, would choose the same ports.
_chosen_by = random.SystemRandom()
_given: set[int] = set()
# Byte N is locked by the process that was given port N, until that process ends: between a choice and the bind of the
# server that it was made for, nothing else says that the port is taken. Opened once: closing would end all locks.
_reservations = os.open(Path(tempfile.gettempdir(), f"tandemmq-ports-{os.geteuid()}"), os.O_RDWR | os.O_CREAT, 0o600)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now; no two calls give the same, in this process or in another of this
    user that runs at the same time.

    Raises OSError when no port of the range can be had.
    """
    for _ in range(_TRIES_MAX):
        port = _chosen_by.randint(FIRST_PORT, LAST_PORT)
        # Reserved first: a probe must not hold a port at the moment at which the server of another binds it.
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
