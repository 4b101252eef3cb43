"""Jobs that analyse journals for operators. Each job is a module: functions from DataFrames to DataFrames, and ``run``,
which reads the sources, writes Parquet below a directory and returns a summary. Notebooks call the functions or
``run``; ``tandemmq pipeline`` calls ``run``.
"""

from __future__ import annotations

from typing import Final

# module of each job by name, imported when it is used
JOBS: Final = {
    name: f"tandemmq.pipeline.jobs.{name}"
    for name in ("composition", "verify", "duplicates", "latency", "pins", "at", "archive", "replay")
} | {"dlq": "tandemmq.pipeline.jobs.dead_letters"}
