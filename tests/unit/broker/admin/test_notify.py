"""Notifications to systemd, read from a real datagram socket."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.broker.admin.notify import Notifier, Watchdog, watchdog_period_seconds


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A stand-in for systemd, and what $NOTIFY_SOCKET would hold for it."""
    address = f"@tandemmq-test-{os.getpid()}-{id(request)}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(5)
        receiver.bind("\0" + address[1:] if request.param == "abstract" else address)
        yield receiver, address


def heard(receiver: socket.socket) -> list[str]:
    receiver.setblocking(False)
    words = []
    while True:
        try:
            words.append(receiver.recv(4096).decode())
        except BlockingIOError:
            return words


def test_systemd_hears_ready_status_watchdog_and_stopping(manager: tuple[socket.socket, str]) -> None:
    receiver, address = manager
    notifier = Notifier(address)
    notifier.ready("standby: waits for a")
    notifier.status("master: epoch 4")
    notifier.feed()
    notifier.stopping("handing over")
    notifier.close()
    assert heard(receiver) == [
        "READY=1\nSTATUS=standby: waits for a",
        "STATUS=master: epoch 4",
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=handing over",
    ]


def test_a_status_with_line_breaks_stays_one_variable(manager: tuple[socket.socket, str]) -> None:
    receiver, address = manager
    Notifier(address).status("waits\nREADY=1")
    assert heard(receiver) == ["STATUS=waits READY=1"]


def test_without_a_manager_every_call_does_nothing() -> None:
    notifier = Notifier(None)
    assert notifier._socket is None
    notifier.ready("up")
    notifier.feed()
    notifier.stopping()


def test_a_service_manager_that_ended_has_no_effect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier(str(tmp_path / "gone"))
    notifier.feed()
    notifier.feed()
    notifier.close()
    assert len(caplog.records) == 1


class Part:
    """Something that shows life at times."""

    def __init__(self) -> None:
        self.seen = 100.0

    def __call__(self) -> float:
        return self.seen


def test_the_watchdog_is_fed_only_while_loop_and_storage_both_live(manager: tuple[socket.socket, str]) -> None:
    receiver, address = manager
    loop, storage, clock = Part(), Part(), Part()
    watchdog = Watchdog(Notifier(address), 10, {"event loop": loop, "storage thread": storage}, clock)

    assert watchdog.check() == ()
    assert heard(receiver) == ["WATCHDOG=1"]

    clock.seen = loop.seen = 111.0  # the storage thread hangs in a sync
    assert watchdog.check() == ("storage thread",)
    assert heard(receiver) == []

    storage.seen = 111.0  # it came back
    assert watchdog.check() == ()
    assert heard(receiver) == ["WATCHDOG=1"]

    clock.seen = storage.seen = 130.0
    assert watchdog.check() == ("event loop",)
    assert heard(receiver) == []


async def test_the_watchdog_goes_on_until_it_is_cancelled(manager: tuple[socket.socket, str]) -> None:
    receiver, address = manager
    receiver.setblocking(False)
    watchdog = Watchdog(Notifier(address), 0.03, {}, clock=lambda: 0.0)
    task = asyncio.create_task(watchdog.run())
    loop = asyncio.get_running_loop()
    assert await loop.sock_recv(receiver, 100) == b"WATCHDOG=1"
    assert await loop.sock_recv(receiver, 100) == b"WATCHDOG=1"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("environment", "period"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_the_period_is_the_one_systemd_asked_this_process_for(
    environment: dict[str, str], period: float | None
) -> None:
    assert watchdog_period_seconds(environment, pid=7) == period
