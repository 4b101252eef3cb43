"""Tables of a journal that a test makes by hand, and a store of an old ActiveMQ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tandemmq.journal.format import encode_batch
from tandemmq.store.records.commands import encode_add, encode_producer_audit
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tests.support.pipeline.frames import frames_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def frame(spark: SparkSession) -> Callable[..., DataFrame]:
    return frames_of(spark)


QUEUE: Final = Destination(DestinationKind.QUEUE, "orders")


def stored(number: int) -> bytes:
    """The record that stores the message ``number`` of a producer, of about 1.5 kB, in the queue orders."""
    message_id = f"ID:p-1:1:1:{number}"
    message = Message(QUEUE, message_id, b"x" * 1500, BodyKind.BYTES, persistent=True, timestamp=1_700_000_000_000)
    return encode_add(message, encode_message(message))


@pytest.fixture
def audited(tmp_path: Path) -> Path:
    """Three files of an old ActiveMQ: at each checkpoint the audit of all producers, which grows, and a message now
    and then that nobody consumes."""
    directory = tmp_path / "audited"
    directory.mkdir()
    checkpoint = 0
    for file in (1, 2, 3):
        content = b""
        while len(content) < 256 << 10:
            checkpoint += 1
            if checkpoint % 20 == 1:
                content += encode_batch([stored(checkpoint)])[0][:-5]
            content += encode_batch([encode_producer_audit(bytes(2000 + 100 * checkpoint))])[0][:-5]
        (directory / f"db-{file}.log").write_bytes((content + b"-qMa4").ljust(320 << 10, b"\0"))
    return directory
