"""Which sources are Parquet of the table ``messages``, and which are the lake of the job archive. No Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tandemmq.pipeline.lake import LEDGER

_SIGNS = ("_SUCCESS", "*.parquet", "*=*")


def is_lake(path: str) -> bool:
    """Whether the job archive made it."""
    return (Path(path) / LEDGER).is_dir()


def is_parquet(path: str) -> bool:
    """Whether it is a file of Parquet, a directory of such as Spark writes it, or a lake."""
    place = Path(path)
    return path.endswith(".parquet") or (
        place.is_dir() and (is_lake(path) or any(next(place.glob(sign), None) for sign in _SIGNS))
    )


def are_parquet(paths: Sequence[str]) -> bool:
    """False: they are journals, or nothing. ValueError where there are some of both."""
    found = {is_parquet(path) for path in paths}
    if len(found) > 1:
        raise ValueError("give journals or Parquet, not both at once")
    return found == {True}
