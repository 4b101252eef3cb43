"""``tandemmq replication``: show a replicated set, add and remove voters, take a directory out of the set.

status       status of each member, and why there is no master
reasons      that reason, from the status of the members                  pure
voters       add and remove, at the master
leave        leave and forget, on the directory of a stopped node
"""

from __future__ import annotations

from typing import Final

import click

from tandemmq.cli.lazy import Commands, LazyGroup

COMMANDS: Final[Commands] = {
    "status": ("tandemmq.cli.replication.status", "Each member, its progress, and why there is no master."),
    "add": ("tandemmq.cli.replication.voters", "Give a following node a vote."),
    "remove": ("tandemmq.cli.replication.voters", "Take a node's vote away."),
    "leave": ("tandemmq.cli.replication.leave", "End the membership of a directory."),
    "forget": ("tandemmq.cli.replication.leave", "The same, when the set's quorum is gone for ever."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def replication() -> None:
    """Show a replicated set of brokers, and change its members."""
