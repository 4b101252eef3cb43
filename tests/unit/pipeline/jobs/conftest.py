"""Tables of a journal that a test makes by hand: rows as dicts, what is not said is null."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tandemmq.journal.format import encode_batch
from tandemmq.pipeline.columns import COLUMNS, ddl
from tandemmq.store.records.commands import encode_add, encode_producer_audit
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STORE: Final = "a"


@pytest.fixture
def frame(spark: SparkSession) -> Callable[..., DataFrame]:
    """``frame(table, *rows)``: the rows as a DataFrame of that table; the store is "a" where a row names none."""

    def make(table: str, *rows: dict[str, Any]) -> DataFrame:
        columns = [name for name, _ in COLUMNS[table]]
        unknown = {name for row in rows for name in row} - set(columns)
        assert not unknown, f"{table} has no {unknown}"
        return spark.createDataFrame(
            [[{"store": STORE, **row}.get(name) for name in columns] for row in rows], ddl(table)
        )

    return make


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
