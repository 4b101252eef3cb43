"""The way from one broker to its database: open, silent for a while, or cut.

Silent: nothing is lost, as with a network that heals in time for TCP; what was sent meanwhile arrives late. Cut:
connections are reset and new ones refused at once.
"""

from __future__ import annotations

import contextlib
import enum
import selectors
import socket
import struct
import threading

CHUNK_BYTES = 1 << 16
_RESET = struct.pack("ii", 1, 0)


class Way(enum.Enum):
    OPEN = "open"
    SILENT = "silent"
    CUT = "cut"


class Proxy:
    """Listens on ``port`` of 127.0.0.1 until ``close``. ``set`` holds from the next byte on."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._wake, self._waken = socket.socketpair()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._way = Way.OPEN
        self._is_over = False
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._waken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def set(self, way: Way) -> None:
        self._way = way
        self._wake.send(b"x")

    def close(self) -> None:
        self._is_over = True
        self._wake.send(b"x")
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over:
            for key, _ in self._selector.select():
                if key.fileobj is self._waken:
                    self._waken.recv(CHUNK_BYTES)
                    self._turn()
                elif key.fileobj is self._listening:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket), "all that is registered are sockets"
                    self._forward(key.fileobj)
        for each in (*self._peers, self._listening, self._wake, self._waken):
            each.close()
        self._selector.close()

    def _turn(self) -> None:
        if self._way is Way.CUT:
            for each in list(self._peers):
                self._drop(each)
        for each in (*self._peers, self._listening):
            is_read = each in self._selector.get_map()
            if self._way is Way.SILENT and is_read:
                self._selector.unregister(each)  # the kernel takes what comes, and we look at it later
            elif self._way is not Way.SILENT and not is_read:
                self._selector.register(each, selectors.EVENT_READ)

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        if self._way is Way.CUT:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.close()
            return
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        for mine, other in ((client, server), (server, client)):
            mine.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[mine] = other
            self._selector.register(mine, selectors.EVENT_READ)

    def _forward(self, mine: socket.socket) -> None:
        if mine not in self._peers or self._way is Way.SILENT:
            return
        try:
            data = mine.recv(CHUNK_BYTES)
            if data:
                self._peers[mine].sendall(data)
                return
        except OSError:
            pass
        self._drop(mine)

    def _drop(self, mine: socket.socket) -> None:
        for each in (mine, self._peers.get(mine)):
            if each is None or each not in self._peers:
                continue
            del self._peers[each]
            with contextlib.suppress(KeyError):
                self._selector.unregister(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            each.close()
