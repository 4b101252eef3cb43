"""A blocking STOMP client for tests with JMS clients."""

from __future__ import annotations

import asyncio

from tests.support.acceptance.stomp_wire import Frame, Wire

FRAME_SECONDS_MAX = 10.0
QUIET_SECONDS = 0.3


class StompSide:
    """One connection. Each call returns when its answer has come."""

    def __init__(self, port: int, **headers: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._wire = self._loop.run_until_complete(Wire.open(port, **headers))

    def send(self, destination: str, body: bytes | str = b"", **headers: str) -> None:
        """Send a message; on return it is stored. Underscores in header names become hyphens."""
        encoded = body if isinstance(body, bytes) else body.encode()
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, bytes):
            fields["content-length"] = str(len(body))
        self._wire.send("SEND", {"destination": destination, "receipt": "sent", **fields}, encoded)
        assert self.read().command == "RECEIPT"

    def subscribe(self, destination: str, **headers: str) -> None:
        self._wire.send("SUBSCRIBE", {"destination": destination, "id": "1", "receipt": "here", **headers})
        assert self.read().command == "RECEIPT"

    def read(self) -> Frame:
        return self._loop.run_until_complete(asyncio.wait_for(self._wire.read(), FRAME_SECONDS_MAX))

    def close(self) -> None:
        self._wire.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
