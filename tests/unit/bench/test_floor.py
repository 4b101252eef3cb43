"""The floor takes the driver's load as a broker does, or what it shows is no bound."""

from __future__ import annotations

import shutil
import socket
import struct
from pathlib import Path

import pytest

from tandemmq.bench.driver.load import run_load
from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.peers.brokers import Floor, JmsFloor
from tandemmq.bench.peers.server import HOST

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("cc")), reason="no C compiler")


@pytest.mark.parametrize("window", [1, 50])
def test_every_message_is_stored_confirmed_and_received_once(tmp_path: Path, window: int) -> None:
    with Floor(tmp_path) as server:
        plan = LoadPlan(
            server.endpoint, producers=3, consumers=2, queues=2, window=window, count=600, checks_order=True
        )
        result = run_load(plan)

    assert (result.sent, result.confirmed, result.received) == (600, 600, 600)
    assert result.order is not None
    assert (result.order.seen, result.order.skipped, result.order.late) == (600, 0, 0)
    stored = (tmp_path / "file").read_bytes()
    assert stored.count(b"SEND\n") == 600
    assert stored.count(b"ACK\n") == 600


def test_a_message_of_openwire_is_stored_answered_and_given_out() -> None:
    queue, consumer, message_body = b"\1\x64\1\0\1q", b"\1\x7a\1\0\1c" + bytes(16), b"\1\x7b\1\0\1p" + bytes(16)

    def frame(kind: int, body: bytes) -> bytes:
        return struct.pack(">IBIB", 6 + len(body), kind, 7, 1) + body

    message = frame(24, message_body + queue + b"hello")
    dispatch = frame(21, consumer + queue + b"\1" + message[4:] + bytes(4)).replace(b"\0\0\0\7\1", bytes(5), 1)
    response = struct.pack(">IBIBI", 10, 30, 0, 0, 7)
    with JmsFloor() as server, socket.create_connection((HOST, server.port), 10) as client:
        said = client.makefile("rb")
        said.read(struct.unpack(">I", said.read(4))[0])  # the greeting
        client.sendall(frame(5, consumer + b"\0" + queue))
        assert said.read(len(response)) == response
        client.sendall(message)
        assert said.read(len(response) + len(dispatch)) == response + dispatch
        assert (server.directory / "file").read_bytes() == message
