"""An operator looks into a directory of ActiveMQ's before anybody takes it over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tandemmq.cli import main
from tests.interop.conftest import ActiveMQ

pytestmark = pytest.mark.service


def store(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["store", *arguments])


def test_why_and_inspect_tell_what_activemq_holds_and_change_nothing(activemq: ActiveMQ, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    activemq("produce", directory)
    # Its own index knows nothing here that the journal does not: it was stopped in order, and nothing was collected.
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}

    told = store("why", str(directory), "--json")
    counted = store("inspect", str(directory), "--summary", "--json")

    assert told.exit_code == 0, told.output
    why = json.loads(told.stdout)
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
    theirs: dict[str, int] = {}
    for line in activemq("dump", directory):
        if line.get("messages"):
            key = line["destination"] if line["owner"] != "subscription" else f"{line['clientId']}:{line['name']}"
            theirs[key] = len(line["messages"])
    assert theirs, "ActiveMQ stored something"
    ours: dict[str, int] = {}
    for file in why["files"]:
        for holder in file["holders"]:
            name = holder["subscription_name"]
            key = holder["destination"] if name is None else f"{holder['client_id']}:{name}"
            ours[key] = ours.get(key, 0) + holder["count"]
        assert all(holder["oldest"]["timestamp"] for holder in file["holders"][:5]), "they say when they were sent"
    assert ours == theirs
    assert sum(thing["bytes"] for thing in why["things"]) == sum(map(len, before.values()))
    assert {thing["kind"] for thing in why["things"]} <= {"journal", "activemq", "lock"}
    summary = json.loads(counted.stdout)
    assert summary["types"]["add"]["records"] >= sum(ours.values())
    parts = sum(kind["bytes"] for kind in summary["types"].values())
    assert parts + summary["batch_bytes"] + summary["dead_bytes"] + summary["unused_bytes"] == summary["bytes"]
