"""Tables of a journal that a test makes by hand, and a store of an old ActiveMQ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tandemmq.journal.format import encode_batch
from tandemmq.store.records.commands import encode_producer_audit
from tests.support.pipeline.frames import frames_of
from tests.support.pipeline.pipeline_journals import add

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def frame(spark: SparkSession) -> Callable[..., DataFrame]:
    return frames_of(spark)


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
                content += encode_batch([add(checkpoint, b"x" * 1500)])[0][:-5]
            content += encode_batch([encode_producer_audit(bytes(2000 + 100 * checkpoint))])[0][:-5]
        (directory / f"db-{file}.log").write_bytes((content + b"-qMa4").ljust(320 << 10, b"\0"))
    return directory
