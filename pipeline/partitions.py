"""What Spark hands to a task."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql.datasource import InputPartition

from tandemmq.pipeline.walk import JournalFile


@dataclass
class Files(InputPartition):
    """Journal files that one task reads."""

    files: tuple[JournalFile, ...] = field(default_factory=tuple)
