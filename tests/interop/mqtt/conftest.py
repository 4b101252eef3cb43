"""One broker for all MQTT clients that do not stop it; each test uses its own topics and client ids."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.broker_process import BrokerProcess, serving

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With STOMP, OpenWire and MQTT. Its log has no traceback in the end, and its store is checked."""
    made = BrokerProcess(tmp_path_factory.mktemp("mqtt") / "data", "a")
    made.mqtt, made.openwire = free_port(), free_port()
    with serving(made):
        yield made
    assert "Traceback" not in made.log.read_text()


@pytest.fixture
def port(broker: BrokerProcess) -> int:
    assert broker.mqtt is not None
    return broker.mqtt


@pytest.fixture
def name() -> str:
    """A topic that no other test uses, and a client id."""
    return f"mqtt-{next(_numbers)}"
