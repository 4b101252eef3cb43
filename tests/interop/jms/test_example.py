"""examples/clients/java/Pair.java across a real failover: the master is killed while it sends and receives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.interop.jms.jvm import Jvm, class_path
from tests.support.interop.jms.peers import Pair

pytestmark = [pytest.mark.service, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).parents[3] / "examples" / "clients" / "java" / "Pair.java"
QUEUE = "JMS.EXAMPLE"
COUNT = 2000
BEFORE_THE_KILL = 50
PATIENCE_SECONDS = 60


def test_the_example_loses_nothing_when_the_master_dies(classes: Path, jvm: Jvm, tmp_path: Path) -> None:
    pair = Pair("tandemmq", tmp_path / "data", classes)
    addresses = pair.url().partition("(")[2].partition(")")[0]
    program = ["java", "-cp", class_path(classes), str(PROGRAM)]
    arguments = [addresses, QUEUE, str(COUNT)]
    receiver = subprocess.Popen([*program, "receive", *arguments], stdout=subprocess.PIPE, text=True)
    sender = subprocess.Popen([*program, "send", *arguments])
    try:
        assert receiver.stdout is not None
        lines = [receiver.stdout.readline().strip() for _ in range(BEFORE_THE_KILL)]
        assert sender.poll() is None, "it is still at it"
        pair.kill_master()
        assert sender.wait(PATIENCE_SECONDS) == 0
        lines += receiver.stdout.read().splitlines()
        assert receiver.wait(PATIENCE_SECONDS) == 0
        left = jvm.connect(pair.url()).session().consumer(f"queue://{QUEUE}").take()
    finally:
        for process in (sender, receiver):
            process.kill()
            process.wait()
        pair.close()
    assert lines == [f"order {number}" for number in range(1, COUNT + 1)]
    assert left is None, "no message was stored twice"
