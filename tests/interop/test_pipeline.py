"""The tables of the pipeline, and the output of commands, for a directory that the real ActiveMQ wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tandemmq.cli import main
from tandemmq.journal.files import JournalFiles
from tandemmq.pipeline import columns
from tandemmq.pipeline.rows import FAILFAST, rows
from tandemmq.pipeline.stores import journal_files
from tandemmq.pipeline.walk import walk
from tandemmq.store.tools.inspect import Seen, read_headers
from tandemmq.store.tools.inspect import walk as inspect_walk
from tests.interop.conftest import ActiveMQ

pytestmark = pytest.mark.service


# a column of messages -> what Tandem.java calls it
_THEIRS = {
    "message_id": "id",
    "persistent": "persistent",
    "priority": "priority",
    "correlation_id": "correlationId",
    "reply_to": "replyTo",
    "type": "type",
    "group_id": "groupId",
    "group_sequence": "groupSequence",
    "user_id": "userId",
    "redeliveries": "redeliveryCounter",
    "original_destination": "originalDestination",
}


@pytest.mark.promise("pipeline-reads-beside")
def test_what_activemq_wrote_is_read_to_the_last_byte(activemq: ActiveMQ, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    activemq("produce", directory)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}

    def read(table: str) -> list[dict[str, Any]]:
        names = [name for name, _ in columns.COLUMNS[table]]
        return [dict(zip(names, row, strict=True)) for file in found for row in rows(file, table, FAILFAST)]

    found = journal_files([str(directory)], is_tail_wanted=True)
    for file in found:
        edge = 0
        for stretch in walk(file):
            assert stretch.start == edge
            edge = stretch.stop
        assert edge == Path(file.path).stat().st_size

    records, messages = read(columns.RECORDS), read(columns.MESSAGES)
    assert all(row["is_sound"] for row in records)
    assert {row["epoch"] for row in records} == {None}
    files = JournalFiles(str(directory))
    seen = [
        (item.file, item.offset, item.size, item.message_id, item.transaction, item.subscription)
        for number in files.list()
        for item in inspect_walk(files, read_headers(files), number)
        if isinstance(item, Seen)
    ]
    own = ("file", "offset", "length", "message_id", "transaction", "subscription")
    store_rows = [tuple(row[name] for name in own) for row in records if row["store"] == str(directory)]
    assert store_rows == seen

    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
    dumped = {message["id"]: message for owner in activemq("dump", directory) for message in owner.get("messages", ())}
    ours = {row["message_id"]: row for row in messages}
    assert dumped
    assert dumped.keys() <= ours.keys()
    for message_id, message in dumped.items():
        row = ours[message_id]
        assert {name: row[name] for name in _THEIRS} == {name: message[theirs] for name, theirs in _THEIRS.items()}
        assert row["sent"] == message["timestamp"] * 1000
        if row["body_kind"] == "text":
            assert (row["text"] or "") == message["body"], "what they print of a message without a text"
    assert all(row["body_kind"] for row in messages)
    assert all(row["broker_in"] for row in messages)
    assert {"ADD_MESSAGE", "REMOVE_MESSAGE", "COMMIT", "SUBSCRIPTION"} <= {row["command"] for row in records}


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
