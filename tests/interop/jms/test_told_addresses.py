"""broker.failover_uris: a client that was given one address goes on at another, which it was told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tests.support.interop.jms.jvm import Jvm
from tests.support.interop.jms.peers import TandemMQ

pytestmark = [pytest.mark.service, pytest.mark.timeout(120)]


def test_a_client_that_knows_one_broker_is_told_of_the_other(jvm: Jvm, tmp_path: Path) -> None:
    ports = (free_port(), free_port())
    told = ",".join(f"tcp://127.0.0.1:{port}" for port in ports)
    options = ("--set", f"broker.failover_uris={told}")
    master = TandemMQ(tmp_path / "data", *options, broker="a", port=ports[0])
    master.wait()
    standby = TandemMQ(tmp_path / "data", *options, broker="b", port=ports[1])
    try:
        standby.wait_standby()
        url = f"failover:(tcp://127.0.0.1:{ports[0]})?maxReconnectDelay=100"
        connection = jvm.connect(url)
        session = connection.session()
        session.send("queue://TOLD", "before")
        master.close()
        session.send("queue://TOLD", "after")
        assert session.consumer("queue://TOLD").bodies(2) == ["before", "after"]
        connection.close()
    finally:
        standby.close()
        master.close()
