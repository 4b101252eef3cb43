"""Durable and shared subscriptions of JMS 3.1, with Qpid JMS (AMQP 1.0)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.broker_process import BrokerProcess, serving
from tests.support.interop import real_clients
from tests.support.interop.java_programs import Release, program

pytestmark = [pytest.mark.service, pytest.mark.prove, pytest.mark.proof_only]

EXPECTED = """
durable: a
unsubscribe while active: JMSException
unsubscribe: gone
unsubscribe again: InvalidDestinationException
selector and no-local: c nothing
shared durable: d
each gets some: 8 true
another selector: JMSException
of another client: InvalidDestinationException
not shared: JMSException
unsubscribe shared: gone
shared: e e
shared anew: nothing
global: g
unsubscribe global while active: JMSException
global, each gets some: 8 true
unsubscribe global: gone
"""


@pytest.mark.timeout(600)  # the first build downloads packages
def test_durable_and_shared_subscriptions_of_jms(
    require_service: Callable[[object, str], None], tmp_path: Path
) -> None:
    client = real_clients.CLIENTS["qpid-jms"]
    require_service(not client.missing, f"not installed: {', '.join(client.missing)}")
    release = Release(f"{real_clients.built(client)}/lib/*", "jakarta.jms")
    classes = tmp_path / "classes"
    classes.mkdir()
    subscriptions = program(require_service, classes, "QpidSubscriptions", release)
    port = free_port()
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[[connectors]]\nuri = "amqp://127.0.0.1:{port}"\n')
    broker = BrokerProcess(tmp_path / "data", "a", "--config", str(settings))
    broker.leaves_stomp_to_settings = True
    with serving(broker):
        assert subscriptions(f"amqp://127.0.0.1:{port}") == EXPECTED.lstrip()
