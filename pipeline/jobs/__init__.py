"""What operators ask a journal, each a module: functions from DataFrames to DataFrames, and ``run``, which reads the
sources, writes Parquet below a directory and sums up. From a notebook call either; ``tandemmq pipeline`` calls ``run``.
"""

from __future__ import annotations

from typing import Final

# name of the job -> its module; imported when it is asked for.
JOBS: Final = {
    name: f"tandemmq.pipeline.jobs.{name}"
    for name in ("composition", "verify", "duplicates", "latency", "pins", "at", "archive", "replay")
} | {"dlq": "tandemmq.pipeline.jobs.dead_letters"}
