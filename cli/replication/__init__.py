"""``tandemmq replication``: show a replicated set, add and remove voters, take a directory out of the set.

status       status of each member, and why there is no master
reasons      that reason, from the status of the members                  pure
voters       add and remove, at the master
leave        leave and forget, on the directory of a stopped node
"""

from __future__ import annotations

from typing import Final

import click

from tandemmq.cli import Commands, LazyGroup

COMMANDS: Final[Commands] = {
    "status": ("tandemmq.cli.replication.status", "Show each member, its position, and why there is no master."),
    "add": ("tandemmq.cli.replication.voters", "Give a vote to a learner."),
    "remove": ("tandemmq.cli.replication.voters", "Take the vote of a node away."),
    "leave": ("tandemmq.cli.replication.leave", "End the membership of a directory."),
    "forget": ("tandemmq.cli.replication.leave", "End the membership after the quorum is lost for ever."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def replication() -> None:
    """Show and change a replicated set of brokers."""
