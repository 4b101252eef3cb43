"""``tandemmq pipeline``: jobs that read the journals of any number of brokers.

A job with options of its own is a module with its name, listed in the table below.
"""

from __future__ import annotations

from tandemmq.cli import Commands, LazyGroup

_COMMANDS: Commands = {
    "composition": ("tandemmq.cli.pipeline.plain", "Show what fills the files."),
    "verify": ("tandemmq.cli.pipeline.plain", "Verify checksums; show damage."),
    "duplicates": ("tandemmq.cli.pipeline.plain", "Find what was stored twice."),
    "dlq": ("tandemmq.cli.pipeline.plain", "Show dead letters with origin and cause."),
    "latency": ("tandemmq.cli.pipeline.latency", "Show how long messages waited, and how many wait."),
    "pins": ("tandemmq.cli.pipeline.plain", "Show why each file is kept."),
    "at": ("tandemmq.cli.pipeline.at", "Show the content of queues at a moment."),
    "archive": ("tandemmq.cli.pipeline.archive", "Add journals to a message lake, each file once."),
    "replay": ("tandemmq.cli.pipeline.replay", "Send messages to a broker, each once."),
    "package": ("tandemmq.cli.pipeline.package", "Write the files for spark-submit."),
}

pipeline = LazyGroup(
    "pipeline",
    table=_COMMANDS,
    help="""Analyse, archive and replay the journals of stores and archives, which are only read.

    Exit code 1 if there is something to check: damage, files that do not add up, ids stored twice, dead letters.""",
)
