"""The admin port: it accepts connections before its server is made."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tandemmq.broker.admin.guard import Guard
from tandemmq.broker.admin.port import AdminPort
from tandemmq.broker.admin.server import AdminServer
from tandemmq.broker.admin.token import read_token


class Broker:
    """A broker with an admin port. ``may_make``: the server is not made before this event is set."""

    def __init__(self, directory: Path) -> None:
        self.token_file = str(directory / "index" / "a.admin-token")
        self.may_make = threading.Event()
        self.may_make.set()
        self.makers: list[str] = []
        self.has_begun = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.error: Exception | None = None
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.number = found.getsockname()[1]
        self.port = AdminPort("127.0.0.1", self.number, self.token_file, self._make, retry_seconds=0.01)

    def _make(self, listener: socket.socket) -> tuple[AdminServer, Guard]:
        self.makers.append(threading.current_thread().name)
        self._loop.call_soon_threadsafe(self.has_begun.set)
        self.may_make.wait(60)
        if self.error is not None:
            raise self.error
        guard = Guard(self.token_file, (), None)
        status = {"role": "master", "epoch": 1, "name": "a", "store": "/data"}
        server = AdminServer("127.0.0.1", self.number, lambda: status, check=guard.check, listener=listener)
        return server, guard

    async def health(self) -> int:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.number}/health") as found:
            return found.status


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.may_make.set()
    await made.port.stop()
    with socket.create_server(("127.0.0.1", made.number)):
        pass  # the address is free


async def test_the_first_client_waits_for_the_server(broker: Broker) -> None:
    broker.may_make.clear()
    broker.port.start()
    await asyncio.sleep(0)
    assert broker.makers == [], "no client has come"
    request = asyncio.create_task(broker.health())
    await broker.has_begun.wait()  # the loop continues during the wait
    assert not request.done()
    broker.may_make.set()
    assert await request == 200
    assert broker.makers != [threading.current_thread().name]


async def test_the_server_is_made_once(broker: Broker) -> None:
    broker.port.start()
    broker.port.open()
    broker.port.open()
    assert await broker.health() == await broker.health() == 200
    assert len(broker.makers) == 1


async def test_the_token_is_there_before_the_server(broker: Broker) -> None:
    broker.port.start()
    token = read_token(broker.token_file)
    assert token is not None
    broker.port.refresh()  # without effect
    broker.port.end_sessions({"ann"})
    assert await broker.health() == 200
    assert read_token(broker.token_file) == token, "the server's own"


async def test_a_stop_does_not_wait_until_the_server_is_made(broker: Broker) -> None:
    broker.may_make.clear()
    broker.port.start()
    broker.port.open()
    await broker.has_begun.wait()
    await broker.port.stop()
    broker.port.open()
    with pytest.raises(aiohttp.ClientConnectionError):
        await broker.health()


@pytest.mark.parametrize("error", [ImportError("no aiohttp"), OSError(errno.EACCES, "Permission denied")])
async def test_a_server_that_cannot_be_made_closes_the_port(
    broker: Broker, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    broker.error = error
    broker.port.start()
    with pytest.raises(aiohttp.ClientConnectionError):
        await broker.health()
    assert len(broker.makers) == 1
    assert "the admin server led to an error of the broker, and its port is closed" in caplog.text
    assert f"{type(error).__name__}: {error}" in caplog.text


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
async def test_a_server_that_lacks_descriptors_or_memory_is_made_later(
    broker: Broker, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    broker.error = OSError(number, os.strerror(number))
    broker.port.start()
    request = asyncio.create_task(broker.health())
    for _ in range(3):
        await broker.has_begun.wait()
        broker.has_begun.clear()
    assert not request.done(), "the client waits"
    broker.error = None
    assert await request == 200
    assert (
        f"the admin server could not be made, next attempt in 0.01 s: {OSError(number, os.strerror(number))}"
        in caplog.text
    )


async def test_a_stop_ends_the_attempts(broker: Broker) -> None:
    broker.error = OSError(errno.EMFILE, "Too many open files")
    broker.port.start()
    broker.port.open()
    await broker.has_begun.wait()
    await broker.port.stop()
    broker.port.open()
    count = len(broker.makers)
    await asyncio.sleep(0.05)
    assert len(broker.makers) == count


async def test_an_address_in_use_is_named(broker: Broker, tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", broker.number)),
        pytest.raises(OSError, match=f"admin server: 127.0.0.1:{broker.number}: Address already in use"),
    ):
        broker.port.start()
