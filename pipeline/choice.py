"""Choice of the engine: if the user names none, DuckDB for little data, otherwise Spark. Imports neither."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from tandemmq.pipeline.engine import AUTO, LOCAL, SPARK
from tandemmq.pipeline.session import NoSpark, check_java
from tandemmq.pipeline.table import size

# Limit of the journal bytes for DuckDB. For fewer bytes, Spark takes longer to start and plan than one core takes to
# read them all.
LOCAL_BYTES_MAX: Final = 512 << 20
_NAMES: Final = {LOCAL: "DuckDB, in the process of the command", SPARK: "Spark"}


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen engine, and the reason."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"Computed by {_NAMES[self.name]}: {self.why}."


def choose(engine: str, bytes: int | None, needs_spark: str | None = None) -> Choice:
    """Return ``engine``; for AUTO, choose one. ``bytes``: size of the data to read; None: unknown. ``needs_spark``: why
    the job requires Spark; None: it does not."""
    if engine != AUTO:
        return Choice(engine, "--engine names it")
    if needs_spark is not None:
        return Choice(SPARK, needs_spark)
    if _has_session():
        return Choice(SPARK, "a Spark session is active")
    if not _is_there("duckdb"):
        return Choice(SPARK, "DuckDB is not installed (the extra local)")
    if not _is_there("pyspark"):
        return Choice(LOCAL, "Spark is not installed (the extra spark)")
    if bytes is not None and bytes <= LOCAL_BYTES_MAX:
        return Choice(LOCAL, f"{size(bytes)} are read, no more than {size(LOCAL_BYTES_MAX)}")
    try:
        check_java()
    except NoSpark as error:
        return Choice(LOCAL, str(error))
    if bytes is None:
        return Choice(SPARK, "the size of the data is unknown")
    return Choice(SPARK, f"{size(bytes)} are read, more than {size(LOCAL_BYTES_MAX)}")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # the module is imported and has no spec
        return False


def _has_session() -> bool:
    """Return whether this process has a Spark session, as in spark-submit and notebooks."""
    if sys.modules.get("pyspark.sql") is None:
        return False
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None
