"""Jobs with only the common options."""

from __future__ import annotations

from typing import Any

import click

from tandemmq.cli.pipeline.common_options import answer, common_options, whole_stores


@click.command
@common_options
def composition(**common: Any) -> None:
    """Show the contents of the files of SOURCES: bytes by command, destination, file and hour, to the byte.

    Exit code 1 when a file does not add up to its size.
    """
    answer("composition", **common)


@click.command
@common_options
def verify(**common: Any) -> None:
    """Check all checksums in SOURCES, in parallel, and list the damage and the messages that it affects.

    Exit code 1 when there is damage.
    """
    answer("verify", **common)


@click.command
@common_options
def duplicates(**common: Any) -> None:
    """List messages that were stored twice: the same id, the same number of a producer, the same body.

    Exit code 1 for the first two; equal bodies may be intended.
    """
    answer("duplicates", **common)


@click.command
@common_options
def dlq(**common: Any) -> None:
    """List dead letters with their origin and cause; similar causes are grouped.

    Exit code 1 if there are dead letters.
    """
    answer("dlq", **common)


@click.command
@common_options
def pins(**common: Any) -> None:
    """Show what holds each file of the stores in SOURCES, and why, as `tandemmq store why` does for one store.

    The newest file of each store is read as well, even with --closed. Exit code 1 when a journal is damaged: the result
    is incomplete.
    """
    answer("pins", check=whole_stores, **common)
