"""Options that choose messages of a queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def choice_options(command: Command) -> Command:
    """Add ``--selector``, ``--id``, ``--limit`` and ``--all``; for ``chosen``."""
    for option in (
        click.option("--all", "is_all", is_flag=True, help="All messages."),
        click.option(
            "--limit", type=click.IntRange(1), metavar="COUNT", help="Maximum number of messages, the oldest first."
        ),
        click.option("--id", "ids", multiple=True, metavar="ID", help="Message with this id; repeatable."),
        click.option(
            "--selector", metavar="CONDITION", help="Messages that match this JMS selector: \"colour = 'red'\"."
        ),
    ):
        command = option(command)
    return command


def chosen(
    selector: str | None, ids: Sequence[str], limit: int | None, is_all: bool, *, is_all_meant: bool = False
) -> dict[str, Any]:
    """Return the choice as the API expects it. UsageError if there is none, unless ``is_all_meant`` then means all."""
    said: dict[str, Any] = {}
    if selector is not None:
        said["selector"] = selector
    if ids:
        said["ids"] = list(ids)
    if limit is not None:
        said["limit"] = limit
    if is_all and said:
        raise click.UsageError("--all cannot be combined with other choices")
    if not said and not (is_all or is_all_meant):
        raise click.UsageError("choose messages with --selector, --id or --limit, or all of them with --all")
    return said or {"all": True}
