"""A door between a client and a server that can be shut: said, or not said."""

from __future__ import annotations

import contextlib
import enum
import socket
import threading
from collections.abc import Callable, Iterator

_CHUNK = 65_536


class Way(enum.Enum):
    OPEN = "open"
    SILENT = "silent"  # nothing is lost, as with a network that heals in time for TCP: what is sent arrives late
    SWALLOWING = "swallowing"  # what is sent, either way, arrives nowhere; connections stay, and new ones are taken
    CUT = "cut"  # connections end at once and new ones are refused


class Proxy:
    """Forwards 127.0.0.1:`port` to another port, the way that `set` says.

    `asked` is called before anything that the client sent goes on to the server.
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
        # To close a socket wakes nobody who accepts on it.
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
            for source, target, told in ((client, server, self._asked), (server, client, lambda: None)):
                threading.Thread(target=self._forward, args=(source, target, told), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, told: Callable[[], object]) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK):
                self._is_heard.wait()
                if self._way is not Way.SWALLOWING:
                    told()
                    target.sendall(chunk)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
