"""What operators ask a journal, each a module: functions from DataFrames to DataFrames, and ``run``, which reads the
sources, writes Parquet below a directory and sums up. From a notebook call either; ``tandemmq pipeline`` calls ``run``.
"""

from __future__ import annotations

from typing import Final

# name of the job -> its module; imported when it is asked for.
JOBS: Final[dict[str, str]] = {
    "composition": "broker.pipeline.jobs.composition",
    "verify": "broker.pipeline.jobs.verify",
    "duplicates": "broker.pipeline.jobs.duplicates",
    "dlq": "broker.pipeline.jobs.dead_letters",
    "latency": "broker.pipeline.jobs.latency",
    "pins": "broker.pipeline.jobs.pins",
    "at": "broker.pipeline.jobs.at",
    "archive": "broker.pipeline.jobs.archive",
    "replay": "broker.pipeline.jobs.replay",
}
