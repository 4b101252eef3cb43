"""``tandemmq store``: examine a data directory, repair it, convert it and make it smaller.

Each command is a module with its name, listed below.
"""

from __future__ import annotations

import click

from tandemmq.cli.store.afresh import afresh
from tandemmq.cli.store.check import check
from tandemmq.cli.store.compact import compact
from tandemmq.cli.store.export import export
from tandemmq.cli.store.handback import handback
from tandemmq.cli.store.import_ import import_
from tandemmq.cli.store.inspect import inspect
from tandemmq.cli.store.rebuild_index import rebuild_index
from tandemmq.cli.store.why import why


@click.group()
def store() -> None:
    """Show, check, shrink and move a data directory."""


for command in (afresh, check, compact, export, handback, import_, inspect, rebuild_index, why):
    store.add_command(command)
