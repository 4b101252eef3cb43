"""The jobs that are asked nothing but where from and where to."""

from __future__ import annotations

from typing import Any

import click

from tandemmq.cli.pipeline.common_options import answer, common_options, whole_stores


@click.command
@common_options
def composition(**common: Any) -> None:
    """What fills the files of SOURCES: bytes by command, destination, file and hour, to the byte.

    Exit code 1 when a file does not add up to its size.
    """
    answer("composition", **common)


@click.command
@common_options
def verify(**common: Any) -> None:
    """The checksums of everything in SOURCES, in parallel; what is damaged, and which messages it concerns.

    Exit code 1 when there is damage.
    """
    answer("verify", **common)


@click.command
@common_options
def duplicates(**common: Any) -> None:
    """What was stored twice: the same id, the same number of a producer, the same body.

    Exit code 1 for the first two; the same body may be meant.
    """
    answer("duplicates", **common)


@click.command
@common_options
def dlq(**common: Any) -> None:
    """Dead letters: from where, and why; causes that are alike together.

    Exit code 1 while letters are there.
    """
    answer("dlq", **common)


@click.command
@common_options
def pins(**common: Any) -> None:
    """Who holds each file of the stores in SOURCES, and why: the answer of `tandemmq store why`, of many stores.

    The newest file of each store is read, too, whatever --closed says. Exit code 1 when a journal is damaged, for then
    something is not known.
    """
    answer("pins", check=whole_stores, **common)
