"""A client that sends single bytes without an end."""

from __future__ import annotations

import socket


def is_let_drip(client: socket.socket, byte: bytes) -> bool:
    """Send one ``byte`` every 0.1 s for 15 s; return False if the broker closes the connection before."""
    client.settimeout(0.1)
    for _ in range(150):
        try:
            if not client.recv(1 << 16):
                return False
        except TimeoutError:
            pass
        except ConnectionError:
            return False
        try:
            client.sendall(byte)
        except ConnectionError:
            return False
    return True
