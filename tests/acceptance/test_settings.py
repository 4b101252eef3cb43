"""Settings of real brokers: read again at SIGHUP, made of an ActiveMQ configuration, and a bridge that is removed."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tandemmq.bench.peers.ports import free_port
from tandemmq.cli import main
from tests.support.acceptance.broker_process import BrokerProcess, serving, tandemmq, wait_until
from tests.support.acceptance.stomp_wire import Wire, confirm, send

SETTINGS = """
[broker]
queue_prefetch = 2
[[destinations]]
queue = "few"
queue_prefetch = 1
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "settings.toml").write_text(SETTINGS)
    with serving(BrokerProcess(tmp_path / "data", "a", "--config", str(tmp_path / "settings.toml"))) as (broker,):
        yield broker


def _reload(broker: BrokerProcess, text: str, output_text: str) -> str:
    """Send SIGHUP with that file, and wait until ``said`` is in the log. Return the log lines for it."""
    before = len(broker.log.read_text())
    Path(broker.data).with_name("settings.toml").write_text(text)
    broker.kill(signal.SIGHUP)

    def logged() -> str | None:
        new = broker.log.read_text()[before:]
        return new if output_text in new else None

    found = wait_until(logged, output_text)
    assert isinstance(found, str)
    return found


async def _subscribed(broker: BrokerProcess, destination: str, **headers: str) -> Wire:
    wire = await Wire.open(broker.stomp)
    for number in range(6):
        await send(wire, destination, str(number))
        await wire.read()
    wire.send("SUBSCRIBE", {"id": "s", "destination": destination, "ack": "client-individual", **headers})
    await wire.flush()
    return wire


async def _bodies(wire: Wire, count: int) -> list[str]:
    return [(await asyncio.wait_for(wire.read(), 20)).body.decode() for _ in range(count)]


async def _nothing_more(wire: Wire) -> None:
    """Check that no further frame came: the next one is the receipt of a new request."""
    await send(wire, "/queue/aside", "aside")
    assert (await wire.read()).command == "RECEIPT"


@pytest.mark.promise("settings-are-reloaded")
async def test_a_changed_prefetch_holds_for_consumers_that_are_on(broker: BrokerProcess) -> None:
    few = await _subscribed(broker, "/queue/few")
    other = await _subscribed(broker, "/queue/other")
    own = await _subscribed(broker, "/queue/own", **{"activemq.prefetchSize": "1"})
    assert await _bodies(few, 1) == ["0"]
    assert await _bodies(other, 2) == ["0", "1"]
    assert await _bodies(own, 1) == ["0"]
    changed = SETTINGS.replace("queue_prefetch = 2", "queue_prefetch = 4").replace("= 1", "= 3\nmemory_limit = 70000")
    logged = await asyncio.to_thread(_reload, broker, changed, "prefetches follow the settings")
    assert "destinations[queue few].memory_limit was changed and applies from the next start" in logged
    assert await _bodies(few, 2) == ["1", "2"]
    assert await _bodies(other, 2) == ["2", "3"]
    await _nothing_more(own)
    for wire in (few, other, own):
        wire.close()


@pytest.mark.promise("settings-are-reloaded")
async def test_a_file_that_is_wrong_changes_nothing(broker: BrokerProcess) -> None:
    few = await _subscribed(broker, "/queue/few")
    assert await _bodies(few, 1) == ["0"]
    wrong = SETTINGS.replace("queue_prefetch = 1", "queue_prefetch = -5").replace("= 2", "= 4")
    logged = await asyncio.to_thread(_reload, broker, wrong, "the settings stay as they were")
    for text in ("queue_prefetch", "-5", "expected"):
        assert text in logged
    await asyncio.to_thread(_reload, broker, "", "the settings file is empty")
    status = broker.status()
    assert status is not None
    assert [each for each in status["warnings"] if "the settings stay as they were" in each]
    other = await _subscribed(broker, "/queue/other")
    assert await _bodies(other, 2) == ["0", "1"]
    for wire in (few, other):
        await _nothing_more(wire)
        wire.close()


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

    with serving(broker):
        assert list((data / "kahadb").glob("db-*.log"))
        asyncio.run(talk())


BRIDGE = """
[[bridges]]
name = "factory"
addresses = ["mqtt://127.0.0.1:{}"]
topics = [{{pattern = "up/#", direction = "out"}}]
"""


@pytest.fixture
def bridged(tmp_path: Path) -> Path:
    return tmp_path / "tandemmq.toml"


@pytest.fixture
def bridge(tmp_path: Path, bridged: Path) -> Iterator[BrokerProcess]:
    bridged.write_text(BRIDGE.format(free_port()))
    with serving(BrokerProcess(tmp_path / "data", "a", "--config", str(bridged))) as (broker,):
        yield broker


def ask(broker: BrokerProcess, *words: str) -> Any:
    done = CliRunner().invoke(main, [*words, "--json", "--admin", f"http://127.0.0.1:{broker.admin}"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def left(broker: BrokerProcess) -> list[tuple[str, str, int]]:
    status = broker.status()
    assert status is not None
    found = status.get("left_by_bridges", [])
    assert len(status["warnings"]) == len(found), "each is a warning"
    return [(each["client_id"], each["name"], each["messages"]) for each in found]


@pytest.mark.promise("bridges")
def test_what_it_left_is_told_until_it_is_deleted(bridge: BrokerProcess, bridged: Path) -> None:
    ask(bridge, "topics", "create", "up.x")
    wait_until(lambda: ask(bridge, "subscriptions")["items"], "the bridge gathers")
    asyncio.run(confirm(bridge.stomp, "/topic/up.x", "one", 10))
    assert left(bridge) == []
    bridge.terminate()
    with_bridge = bridged.read_text()
    bridged.write_text("")
    bridge.start().wait_role("master")
    asyncio.run(confirm(bridge.stomp, "/topic/up.x", "two", 10))
    assert left(bridge) == [("local.tandemmq-factory", "up/#", 2)]
    assert "no bridge in the settings uses" in bridge.log.read_text()

    bridge.terminate()
    bridged.write_text(with_bridge)
    bridge.start().wait_role("master")
    assert left(bridge) == []

    bridge.terminate()
    bridged.write_text("")
    bridge.start().wait_role("master")
    assert ask(bridge, "subscriptions", "delete", "local.tandemmq-factory", "up/#")["deleted"]
    assert left(bridge) == []
