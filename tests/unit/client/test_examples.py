"""The programs of examples/clients across a real failover: the master is killed while they send and receive.

Node needs stompit (NODE_PATH), which CI installs. Go needs go-stomp in its module cache; without it, it runs by hand.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.bench.peers.server import HOST, Server
from tests.support import forked
from tests.support.interop.checkouts import run_by_hand
from tests.support.tree import ROOT as TREE

EXAMPLES = TREE / "examples" / "clients"
QUEUE = "/queue/examples"
COUNT = 400
BEFORE_THE_KILL = 50
PATIENCE_SECONDS = 60
GO = (
    "mkdir /tmp/go && cd /tmp/go && go mod init go && go get github.com/go-stomp/stomp/v3 && go work init . && cd - "
    "&& GOWORK=/tmp/go/go.work pytest --services tests/unit/client/test_examples.py"
)


def python_with(script: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / script)]


@pytest.fixture
def program(
    request: pytest.FixtureRequest, tmp_path: Path, require_service: Callable[[object, str], None]
) -> list[str]:
    """The command that runs one of the examples."""
    if request.param == "node":
        node = shutil.which("node")
        has_stompit = node and subprocess.run([node, "-e", "require('stompit')"], capture_output=True).returncode == 0
        require_service(has_stompit, "no node, or no stompit in NODE_PATH: npm install stompit")
        return [str(node), str(EXAMPLES / "pair.js")]
    if request.param == "go":
        go = shutil.which("go")
        listed = go and subprocess.run([go, "list", "github.com/go-stomp/stomp/v3"], capture_output=True)
        if not listed or listed.returncode != 0:
            run_by_hand(GO)
        built = tmp_path / "pair"
        subprocess.run([str(go), "build", "-o", str(built), str(EXAMPLES / "go" / "main.go")], check=True)
        return [str(built)]
    return python_with(request.param)


@pytest.mark.parametrize(
    "program",
    [
        "pair_asyncio.py",
        pytest.param("pair_stomp_py.py", marks=pytest.mark.thorough),
        pytest.param("node", marks=pytest.mark.service),
        pytest.param("go", marks=pytest.mark.service),
    ],
    indirect=True,
)
def test_an_example_loses_nothing_when_the_master_dies(program: list[str], pair: tuple[Server, Server]) -> None:
    master, standby = pair
    hosts = f"{HOST}:{master.port},{HOST}:{standby.port}"
    environment = {**os.environ, "PYTHONPATH": str(TREE)}
    arguments = [hosts, QUEUE, str(COUNT)]
    receiver = subprocess.Popen([*program, "receive", *arguments], stdout=subprocess.PIPE, text=True, env=environment)
    sender = subprocess.Popen([*program, "send", *arguments], env=environment)
    try:
        assert receiver.stdout is not None
        lines = [receiver.stdout.readline().strip() for _ in range(BEFORE_THE_KILL)]
        os.kill(master.pid, signal.SIGKILL)
        assert sender.wait(PATIENCE_SECONDS) == 0
        lines += receiver.stdout.read().splitlines()  # not communicate(): it forgets what was read ahead
        assert receiver.wait(PATIENCE_SECONDS) == 0
    finally:
        for process in (sender, receiver):
            process.kill()
            process.wait()

    assert lines == [f"order {number}" for number in range(1, COUNT + 1)]
    assert is_empty(f"{HOST}:{standby.port}", environment), "no message was stored twice"


def is_empty(host: str, environment: dict[str, str]) -> bool:
    """Return whether the next message of the queue is one that is sent now."""
    sent = forked.run(
        [sys.executable, "-m", "tandemmq", "send", QUEUE, "the last one", "--url", f"stomp://{host}"],
        env=environment,
        timeout=PATIENCE_SECONDS,
    )
    assert sent.returncode == 0
    received = forked.run(
        [sys.executable, "-m", "tandemmq", "receive", QUEUE, "--count", "1", "--url", f"stomp://{host}"],
        env=environment,
        timeout=PATIENCE_SECONDS,
    )
    return received.stdout == "the last one\n"
