"""Bridges to a real mosquitto and to a second TandemMQ, whatever is killed or cut: counted by payload."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess, wait_until
from tests.support.interop.mqtt_counting import publish, reader
from tests.support.security.authority import Authority
from tests.support.services.mosquitto import PROGRAM, Mosquitto
from tests.support.services.proxy import Proxy

pytestmark = [pytest.mark.service, pytest.mark.timeout(300), pytest.mark.promise("bridges")]

#: More than are on their way at once, so that a kill meets some of each kind.
MANY = 600


@pytest.fixture
def mosquitto(require_service: Callable[[object, str], None]) -> Iterator[Mosquitto]:
    require_service(PROGRAM, "no mosquitto (package mosquitto)")
    server = Mosquitto()
    server.start()
    yield server
    server.remove()


class Pair:
    """A master, and a standby where a test wants one, with one bridge; each with a connector for MQTT."""

    def __init__(self, directory: Path, name: str = "pair") -> None:
        self.directory = directory
        self.settings = directory / f"{name}.toml"
        self.data = directory / name
        self.brokers: list[BrokerProcess] = []
        self.ports: dict[BrokerProcess, int] = {}

    def bridge(self, port: int, *topics: dict[str, Any], **options: Any) -> None:
        """Return the settings of the bridge."""
        options = {"addresses": [f"mqtt://127.0.0.1:{port}"]} | options
        lines = ["[[bridges]]", 'name = "other"', 'restart_timeout = "100ms"', 'restart_timeout_max = "500ms"']
        lines += [f"{key} = {_toml(value)}" for key, value in options.items()]
        for topic in topics:
            lines += ["[[bridges.topics]]", *(f"{key} = {_toml(value)}" for key, value in topic.items())]
        self.settings.write_text("\n".join(lines) + "\n")

    def start(self, name: str = "a", role: str = "master", port: int | None = None) -> BrokerProcess:
        port = port or free_port()
        options = ["--mqtt", f"127.0.0.1:{port}"]
        if self.settings.exists():
            options += ["--config", str(self.settings)]
        broker = BrokerProcess(self.data, name, *options).start()
        self.brokers.append(broker)
        self.ports[broker] = port
        broker.wait_role(role)
        return broker

    def connected(self, broker: BrokerProcess) -> dict[str, Any]:
        """Return the broker's bridge, once it is connected."""
        return wait_until(lambda: _connected(broker), "the bridge is connected")

    def stop(self) -> None:
        for broker in self.brokers:
            broker.stop()
            assert "Traceback" not in broker.log.read_text()
        if self.brokers:
            report = check(str(self.data))
            assert report.is_clean, report.problems


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_toml(part)}' for key, part in value.items())}}}"
    return json.dumps(value)


def _bridge(broker: BrokerProcess) -> dict[str, Any]:
    status = broker.status()
    assert status is not None
    found = status["bridges"][0]
    assert isinstance(found, dict)
    return found


def _connected(broker: BrokerProcess) -> dict[str, Any] | None:
    found = _bridge(broker)
    return found if found["connected"] else None


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Pair]:
    """The other side, where that is a TandemMQ too."""
    made = Pair(tmp_path, "other")
    yield made
    made.stop()


def numbered(name: str, count: int = MANY) -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


@pytest.mark.parametrize("version", ["3.1.1", "5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_go_and_come(mosquitto: Mosquitto, pair: Pair, version: str, qos: int) -> None:
    out = {"pattern": "up/#", "direction": "out", "qos": qos, "remote_prefix": "site/"}
    into = {"pattern": "down/#", "direction": "in", "qos": qos, "local_prefix": "from/"}
    pair.bridge(mosquitto.port, out, into, protocol_version=version)
    broker = pair.start()
    pair.connected(broker)
    with reader(mosquitto.port, "site/#") as there, reader(pair.ports[broker], "from/#") as here:
        publish(pair.ports[broker], "up/a/b", numbered("out", 20), qos)
        publish(mosquitto.port, "down/c", numbered("in", 20), qos)
        there.wait(numbered("out", 20))
        here.wait(numbered("in", 20))
    assert there.topics == {"site/up/a/b"}
    assert here.topics == {"from/down/c"}
    assert set(there.came.values()) == set(here.came.values()) == {1}
    assert {message.qos for message in there.messages + here.messages} == {qos}
    wait_until(lambda: _bridge(broker)["received"] == _bridge(broker)["sent"] == 20, "it counts them")


def test_it_shows_its_password_and_asks_for_a_certificate(
    require_service: Callable[[object, str], None], pair: Pair, tmp_path: Path
) -> None:
    require_service(PROGRAM, "no mosquitto (package mosquitto)")
    authority = Authority(tmp_path, "root")
    server = Mosquitto(authority.certificate("there"), ("anna", "wonderland"))
    password = tmp_path / "password"
    password.write_text("wrong\n")
    try:
        server.start()
        pair.bridge(
            server.port, {"pattern": "up/#", "direction": "out", "qos": 2},
            addresses=[f"mqtts://127.0.0.1:{server.port}"], username="anna", password_file=str(password),
            tls={"ca": str(authority.root)},
        )  # fmt: skip
        broker = pair.start()
        wait_until(lambda: "Not authorized" in (_bridge(broker)["last_error"] or ""), "it is refused")
        password.write_text("wonderland\n")
        assert pair.connected(broker)["address"] == f"mqtts://127.0.0.1:{server.port}"
        publish(pair.ports[broker], "up/x", numbered("out", 20), 2)
        wait_until(lambda: _bridge(broker)["sent"] == 20, "all is sent")
    finally:
        server.remove()


@pytest.mark.parametrize("options", [{"protocol_version": "5"}, {"protocol_version": "3.1.1", "bridge_mode": True}])
def test_nothing_comes_back_by_the_bridge_that_sent_it(
    mosquitto: Mosquitto, pair: Pair, options: dict[str, Any]
) -> None:
    pair.bridge(mosquitto.port, {"pattern": "both/#", "direction": "both", "qos": 2}, **options)
    broker = pair.start()
    pair.connected(broker)
    with reader(mosquitto.port, "both/#") as there, reader(pair.ports[broker], "both/#") as here:
        publish(pair.ports[broker], "both/x", ["from here"], 2)
        publish(mosquitto.port, "both/x", ["from there"], 2)
        for each in (there, here):
            each.wait(["from here", "from there"])
        publish(pair.ports[broker], "both/x", ["last from here"], 2)
        publish(mosquitto.port, "both/x", ["last from there"], 2)
        for each in (there, here):
            each.wait(["last from here", "last from there"])
    assert set(there.came.values()) == set(here.came.values()) == {1}


def test_what_is_published_while_the_other_broker_is_dead_goes_later(mosquitto: Mosquitto, pair: Pair) -> None:
    out = {"pattern": "up/#", "direction": "out", "qos": 2}
    into = {"pattern": "down/#", "direction": "in", "qos": 2}
    pair.bridge(mosquitto.port, out, into)
    broker = pair.start()
    pair.connected(broker)
    with reader(mosquitto.port, "up/#", client_id="there", is_kept=True) as before:
        publish(pair.ports[broker], "up/x", ["first"], 2)
        before.wait(["first"])
    mosquitto.kill()
    publish(pair.ports[broker], "up/x", numbered("late"), 2)
    mosquitto.start()
    with reader(mosquitto.port, "up/#", client_id="there", is_kept=True) as there:
        there.wait(numbered("late"))
        publish(pair.ports[broker], "up/x", ["last"], 2)
        there.wait(["last"])
    assert set(there.came.values()) == {1}


def test_masters_are_killed_one_after_the_other_in_both_directions(mosquitto: Mosquitto, pair: Pair) -> None:
    out = {"pattern": "up/#", "direction": "out", "qos": 2}
    into = {"pattern": "down/#", "direction": "in", "qos": 2}
    pair.bridge(mosquitto.port, out, into, max_inflight_messages=10)
    master = pair.start()
    pair.connected(master)
    standby = pair.start("b", "standby")
    with reader(pair.ports[master], "down/#", client_id="here", is_kept=True):
        pass
    with reader(mosquitto.port, "up/#") as there:
        for turn in range(5):
            publish(mosquitto.port, "down/x", numbered(f"in{turn}", 200), 2)
            publish(pair.ports[master], "up/x", numbered(f"out{turn}", 200), 2)
            master.kill()
            standby.wait_role("master")
            master.start()
            master, standby = standby, master
            pair.connected(master)
            standby.wait_role("standby")
        for turn in range(5):
            there.wait(numbered(f"out{turn}", 200))
        with reader(pair.ports[master], "down/#", client_id="here", is_kept=True) as here:
            for turn in range(5):
                here.wait(numbered(f"in{turn}", 200))
            publish(mosquitto.port, "down/x", ["last"], 2)
            here.wait(["last"])
    assert {payload: times for payload, times in (there.came + here.came).items() if times > 1} == {}


def test_a_network_that_is_cut_doubles_and_loses_nothing(mosquitto: Mosquitto, pair: Pair) -> None:
    way = Proxy(mosquitto.port)
    out = {"pattern": "up/#", "direction": "out", "qos": 2}
    into = {"pattern": "down/#", "direction": "in", "qos": 2}
    pair.bridge(way.port, out, into, max_inflight_messages=20)
    broker = pair.start()
    pair.connected(broker)
    try:
        with reader(mosquitto.port, "up/#") as there, reader(pair.ports[broker], "down/#") as here:
            for turn in range(3):
                publish(pair.ports[broker], "up/x", numbered(f"out{turn}", 200), 2)
                publish(mosquitto.port, "down/x", numbered(f"in{turn}", 200), 2)
                with way.cut():
                    wait_until(lambda: not _connected(broker), "it is cut off")
                pair.connected(broker)
            for turn in range(3):
                there.wait(numbered(f"out{turn}", 200))
                here.wait(numbered(f"in{turn}", 200))
        assert {payload: times for payload, times in (there.came + here.came).items() if times > 1} == {}
        assert _bridge(broker)["connects"] > 3
    finally:
        way.close()


def test_a_network_that_swallows_everything_is_noticed(mosquitto: Mosquitto, pair: Pair) -> None:
    way = Proxy(mosquitto.port)
    pair.bridge(way.port, {"pattern": "up/#", "direction": "out", "qos": 2}, keep_alive="5s")
    broker = pair.start()
    pair.connected(broker)
    try:
        with reader(mosquitto.port, "up/#") as there:
            with way.swallow():
                publish(pair.ports[broker], "up/x", numbered("out", 50), 2)
                wait_until(lambda: not _connected(broker), "it is noticed")
            there.wait(numbered("out", 50))
        assert set(there.came.values()) == {1}
    finally:
        way.close()


def test_retained_messages_come_once(mosquitto: Mosquitto, pair: Pair) -> None:
    publish(mosquitto.port, "down/kept", ["kept"], 2, retain=True)
    pair.bridge(mosquitto.port, {"pattern": "down/#", "direction": "in", "qos": 2}, protocol_version="3.1.1")
    broker = pair.start()
    wait_until(lambda: _bridge(broker)["received"] == 1, "the retained message came")
    broker.terminate()
    broker.start().wait_role("master")
    pair.connected(broker)
    with reader(pair.ports[broker], "down/new") as here:
        publish(mosquitto.port, "down/new", ["last"], 2)
        here.wait(["last"])
    assert _bridge(broker)["received"] == 1  # in this process: the last one alone


def test_a_circle_of_bridges_ends_where_it_began(tmp_path: Path) -> None:
    circle = [Pair(tmp_path, name) for name in ("one", "two", "three")]
    ports = [free_port() for _ in circle]
    try:
        for number, each in enumerate(circle):
            each.bridge(ports[(number + 1) % 3], {"pattern": "ring/#", "direction": "out", "qos": 2})
            each.start(port=ports[number])
        for each in circle:
            each.connected(each.brokers[0])
        with reader(ports[0], "ring/#") as here, reader(ports[1], "ring/#") as next, reader(ports[2], "ring/#") as last:
            publish(ports[0], "ring/x", numbered("out", 20), 2)
            wait_until(lambda: _bridge(circle[0].brokers[0])["circled"] == 20, "they came back, and went no further")
            publish(ports[0], "ring/x", ["last"], 2)
            wait_until(lambda: _bridge(circle[0].brokers[0])["circled"] == 21, "as did the last")
            last.wait(["last"])
            wait_until(lambda: here.came.total() == 2 * 21, "each came when it was published, and from the circle")
        assert set(next.came.values()) == set(last.came.values()) == {1}
        assert set(here.came.values()) == {2}
        assert [_bridge(each.brokers[0])["sent"] for each in circle] == [21, 21, 21]
    finally:
        for each in circle:
            each.stop()
