"""``tandemmq store``: what is in a data directory, why it is there, and how it gets smaller.

A command stands in a file of its own, with its name, and is put into the table below.
"""

from __future__ import annotations

import click

from broker.cli.store.check import check
from broker.cli.store.compact import compact
from broker.cli.store.export import export
from broker.cli.store.handback import handback
from broker.cli.store.import_ import import_
from broker.cli.store.inspect import inspect
from broker.cli.store.rebuild_index import rebuild_index
from broker.cli.store.why import why


@click.group()
def store() -> None:
    """Look into a data directory, and put it in order."""


for command in (check, compact, export, handback, import_, inspect, rebuild_index, why):
    store.add_command(command)
