"""Directories that cannot be used: the broker says which, why, and harms nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import stomp

from tandemmq.journal.format import encode_batch
from tandemmq.store.records.commands import encode_trace
from tests.support.acceptance.broker_process import BrokerProcess, wait_until


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path / "data", "a")
    yield made
    made.stop()


def journal_file(path: Path, *batches: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    content = b""
    for text in batches:
        batch, _ = encode_batch([encode_trace(text.decode())])
        content = content[: -5 if content else None] + bytes(batch)
    path.write_bytes(content)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # Root may write anywhere but where nothing can be written.
        broker = BrokerProcess("/proc/self/tandemmq", "a")
        broker.log = tmp_path / "log"
    else:
        (tmp_path / "data").mkdir(mode=0o500)
        broker = BrokerProcess(tmp_path / "data", "a")
    assert broker.start().wait() == 1
    assert broker.data in broker.log.read_text()
    assert "Traceback" not in broker.log.read_text()


@pytest.mark.promise("foreign-files-are-kept")
def test_a_foreign_file_in_the_place_of_a_journal_file_is_refused_and_kept(broker: BrokerProcess) -> None:
    path = Path(broker.data) / "db-1.log"
    path.parent.mkdir()
    content = b"this is somebody's diary\n" * 1000
    path.write_bytes(content)
    assert broker.start().wait() == 1
    assert "db-1.log is corrupt from offset 0" in broker.log.read_text()
    assert "Traceback" not in broker.log.read_text()
    assert path.read_bytes() == content


@pytest.mark.promise("damage-is-named")
def test_damage_in_the_middle_is_refused_with_its_place(broker: BrokerProcess) -> None:
    path = Path(broker.data) / "db-1.log"
    journal_file(path, b"one", b"two", b"three")
    content = bytearray(path.read_bytes())
    content[content.index(b"two")] ^= 1
    path.write_bytes(content)
    assert broker.start().wait() == 1
    assert "db-1.log is corrupt from offset" in broker.log.read_text()
    assert path.read_bytes() == bytes(content)


@pytest.mark.promise("damage-is-named")
def test_a_truncated_file_is_a_torn_tail(broker: BrokerProcess) -> None:
    path = Path(broker.data) / "db-1.log"
    journal_file(path, b"one", b"two", b"three")
    path.write_bytes(path.read_bytes()[:-20])
    broker.start().wait_role("master")
    assert broker.terminate() == 0


@pytest.mark.promise("index-is-rebuilt")
def test_a_damaged_index_is_set_aside_and_built_anew(broker: BrokerProcess) -> None:
    broker.start().wait_role("master")
    connection = stomp.Connection12([("127.0.0.1", broker.stomp)])
    connection.connect(wait=True)
    for number in range(3):
        connection.send("/queue/q", str(number), persistent="true", receipt=str(number))
    wait_until(lambda: count(broker) == 3, "three messages are stored")
    assert broker.terminate() == 0
    data = Path(broker.data) / "index" / "a" / "db.data"
    data.write_bytes(b"\xff" * data.stat().st_size)
    broker.start().wait_role("master")
    assert count(broker) == 3
    assert any(".aside-" in name for name in os.listdir(Path(broker.data) / "index"))
    assert broker.terminate() == 0


def count(broker: BrokerProcess) -> int:
    status = broker.status()
    assert status is not None
    return int(status["counts"]["messages"])
