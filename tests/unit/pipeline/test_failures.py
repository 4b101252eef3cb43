"""Failures in one sentence: real texts of Spark 4.3, cut in the middle, and a Spark that raises them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tandemmq.pipeline.failures import CHARS_MAX, cause, expected

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/tandemmq/pipeline/source.py", line 79, in read
    yield from record_batches_of(file, self._options, self._names)
  File "/x/tandemmq/pipeline/rows.py", line 85, in stretches
    raise Malformed(message)
{raised}
 SQLSTATE: 38000"""
JAVA = """An error occurred while calling o127.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 7.0 failed 1 times
\tat org.apache.spark.sql.execution.datasources.FileFormatWriter$.write(FileFormatWriter.scala:168)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 34 more
"""
PLAN = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] `nosuch` cannot be resolved. SQLSTATE: 42703; line 1
'Filter ('nosuch = 1)
+- RelationV2[store#270] tandemmq
"""


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (WORKER.format(raised="tandemmq.pipeline.source.FileGone: /x/db-1.log was deleted"), "/x/db-1.log was deleted"),
        (WORKER.format(raised="OSError: [Errno 5] Input/output error"), "OSError: [Errno 5] Input/output error"),
        (JAVA, "IOException: No space left on device"),
        (PLAN, "`nosuch` cannot be resolved."),
        ("two\nlines", "two"),
        ("", "ValueError"),
        ("x" * 10_000, "x" * (CHARS_MAX - 1) + "…"),
    ],
)
def test_the_innermost_cause_is_told_in_one_line(wanted: str, told: str) -> None:
    assert cause(ValueError(wanted)) == told


@pytest.mark.service
def test_an_error_of_spark_is_reported(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    broken = store / "db-2.log"
    content = bytearray(broken.read_bytes())
    content[5000:5100] = b"?" * 100
    broken.write_bytes(content)
    (tmp_path / "file").touch()

    def read() -> DataFrameReader:
        return spark.read.format("tandemmq")

    for ask, told in (
        (lambda: read().option("mode", "FAILFAST").load(str(store)).count(), f"{broken} from "),
        (lambda: read().option("table", "tabel").load(str(store)).count(), "table is one of records, "),
        (lambda: read().load(str(tmp_path / "file")).count(), "no journal files"),
        (lambda: spark.range(1).write.parquet(f"{tmp_path}/file/out"), "ParentNotDirectoryException: Parent path is"),
        (lambda: spark.range(1).where("nosuch = 1").count(), "A column, variable, or function parameter with name"),
    ):
        with pytest.raises(expected()) as raised:
            ask()
        assert cause(raised.value).startswith(told)
