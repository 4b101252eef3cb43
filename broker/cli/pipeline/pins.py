"""``tandemmq pipeline pins``: who holds each journal file, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from broker.cli.pipeline.asked import answer, asked, journals_there
from broker.pipeline.jobs.tables import Sources


def whole_stores(sources: Sources) -> None:
    """Raises ValueError where files are left out: what holds a file may stand in any other. See journals_there."""
    if sources.first is not None or sources.last is not None:
        raise ValueError("what holds a file may stand in any other: pins takes no --from-file and no --to-file")
    journals_there(replace(sources, is_tail_wanted=True))


@click.command
@asked
def pins(**common: Any) -> None:
    """Who holds each file of the stores in SOURCES, and why: the answer of `tandemmq store why`, of many stores.

    The newest file of each store is read, too, whatever --tail says. Exit code 1 when a journal is damaged, for then
    something is not known.
    """
    answer("pins", check=whole_stores, **common)
