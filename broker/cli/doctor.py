"""``tandemmq doctor``: what can be examined before something happens, and what happens then."""

from __future__ import annotations

from typing import Final

import click

from broker.cli.lazy import Commands, LazyGroup

COMMANDS: Final[Commands] = {
    "storage": ("broker.cli.doctor_storage", "storage", "Is this volume fit for a pair? Locks, links, caches, syncs."),
    "errors": ("broker.cli.doctor_errors", "errors", "Which failure is known by what, what it leads to, what to do."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def doctor() -> None:
    """Examine what a pair stands on."""
