"""Directories that cannot be used: the broker says which, why, and harms nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import stomp

sys.path.insert(0, os.path.dirname(__file__))

from broker_process import BrokerProcess, wait_until

from journal.format import encode_batch
from store.records.commands import encode_trace


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


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    broker = BrokerProcess(tmp_path / "file" / "data", "a")
    broker.log = tmp_path / "log"
    assert broker.start().wait() == 1
    assert str(tmp_path / "file" / "data") in broker.log.read_text()
    assert "Traceback" not in broker.log.read_text()


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


def test_a_foreign_file_in_the_place_of_a_journal_file_is_refused_and_kept(broker: BrokerProcess) -> None:
    path = Path(broker.data) / "db-1.log"
    path.parent.mkdir()
    content = b"this is somebody's diary\n" * 1000
    path.write_bytes(content)
    assert broker.start().wait() == 1
    assert "db-1.log is corrupt from offset 0" in broker.log.read_text()
    assert "Traceback" not in broker.log.read_text()
    assert path.read_bytes() == content


def test_damage_in_the_middle_is_refused_with_its_place(broker: BrokerProcess) -> None:
    path = Path(broker.data) / "db-1.log"
    journal_file(path, b"one", b"two", b"three")
    content = bytearray(path.read_bytes())
    content[content.index(b"two")] ^= 1
    path.write_bytes(content)
    assert broker.start().wait() == 1
    assert "db-1.log is corrupt from offset" in broker.log.read_text()
    assert path.read_bytes() == bytes(content)


def test_a_truncated_file_is_a_torn_tail(broker: BrokerProcess) -> None:
    path = Path(broker.data) / "db-1.log"
    journal_file(path, b"one", b"two", b"three")
    path.write_bytes(path.read_bytes()[:-20])
    broker.start().wait_role("master")
    assert broker.terminate() == 0


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


def test_a_full_disk_stops_receipts_and_ends_when_there_is_room(
    tmp_path: Path, require_service: Callable[[object, str], None]
) -> None:
    """On a small file system of its own: producers lose their connection, nobody gets a false receipt."""
    volume = tmp_path / "volume"
    volume.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(volume)], capture_output=True, text=True, check=False
    )
    require_service(made.returncode == 0, f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    broker = BrokerProcess(volume / "data", "a", "--set", "store.journal_max_file_length=1mb")
    broker.log = tmp_path / "log"
    receipts: list[str] = []
    losses: list[int] = []

    class Listener(stomp.ConnectionListener):
        def on_receipt(self, frame: stomp.utils.Frame) -> None:
            receipts.append(frame.headers["receipt-id"])

        def on_disconnected(self) -> None:
            losses.append(1)

    try:
        broker.start().wait_role("master")
        ballast = volume / "ballast"
        ballast.write_bytes(b"x" * (3 << 20))
        connection = stomp.Connection12([("127.0.0.1", broker.stomp)])
        connection.set_listener("", Listener())
        connection.connect(wait=True)
        for number in range(200):
            if losses:
                break
            try:
                connection.send("/queue/q", "x" * 100_000, persistent="true", receipt=str(number))
            except (stomp.exception.NotConnectedException, OSError):
                break
        wait_until(lambda: losses, "the broker is demoted")
        assert "No space left on device" in broker.log.read_text()
        ballast.unlink()
        broker.wait_role("master", 40)
        assert count(broker) >= len(receipts) > 10
        assert broker.terminate() == 0
    finally:
        broker.stop()
        subprocess.run(["umount", str(volume)], check=True)
