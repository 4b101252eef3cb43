"""``tandemmq doctor``: what can be examined before something happens, and what happens then."""

from __future__ import annotations

from typing import Final

import click

from tandemmq.cli.lazy import Commands, LazyGroup

COMMANDS: Final[Commands] = {
    "storage": ("tandemmq.cli.doctor.storage_command", "Is this volume fit for a pair? Locks, links, caches, syncs."),
    "replication": ("tandemmq.cli.doctor.replication", "Do the settings of a node of a set lead where they should?"),
    "errors": ("tandemmq.cli.doctor.errors_command", "Which failure is known by what, what it leads to, what to do."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def doctor() -> None:
    """Examine what a pair or a set stands on."""
