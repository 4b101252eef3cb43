"""Jobs with only the common options."""

from __future__ import annotations

from typing import Any

import click

from tandemmq.cli.pipeline.common_options import answer, common_options, whole_stores


@click.command
@common_options
def composition(**common: Any) -> None:
    """Show what fills the files of SOURCES: bytes by command, destination, file and hour.

    Exit code 1 if a file does not add up to its size.
    """
    answer("composition", **common)


@click.command
@common_options
def verify(**common: Any) -> None:
    """Verify all checksums in SOURCES; show damage and the messages concerned.

    Exit code 1 if there is damage.
    """
    answer("verify", **common)


@click.command
@common_options
def duplicates(**common: Any) -> None:
    """Find what was stored twice: the same id, the same number of a producer, the same body.

    Exit code 1 for the first two; equal bodies may be intended.
    """
    answer("duplicates", **common)


@click.command
@common_options
def dlq(**common: Any) -> None:
    """Show dead letters with origin and cause, grouped by cause.

    Exit code 1 if there are dead letters.
    """
    answer("dlq", **common)


@click.command
@common_options
def pins(**common: Any) -> None:
    """Show why each file of the stores in SOURCES is kept: `tandemmq store why` for many stores.

    It always reads the newest file of each store. Exit code 1 if a journal is damaged, because the result is then
    incomplete.
    """
    answer("pins", check=whole_stores, **common)
