"""``tandemmq pipeline``: questions to journals of any number of brokers, answered with Spark.

A job with options of its own stands in a file of its own, with its name, and is put into the table below.
"""

from __future__ import annotations

from tandemmq.cli.lazy import Commands, LazyGroup

_COMMANDS: Commands = {
    "composition": ("tandemmq.cli.pipeline.plain", "What fills the files, to the byte."),
    "verify": ("tandemmq.cli.pipeline.plain", "The checksums of everything; what is damaged."),
    "duplicates": ("tandemmq.cli.pipeline.plain", "What was stored twice."),
    "dlq": ("tandemmq.cli.pipeline.plain", "Dead letters, from where and why."),
    "latency": ("tandemmq.cli.pipeline.latency", "How long messages waited, and how many wait."),
    "pins": ("tandemmq.cli.pipeline.plain", "Who holds each file, and why."),
    "at": ("tandemmq.cli.pipeline.at", "What stood in queues at a moment."),
    "archive": ("tandemmq.cli.pipeline.archive", "Journals into a message lake, each file once."),
    "replay": ("tandemmq.cli.pipeline.replay", "Messages back to a broker, each once."),
    "package": ("tandemmq.cli.pipeline.package", "What spark-submit is handed."),
}

pipeline = LazyGroup(
    "pipeline",
    table=_COMMANDS,
    help="""Ask the journals of stores and archives. They are only read.

    Exit code 1 where somebody must look: damage, files that do not add up, ids stored twice, dead letters.""",
)
