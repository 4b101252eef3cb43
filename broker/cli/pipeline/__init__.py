"""``tandemmq pipeline``: questions to journals of any number of brokers, answered with Spark.

A job with options of its own stands in a file of its own, with its name, and is put into the table below.
"""

from __future__ import annotations

from broker.cli.lazy import Commands, LazyGroup

_COMMANDS: Commands = {
    "composition": ("broker.cli.pipeline.plain", "composition", "What fills the files, to the byte."),
    "verify": ("broker.cli.pipeline.plain", "verify", "The checksums of everything; what is damaged."),
    "duplicates": ("broker.cli.pipeline.plain", "duplicates", "What was stored twice."),
    "dlq": ("broker.cli.pipeline.plain", "dlq", "Dead letters, from where and why."),
    "latency": ("broker.cli.pipeline.latency", "latency", "How long messages waited, and how many wait."),
    "pins": ("broker.cli.pipeline.pins", "pins", "Who holds each file, and why."),
    "at": ("broker.cli.pipeline.at", "at", "What stood in queues at a moment."),
    "archive": ("broker.cli.pipeline.archive", "archive", "Journals into a message lake, each file once."),
    "replay": ("broker.cli.pipeline.replay", "replay", "Messages back to a broker, each once."),
    "package": ("broker.cli.pipeline.package", "package", "What spark-submit is handed."),
}

pipeline = LazyGroup(
    "pipeline",
    table=_COMMANDS,
    help="""Ask the journals of stores and archives. They are only read.

    Exit code 1 where somebody must look: damage, files that do not add up, ids stored twice, dead letters.""",
)
