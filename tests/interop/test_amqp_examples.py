"""AMQP programs of examples/clients: the master is killed while they run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from shutil import which

import pytest

from tandemmq.bench.peers import programs
from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.broker_process import BrokerProcess, serving
from tests.support.interop import real_clients
from tests.support.tree import ROOT

pytestmark = pytest.mark.service

EXAMPLES = ROOT / "examples" / "clients"
COUNT = 300
BEFORE_THE_KILL = 50
SECONDS_MAX = 60.0


# Each function returns the command of a program, and whether its addresses have schemes.


def node() -> tuple[list[str], bool]:
    directory = programs.built(
        "example-rhea", ("pair_rhea.js",), "npm install --silent --no-fund --no-audit --prefix . rhea@3.0.5",
        beside=EXAMPLES,
    )  # fmt: skip
    return ["node", str(directory / "pair_rhea.js")], False


def java() -> tuple[list[str], bool]:
    directory = programs.built(
        "example-qpid-jms",
        ("pom.xml",),
        "mvn -q -B -P qpid-jms -Dqpid=2.7.0 dependency:copy-dependencies -DoutputDirectory=lib",
        beside=real_clients.PROGRAMS,
    )
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{directory / 'lib'}/*"]
    return ["java", *options, str(EXAMPLES / "java" / "QpidPair.java")], True


@pytest.mark.parametrize(
    ("needed", "program", "connector", "has_list"),
    [
        ("npm", node, "amqp", False),
        ("mvn", java, "amqp", False),
        ("mvn", java, "amqp", True),
        ("mvn", java, "ws", False),
    ],
    ids=["rhea", "qpid-jms", "qpid-jms that knows one broker", "qpid-jms by WebSocket"],
)
def test_an_example_loses_nothing_when_the_master_dies(
    needed: str,
    program: Callable[[], tuple[list[str], bool]],
    connector: str,
    has_list: bool,
    tmp_path: Path,
    require_service: Callable[[object, str], None],
) -> None:
    """``has_list``: the program has the address of one broker, and that broker lists both in its open."""
    require_service(which(needed), f"{needed} is not installed")
    command, has_schemes = program()
    scheme = {"amqp": "amqp://", "ws": "amqpws://"}[connector] if has_schemes else ""
    ports = [free_port(), free_port()]
    uris = ",".join(f"amqp://127.0.0.1:{port}" for port in ports)
    options = ("--set", f"broker.failover_uris={uris}") if has_list else ()
    brokers = [
        BrokerProcess(tmp_path / "data", name, f"--{connector}", f"127.0.0.1:{port}", *options)
        for name, port in zip("ab", ports, strict=True)
    ]
    with serving(*brokers) as (master, _):
        hosts = ",".join(f"{scheme}127.0.0.1:{port}" for port in (ports[:1] if has_list else ports))
        arguments = [hosts, "examples", str(COUNT)]
        with (
            subprocess.Popen([*command, "receive", *arguments], stdout=subprocess.PIPE, text=True) as receiver,
            subprocess.Popen([*command, "send", *arguments]) as sender,
        ):
            try:
                assert receiver.stdout is not None
                lines = [receiver.stdout.readline().strip() for _ in range(BEFORE_THE_KILL)]
                master.kill()
                assert sender.wait(SECONDS_MAX) == 0
                lines += receiver.stdout.read().splitlines()
                assert receiver.wait(SECONDS_MAX) == 0
            finally:
                sender.kill()
                receiver.kill()
    assert sorted(lines) == sorted(f"order {number}" for number in range(1, COUNT + 1))
