"""A proxy between a client and a server that can be shut, with or without closing connections."""

from __future__ import annotations

import contextlib
import enum
import socket
import threading
from collections.abc import Callable, Iterator

_CHUNK = 65_536


class Way(enum.Enum):
    OPEN = "open"
    SILENT = "silent"  # nothing is lost: data arrives late, as after a short network failure
    SWALLOWING = "swallowing"  # data in both directions is dropped; connections stay, and new ones are accepted
    CUT = "cut"  # connections end at once and new ones are refused


class Proxy:
    """Forward 127.0.0.1:`port` to another port, in the mode that `set` chooses.

    `asked` is called before data of the client is forwarded to the server.
    """

    def __init__(self, to_port: int, asked: Callable[[], object] = lambda: None) -> None:
        self.to_port = to_port
        self._asked = asked
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listening.getsockname()[1]
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._guard = threading.Lock()
        self._way = Way.OPEN
        self._is_heard = threading.Event()
        self._is_heard.set()
        self._is_open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, way: Way) -> None:
        self._way = way
        if way is Way.CUT:
            self._hang_up()
        if way is Way.SILENT:
            self._is_heard.clear()
        else:
            self._is_heard.set()

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        self.set(Way.CUT)
        try:
            yield
        finally:
            self.set(Way.OPEN)

    @contextlib.contextmanager
    def swallow(self) -> Iterator[None]:
        self.set(Way.SWALLOWING)
        try:
            yield
        finally:
            self.set(Way.OPEN)

    def close(self) -> None:
        self._is_open = False
        self.set(Way.CUT)
        # Closing a socket does not wake a thread in accept.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _hang_up(self) -> None:
        with self._guard:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _accept(self) -> None:
        while self._is_open:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self._is_heard.wait()
            try:
                if self._way is Way.CUT:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self.to_port))
            except OSError:
                client.close()
                continue
            with self._guard:
                self._pairs.add((client, server))
            for source, target, on_data in ((client, server, self._asked), (server, client, lambda: None)):
                threading.Thread(target=self._forward, args=(source, target, on_data), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, on_data: Callable[[], object]) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK):
                self._is_heard.wait()
                if self._way is not Way.SWALLOWING:
                    on_data()
                    target.sendall(chunk)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
