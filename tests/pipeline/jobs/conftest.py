"""Tables of a journal that a test makes by hand: rows as dicts, what is not said is null."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pytest

from broker.pipeline.columns import COLUMNS, ddl

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
