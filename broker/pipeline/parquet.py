"""Where Parquet of the table ``messages`` stands. No Spark."""

from __future__ import annotations

from pathlib import Path

from broker.pipeline.columns import MESSAGES

_SIGNS = ("_SUCCESS", "*.parquet", "*=*")


def messages_parquet(path: str) -> str | None:
    """Where it stands when ``path`` is such Parquet, or the lake of the job archive; None: it is something else."""
    place = Path(path)
    if path.endswith(".parquet"):
        return path
    if not place.is_dir() or next(place.glob("db-*.log"), None) is not None:
        return None
    for directory in (place, place / MESSAGES):
        if any(next(directory.glob(sign), None) for sign in _SIGNS):
            return str(directory)
    return None
