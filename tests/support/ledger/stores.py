"""Stores that brokers write during the story of a client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.broker_process import BrokerProcess, wait_until
from tests.support.acceptance.set_of_brokers import MemberProcess, SetOfBrokers
from tests.support.ledger.book import read
from tests.support.ledger.truth import Truth
from tests.support.services.zookeeper import ZooKeeperServer
from tests.support.tree import ROOT

STORY_SECONDS_MAX: Final = 240
# Small files, so that a story has several of them; none is deleted. A clock record is written whenever time has passed.
SETTINGS: Final = """\
[store]
journal_max_file_length = "64kb"
checkpoint_records = 200
clock_mark_interval = "10ms"
archive_data_logs = true
checkpoint_interval = "500ms"
cleanup_interval = "100ms"
"""


Ports = Sequence[object]


def live(protocol: str, seed: int, steps: int, book: Path, ports: Ports, pause: Callable[[], Ports]) -> Truth:
    """Run a story in a separate process; return what is true after it. ``pause`` is called when all messages are taken,
    and returns the ports for the second half."""
    command = [sys.executable, "-m", "tests.support.ledger", protocol, str(seed), str(steps), str(book)]
    with subprocess.Popen(
        [*command, *map(str, ports)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as client:  # fmt: skip
        try:
            assert client.stdout is not None
            printed = client.stdout.readline()
            again = " ".join(map(str, pause())) if printed == "drained\n" else ""
            _, problem = client.communicate(again + "\n", timeout=STORY_SECONDS_MAX)
        finally:
            client.kill()
    assert client.returncode == 0, problem[-4000:]
    return Truth(read(book))


def _ports(protocol: str, stomp: object, openwire: object, mqtt: object, classes: Path | None) -> Ports:
    return {"stomp": (stomp,), "jms": (classes, openwire), "mqtt": (stomp, mqtt)}[protocol]


def by_tandemmq(
    directory: Path, protocol: str, seed: int, steps: int, *, settings: str = SETTINGS, classes: Path | None = None
) -> Truth:
    """Run a story with TandemMQ, which is killed half-way and stops normally at the end. The store is
    ``directory``/data. ``classes``: those of the JMS client."""
    directory.mkdir(parents=True)
    (directory / "tandemmq.toml").write_text(settings)
    broker = BrokerProcess(directory / "data", "a", "--config", str(directory / "tandemmq.toml"))
    broker.openwire, broker.mqtt = free_port(), free_port()
    ports = _ports(protocol, broker.stomp, broker.openwire, broker.mqtt, classes)

    def pause() -> Ports:
        _wait_reclaimed(directory / "data")
        broker.kill()
        broker.start().wait_role("master")
        return ports

    try:
        broker.start().wait_role("master")
        truth = live(protocol, seed, steps, directory / "book", ports, pause)
        assert broker.terminate() == 0, broker.log.read_text()
    finally:
        broker.stop()
    return truth


def _wait_reclaimed(data: Path) -> None:
    """Wait until the oldest file of each store is deleted or archived."""
    stores = {path.parent for path in data.rglob("db-*.log") if path.parent.name != "data-archive"}
    for store in stores:
        if (store / "db-2.log").exists():
            wait_until(lambda store=store: not (store / "db-1.log").exists(), f"db-1.log of {store} is reclaimed")


def by_set(
    directory: Path, protocol: str, seed: int, steps: int, *, zookeeper: ZooKeeperServer, classes: Path
) -> Truth:
    """Run a story with a set. The store is that of a follower, ``directory``/n1/data or n2/data, with the link
    ``directory``/data. The master is killed half-way and restarted; all stop when they have the same data."""
    whole = SetOfBrokers(directory, zookeepers=[zookeeper])
    for member in whole.members:
        settings = member.path / "settings.toml"
        text = "".join(line for line in settings.open() if f"\n{line.partition(' = ')[0]} = " not in SETTINGS)
        settings.write_text(text.replace("[store]\n", SETTINGS))

    def ports(master: MemberProcess) -> Ports:
        return _ports(protocol, master.stomp, master.openwire, master.mqtt, classes)

    def pause() -> Ports:
        first = whole.wait_master()
        _wait_reclaimed(first.directory)
        first.kill()
        master = whole.wait_master(whole.others(first))
        first.start()
        return ports(master)

    try:
        truth = live(protocol, seed, steps, directory / "book", ports(whole.start()), pause)
        _, (follower, *_) = whole.quiet()
    finally:
        whole.stop()
    (directory / "data").symlink_to(follower.directory)
    return truth


def by_activemq(
    directory: Path, protocol: str, seed: int, steps: int, *options: str, classes: Path, path: str
) -> Truth:
    """Run a story with ActiveMQ, which stops normally at the end. The store is ``directory``/data. ``classes``: those
    of the client, and LedgerBroker; ``path``: the class path of the broker."""
    directory.mkdir(parents=True)
    command = ["java", "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", path]
    with (directory / "log").open("w") as log, subprocess.Popen(
        [*command, "LedgerBroker", str(directory / "data"), *options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
    ) as broker:  # fmt: skip
        try:
            assert broker.stdin is not None
            assert broker.stdout is not None
            openwire, stomp = broker.stdout.readline().split()
            ports = _ports(protocol, stomp, openwire, None, classes)

            def pause() -> Ports:
                if {"archive", "compact"} & {*options}:
                    _wait_reclaimed(directory / "data")
                return ports

            truth = live(protocol, seed, steps, directory / "book", ports, pause)
            broker.stdin.close()
            assert broker.wait(60) == 0, (directory / "log").read_text()[-4000:]
        finally:
            broker.kill()
    return truth
