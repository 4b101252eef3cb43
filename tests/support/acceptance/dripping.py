"""A client that says what it has to say a byte at a time, without an end."""

from __future__ import annotations

import socket


def is_let_drip(client: socket.socket, byte: bytes) -> bool:
    """Whether the broker listens to one ``byte`` each 0.1 s for 15 s; False: it hung up before."""
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
