"""A broker runs with what was made of an ActiveMQ configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.broker_process import BrokerProcess, tandemmq
from tests.support.acceptance.stomp_wire import Wire, send

ACTIVEMQ_XML = """\
<beans xmlns="http://www.springframework.org/schema/beans">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="shop" useJmx="true">
    <destinationPolicy><policyMap><policyEntries>
      <policyEntry queue=">" memoryLimit="5mb"/>
    </policyEntries></policyMap></destinationPolicy>
    <destinationInterceptors><virtualDestinationInterceptor><virtualDestinations>
      <compositeQueue name="SHOP.IN"><forwardTo><queue physicalName="SHOP.ONE"/></forwardTo></compositeQueue>
    </virtualDestinations></virtualDestinationInterceptor></destinationInterceptors>
    <persistenceAdapter><kahaDB directory="${activemq.data}/kahadb" journalMaxFileLength="4mb"/></persistenceAdapter>
    <plugins>
      <simpleAuthenticationPlugin><users>
        <authenticationUser username="alice" password="wonder" groups="shops"/>
      </users></simpleAuthenticationPlugin>
      <authorizationPlugin><map><authorizationMap><authorizationEntries>
        <authorizationEntry queue="SHOP.>" read="shops" write="shops" admin="shops"/>
      </authorizationEntries></authorizationMap></map></authorizationPlugin>
    </plugins>
    <transportConnectors>
      <transportConnector name="stomp" uri="stomp://127.0.0.1:PORT?maximumConnections=10"/>
      <transportConnector name="openwire" uri="tcp://127.0.0.1:OTHER"/>
    </transportConnectors>
  </broker>
</beans>
"""


@pytest.mark.promise("settings-of-activemq")
def test_a_broker_runs_with_a_converted_file(tmp_path: Path) -> None:
    settings, data = tmp_path / "tandemmq.toml", tmp_path / "data"
    broker = BrokerProcess(data / "kahadb", "shop", "--config", str(settings))
    broker.leaves_stomp_to_settings = True
    data.mkdir()
    text = ACTIVEMQ_XML.replace("PORT", str(broker.stomp)).replace("OTHER", str(free_port()))
    (tmp_path / "activemq.xml").write_text(text)

    made = tandemmq(
        "config", "from-xml", str(tmp_path / "activemq.xml"), "--define", f"activemq.data={data}",
        "--users", str(tmp_path / "users"), "--output", str(settings),
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert 'useJmx="true"' in made.stderr
    checked = tandemmq("config", "check", "--config", str(settings))
    assert checked.returncode == 0, checked.stderr

    async def talk() -> None:
        with pytest.raises(ConnectionError, match="invalid"):
            await Wire.open(broker.stomp, seconds_max=30, login="alice", passcode="wrong")
        wire = await Wire.open(broker.stomp, seconds_max=30, login="alice", passcode="wonder")
        await send(wire, "/queue/SHOP.IN", "hello")
        assert (await wire.read()).headers["receipt-id"] == "hello"
        wire.send("SUBSCRIBE", {"id": "1", "destination": "/queue/SHOP.ONE", "ack": "auto"})
        assert (await wire.read()).body == b"hello"
        await send(wire, "/queue/ELSEWHERE", "no")
        assert (await wire.read()).command == "ERROR"
        wire.close()

    try:
        broker.start().wait_role("master")
        assert list((data / "kahadb").glob("db-*.log"))
        asyncio.run(talk())
        assert broker.terminate() == 0
    finally:
        broker.stop()
