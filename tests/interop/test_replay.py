"""What the real ActiveMQ still held when it ended is sent to a broker of ours, and is the same there."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemmq.bench.peers.server import HOST
from tandemmq.bench.peers.tandemmq import TandemMQ
from tandemmq.pipeline import columns
from tandemmq.pipeline.rows import FAILFAST, rows
from tandemmq.pipeline.session import NoSpark, check_java
from tandemmq.pipeline.stores import journal_files
from tandemmq.store.records.message import BodyKind

pytestmark = [pytest.mark.service, pytest.mark.thorough]

ActiveMQ = Callable[..., list[dict[str, Any]]]

SECONDS_MAX = 600
_UNSENDABLE = {BodyKind.OBJECT, BodyKind.STREAM, BodyKind.BLOB}
# a column of messages -> what Tandem.java calls it
_SAME = {
    "persistent": "persistent",
    "priority": "priority",
    "correlation_id": "correlationId",
    "type": "type",
    "group_id": "groupId",
    "group_sequence": "groupSequence",
    "reply_to": "replyTo",
}


@pytest.mark.timeout(SECONDS_MAX)
def test_what_waits_at_activemq_is_sent_on(
    activemq: ActiveMQ, require_service: Callable[[object, str], None], tmp_path: Path
) -> None:
    require_service(importlib.util.find_spec("pyspark"), "pyspark is not installed")
    try:
        check_java()
    except NoSpark as error:
        require_service(False, str(error))
    theirs = tmp_path / "theirs"
    held = {
        message["id"]: message
        for owner in activemq("produce", theirs)
        if owner["owner"] == "queue"
        for message in owner["messages"]
    }
    with TandemMQ(tmp_path / "broker", data=tmp_path / "ours") as server:
        command = ["pipeline", "replay", str(theirs), "--tail", "--out", str(tmp_path / "out"), "--json"]
        wanted = [
            "--only",
            "unacknowledged",
            "--where",
            "destination_type = 'queue'",
            "--conf",
            "spark.driver.memory=768m",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "tandemmq", *command, *wanted, "--master", "local[2]", "--to", f"stomp://{HOST}:{server.port}"],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )  # fmt: skip
    assert done.returncode == 1, f"{done.stdout} {done.stderr}"  # for the objects
    figures = json.loads(done.stdout)
    reasons = {row["reason"] for row in figures["tables"]["Left out"]}
    assert reasons == {"acknowledged", "unsendable", "in_doubt", "rolled_back"}

    names = [name for name, _ in columns.COLUMNS[columns.MESSAGES]]
    found = [
        dict(zip(names, row, strict=True))
        for file in journal_files([str(tmp_path / "ours")], is_tail_wanted=True)
        for row in rows(file, columns.MESSAGES, FAILFAST)
    ]
    ours = {dict(row["properties"])["originalMessageId"]: row for row in found}
    assert len(found) == len(ours), "each once"
    assert ours.keys() == {message_id for message_id, each in held.items() if each["kind"] not in _UNSENDABLE}
    for message_id, row in ours.items():
        message = held[message_id]
        assert {name: row[name] for name in _SAME} == {name: message[theirs] for name, theirs in _SAME.items()}
        assert f"{row['destination_type']}://{row['destination']}" == message["destination"]
        assert row["sent"] == message["timestamp"] * 1000
        match BodyKind(message["kind"]):
            case BodyKind.TEXT:
                assert (row["body_kind"], row["text"]) == ("text", message["body"])
            case BodyKind.NONE:
                assert (row["body_kind"], row["body"]) == ("text", b"")
            case kind:
                assert (row["body_kind"], row["body"].hex()) == (kind.name.lower(), message["body"])
