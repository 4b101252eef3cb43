"""Journals as data sets: a PySpark data source, and jobs that use it. The pipeline only reads files; the broker does
not depend on it.

An import of this package does not import Spark or Arrow (the extra ``spark``): functions import them when they are
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
