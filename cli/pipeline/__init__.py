"""``tandemmq pipeline``: queries of the journals of any number of brokers, answered with Spark.

A job with options of its own is a module with its name, listed in the table below.
"""

from __future__ import annotations

from tandemmq.cli.lazy import Commands, LazyGroup

_COMMANDS: Commands = {
    "composition": ("tandemmq.cli.pipeline.plain", "Contents of the files, to the byte."),
    "verify": ("tandemmq.cli.pipeline.plain", "Check all checksums and list the damage."),
    "duplicates": ("tandemmq.cli.pipeline.plain", "Messages that were stored twice."),
    "dlq": ("tandemmq.cli.pipeline.plain", "Dead letters, with origin and cause."),
    "latency": ("tandemmq.cli.pipeline.latency", "How long messages waited, and how many wait."),
    "pins": ("tandemmq.cli.pipeline.plain", "What holds each file, and why."),
    "at": ("tandemmq.cli.pipeline.at", "Contents of queues at a given time."),
    "archive": ("tandemmq.cli.pipeline.archive", "Add journals to a message lake, each file once."),
    "replay": ("tandemmq.cli.pipeline.replay", "Send messages back to a broker, each once."),
    "package": ("tandemmq.cli.pipeline.package", "Files for spark-submit."),
}

pipeline = LazyGroup(
    "pipeline",
    table=_COMMANDS,
    help="""Query the journals of stores and archives. They are only read.

    Exit code 1 where an operator must act: damage, files that do not add up, ids stored twice, dead letters.""",
)
