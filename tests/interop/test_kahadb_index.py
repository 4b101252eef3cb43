"""The index of a real ActiveMQ is read: everything equals its own dump."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.reader import JournalReader
from tandemmq.store.kahadb.index import read_index
from tandemmq.store.kahadb.java_objects import AuditImage, decode_audit
from tandemmq.store.records.commands import AckMap, AddMessage, ProducerAudit, UpdateMessage, decode
from tests.support.interop.scripted import Script, Step
from tests.support.store.takeover_harness import Held

pytestmark = [pytest.mark.service, pytest.mark.promise("bytes-are-activemqs")]


def steps(directory: Path, ending: list[str]) -> list[Step]:
    return [
        {"do": "open", "directory": str(directory), "fileLength": 65_536, "prioritized": True},
        {"do": "subscribe", "topic": "T", "client": "c", "name": "s"},
        {"do": "subscribe", "topic": "T", "client": "d", "name": "t"},
        {"do": "send", "to": "queue://Q", "count": 300, "priority": [4, 9, 0]},
        {"do": "send", "to": "topic://T", "count": 40, "priority": [4, 9, 0]},
        {"do": "send", "to": "queue://long", "count": 2, "size": 40_000},
        {"do": "receive", "from": "queue://Q", "count": 20},
        {"do": "take", "topic": "T", "client": "c", "name": "s", "count": 7},
        {"do": "send", "to": "queue://branch", "xa": "X"},
        {"do": "prepare", "xa": "X"},
        {"do": "dump"},
        *({"do": step} for step in ending),
    ]


@pytest.mark.parametrize("ending", [["stop"], ["checkpoint", "halt"]])
def test_an_index_reads_as_activemq_dumps_it(script: Script, tmp_path: Path, ending: list[str]) -> None:
    answers = script(*steps(tmp_path, ending))
    index = read_index(str(tmp_path))
    assert index is not None
    files = JournalFiles(str(tmp_path))
    reader = JournalReader(files)
    found: Held = {}
    with index:
        assert (index.version, index.openwire_version) == (7, 11)
        assert index.was_closed == (ending == ["stop"])
        assert not index.is_minimal
        for destination in index.destinations():
            entries = list(destination.entries())
            for entry in entries:
                assert entry.size is not None
                command = decode(reader.read(entry.location, entry.size))
                add = command.add if isinstance(command, UpdateMessage) else command
                assert isinstance(add, AddMessage)
                assert add.message_id == entry.message_id
            if not destination.destination.is_topic:
                found[destination.destination.name] = [entry.message_id for entry in entries]
            for subscription in destination.subscriptions:
                assert subscription.location is not None
                assert decode(reader.read(subscription.location)) == subscription.command
                name = f"{destination.destination.name} for {subscription.key}"
                found[name] = [entry.message_id for entry in entries if entry.sequence in subscription.pending]
        assert found == answers.held
        assert index.last_update is not None
        assert index.first_in_progress is not None, "a branch is prepared"
        assert index.first_in_progress < index.last_update
        assert index.producer_audit is not None
        audit = decode(reader.read(index.producer_audit))
        assert isinstance(audit, ProducerAudit)
        image = decode_audit(audit.audit)
        assert isinstance(image, AuditImage)
        assert len(image.windows) == 3, "the branch is not decided"
        assert index.ack_map is not None
        ack_map = decode(reader.read(index.ack_map))
        assert isinstance(ack_map, AckMap)
    reader.close()
