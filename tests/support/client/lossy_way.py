"""A proxy to a broker that can drop all answers: messages are stored, but their receipts are lost."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
READ_BYTES = 1 << 16


class LossyWay:
    """Listen on a free port, and forward bytes to and from the port ``target``. A connection ends on both sides."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_withholding = False
        self.receipt_lost = asyncio.Event()  # set at the first lost receipt after a test cleared it
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            there, back = await asyncio.open_connection(HOST, self.target)
        except OSError:
            writer.close()
            return
        forward = asyncio.create_task(self._copy(reader, back, is_back=False))
        try:
            await self._copy(there, writer, is_back=True)
        finally:
            forward.cancel()
            back.close()

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_back: bool) -> None:
        try:
            while data := await source.read(READ_BYTES):
                if not (is_back and self.is_withholding):
                    target.write(data)
                    await target.drain()
                elif b"RECEIPT" in data:
                    self.receipt_lost.set()
        except OSError:
            pass
        finally:
            target.close()
