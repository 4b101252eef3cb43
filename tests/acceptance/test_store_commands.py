"""An operator asks a running broker why its files are there, and has it compact them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tandemmq.cli import main
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess

FILE_BYTES = 256 * 1024


def tandemmq(*arguments: str) -> Result:
    """The command, in this process: an interpreter for each would take most of the time."""
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def master(data: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(
        data, "a", "--set", f"store.journal_max_file_length={FILE_BYTES}", "--set", "store.enable_compaction=false"
    ).start()
    try:
        process.wait_role("master")
        yield process
    finally:
        process.stop()


@pytest.mark.promise("bytes-are-explained")
def test_why_and_compact_over_the_admin_address(data: Path, master: BrokerProcess) -> None:
    admin = f"127.0.0.1:{master.admin}"
    body = "x" * 20_000
    for number in range(5):
        assert tandemmq("send", "forgotten", f"kept {number}", "--url", master.url).exit_code == 0
        assert tandemmq("send", "busy", body, "--count", "12", "--url", master.url).exit_code == 0
    # What is left of the busy queue goes, so that the forgotten one alone holds the files.
    assert tandemmq("receive", "busy", "--count", "60", "--url", master.url).exit_code == 0

    asked = tandemmq("store", "why", "--admin", admin, "--json")
    assert asked.exit_code == 0, asked.stderr
    why = json.loads(asked.stdout)
    holders = {holder["destination"] for file in why["files"] for holder in file["holders"]}
    assert holders == {"queue://forgotten"}
    held = next(file for file in why["files"] if file["state"] == "held" and file["holders"])
    assert held["holders"][0]["consumers"] == 0
    assert "no consumer: consume or purge" in held["action"]
    assert "oldest " in held["action"]
    assert " second" in held["action"], "the age is that of the sender's time stamp"
    assert sum(thing["bytes"] for thing in why["things"] if thing["kind"] == "journal") == why["journal_bytes"]

    one = tandemmq("store", "why", held["name"], "--admin", admin)
    assert one.exit_code == 0, one.stderr
    assert one.stdout.startswith(held["name"])
    assert tandemmq("store", "why", "db-999", "--admin", admin).exit_code == 1
    offline = tandemmq("store", "why", str(data))
    assert offline.exit_code == 0, offline.stderr
    assert "in use by a " in offline.stderr
    assert f"--admin http://{admin}" in offline.stderr
    refused = tandemmq("store", "compact", str(data))
    assert refused.exit_code == 1
    assert "in use by a " in refused.stderr

    compacted = tandemmq("store", "compact", "--admin", admin, "--json")
    assert compacted.exit_code == 0, compacted.stderr
    report = json.loads(compacted.stdout)
    after = json.loads(tandemmq("store", "why", "--admin", admin, "--json").stdout)
    assert report["messages"] >= 1
    assert after["journal_bytes"] < why["journal_bytes"]
    assert after["is_bound_held"]
    assert after["live_messages"] == 5

    received = tandemmq("receive", "forgotten", "--count", "5", "--url", master.url)
    assert received.stdout.split("\n")[:5] == [f"kept {number}" for number in range(5)]
    assert master.terminate() == 0
    assert check(str(data)).problems == []


def test_a_standby_names_the_master(data: Path, master: BrokerProcess) -> None:
    standby = BrokerProcess(data, "b").start()
    try:
        standby.wait_role("standby")
        for command in (["why"], ["compact"]):
            asked = tandemmq("store", *command, "--admin", f"127.0.0.1:{standby.admin}")
            assert asked.exit_code == 3
            assert "b is not master but standby" in asked.stderr
            assert f"the master is a at http://127.0.0.1:{master.admin}" in asked.stderr
    finally:
        standby.stop()
