"""``tandemmq doctor``: examine a volume or settings before a failure, and explain errors after one."""

from __future__ import annotations

from typing import Final

import click

from tandemmq.cli.lazy import Commands, LazyGroup

COMMANDS: Final[Commands] = {
    "storage": ("tandemmq.cli.doctor.storage_command", "Check a volume for a pair: locks, links, caches, syncs."),
    "replication": ("tandemmq.cli.doctor.replication", "Check the settings of a node of a replicated set."),
    "errors": ("tandemmq.cli.doctor.errors_command", "Failures: how to recognize each, its consequence, its remedy."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def doctor() -> None:
    """Examine the volume of a pair or the settings of a set, and list the known failures."""
