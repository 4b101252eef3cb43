"""Journals as data sets: a PySpark data source, and jobs on it. Reads files only; the broker needs nothing from it.

Importing this imports neither Spark nor Arrow: code that needs them (the extra ``spark``) imports them when it is
called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandemmq.pipeline.columns import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TABLES", "register"]


def register(spark: SparkSession) -> None:
    """Register the data source: ``spark.read.format("tandemmq").load(path)`` then reads the journals below ``path``."""
    from tandemmq.pipeline.source import JournalDataSource

    spark.dataSource.register(JournalDataSource)
