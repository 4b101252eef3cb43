"""``tandemmq store``: examine a data directory, repair it, convert it and make it smaller."""

from __future__ import annotations

from typing import Final

import click

from tandemmq.cli import Commands, LazyGroup

COMMANDS: Final[Commands] = {
    "afresh": ("tandemmq.cli.store.maintenance", "Begin with an empty store after the journal was lost."),
    "check": ("tandemmq.cli.store.maintenance", "Check that everything in a directory agrees."),
    "compact": ("tandemmq.cli.store.maintenance", "Empty and remove journal files in which much is dead."),
    "export": ("tandemmq.cli.store.transfer", "Write a new directory with all live messages."),
    "handback": ("tandemmq.cli.store.transfer", "Prepare a directory for ActiveMQ."),
    "import": ("tandemmq.cli.store.transfer", "Copy all live messages of another directory."),
    "inspect": ("tandemmq.cli.store.inspect", "Print the records of a journal."),
    "rebuild-index": ("tandemmq.cli.store.maintenance", "Replay the journal into a new index."),
    "why": ("tandemmq.cli.store.why", "Show why each journal file is kept."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def store() -> None:
    """Show, check, shrink and move a data directory."""
