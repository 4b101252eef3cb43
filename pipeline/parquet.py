"""Recognition of sources: Parquet of the table ``messages``, or a lake of the job ``archive``. No Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tandemmq.pipeline.lake import LEDGER

_SIGNS = ("_SUCCESS", "*.parquet", "*=*")


def is_lake(path: str) -> bool:
    """Return whether ``path`` is a lake."""
    return (Path(path) / LEDGER).is_dir()


def is_parquet(path: str) -> bool:
    """Return whether ``path`` is a Parquet file, a directory of Parquet in the layout of Spark, or a lake."""
    place = Path(path)
    return path.endswith(".parquet") or (
        place.is_dir() and (is_lake(path) or any(next(place.glob(sign), None) for sign in _SIGNS))
    )


def are_parquet(paths: Sequence[str]) -> bool:
    """Return whether all paths are Parquet; False: none is. Raises ValueError for a mixture."""
    found = {is_parquet(path) for path in paths}
    if len(found) > 1:
        raise ValueError("expected journals or Parquet, not both")
    return found == {True}
