"""A door between a client and a server that can be shut in two ways: said, or not said."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

_CHUNK = 65_536


class Proxy:
    """Forwards 127.0.0.1:`port` to another port, until told otherwise.

    `cut`        connections end at once and new ones are refused
    `swallow`    whatever is sent, either way, arrives nowhere; connections stay, and new ones are taken

    `asked` is called before anything that the client sent goes on to the server.
    """

    def __init__(self, to_port: int, asked: Callable[[], object] = lambda: None) -> None:
        self.to_port = to_port
        self._asked = asked
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listening.getsockname()[1]
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._guard = threading.Lock()
        self._is_cut = False
        self._swallows = threading.Event()
        self._is_open = True
        threading.Thread(target=self._accept, daemon=True).start()

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        self._is_cut = True
        self._hang_up()
        try:
            yield
        finally:
            self._is_cut = False

    @contextlib.contextmanager
    def swallow(self) -> Iterator[None]:
        self._swallows.set()
        try:
            yield
        finally:
            self._swallows.clear()

    def close(self) -> None:
        self._is_open = False
        # To close a socket wakes nobody who accepts on it.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._hang_up()

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
            try:
                if self._is_cut:
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
                if not self._swallows.is_set():
                    told()
                    target.sendall(chunk)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
