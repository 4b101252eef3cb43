"""A client that reads more slowly than bodies are inflated for it gets all of them."""

from __future__ import annotations

import socket
import time
import zlib
from pathlib import Path

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.protocols.openwire import schema
from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.acceptance.openwire_wire import OpenWire, queue

BODIES, BODY_BYTES = 4, 50 << 20
PAUSE_SECONDS = 2.0


def test_several_wait_and_are_given_one_after_the_other_as_it_reads(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "a")
    openwire = free_port()
    broker.leaves_stomp_to_settings = True
    broker.options = ("--stomp", f"127.0.0.1:{broker.stomp}", "--openwire", f"127.0.0.1:{openwire}")
    broker.start().wait_role("master")
    try:
        sender = OpenWire(openwire).connect()
        body = BODY_BYTES.to_bytes(4, "big") + zlib.compress(b"\1" * BODY_BYTES)
        for _ in range(BODIES):  # short as they are sent: they are given out together
            sender.send(queue("long"), make=schema.ActiveMQBytesMessage, content=body, compressed=True)
        sender.close()
        with socket.create_connection(("127.0.0.1", broker.stomp), 30) as reader:
            reader.sendall(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0SUBSCRIBE\nid:0\ndestination:/queue/long\n\n\0")
            time.sleep(PAUSE_SECONDS)
            received = 0
            while received < BODIES * BODY_BYTES:
                data = reader.recv(1 << 20)
                assert data, f"hung up after {received} bytes"
                received += len(data)
        assert broker.terminate() == 0
    finally:
        broker.stop()
