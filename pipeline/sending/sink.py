"""Spark sink for sending: the frame has one row for each task, and the writer of the row sends the slices of the task.

A task may run twice, after a failure or concurrently: the ledger and the ids ensure that each message is stored once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage

from tandemmq.pipeline.sending.slices import send_task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME: Final = "tandemmq-replay"


@dataclass
class Confirmed(WriterCommitMessage):
    """Number of messages that a task sent."""

    messages: int


class ReplaySink(DataSource):
    """Data sink. Its only option is ``directory``: the directory of the ledger."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> ReplayWriter:
        return ReplayWriter(self.options["directory"])


class ReplayWriter(DataSourceWriter):
    """Writer that is pickled and sent to the tasks. It contains only the directory's name."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def write(self, iterator: Iterator[Any]) -> Confirmed:
        return Confirmed(sum(send_task(self._directory, row[0]) for row in iterator))


def send(spark: SparkSession, directory: str, tasks: int) -> None:
    """Run the round of the ledger in ``directory``, which has this many tasks. Returns when all tasks have ended."""
    spark.dataSource.register(ReplaySink)
    numbers = spark.range(0, tasks, 1, tasks)
    numbers.write.format(NAME).option("directory", directory).mode("append").save()
