"""Jobs that answer operators' questions about journals. Each is a module: functions from DataFrames to DataFrames, and
``run``, which reads the sources, writes Parquet below a directory and returns a summary. Notebooks call either;
``tandemmq pipeline`` calls ``run``.
"""

from __future__ import annotations

from typing import Final

# name of the job -> its module, imported on use
JOBS: Final = {
    name: f"tandemmq.pipeline.jobs.{name}"
    for name in ("composition", "verify", "duplicates", "latency", "pins", "at", "archive", "replay")
} | {"dlq": "tandemmq.pipeline.jobs.dead_letters"}
