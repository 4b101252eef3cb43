"""``tandemmq doctor``: examine a volume or settings before a failure, and explain errors after one."""

from __future__ import annotations

from typing import Final

import click

from tandemmq.cli import Commands, LazyGroup

COMMANDS: Final[Commands] = {
    "storage": (
        "tandemmq.cli.doctor.storage",
        "Check whether a volume is safe for a pair: locks, links, caches, syncs.",
    ),
    "replication": ("tandemmq.cli.doctor.replication", "Check the settings of a node of a replicated set."),
    "errors": ("tandemmq.cli.doctor.errors_command", "Print the classes of failure, their effects, and what to do."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def doctor() -> None:
    """Check a volume or a replicated set; list failures."""
