"""Calls of the admin API (docs/api.md): lists page by page, tasks with a wait for their end, choices of messages."""

from __future__ import annotations

import re
import sys
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from tandemmq.cli.admin import API, call
from tandemmq.cli.connect import Command
from tandemmq.cli.failures import Failed
from tandemmq.cli.output import tell

Row = dict[str, Any]

PAGE_ROWS: Final = 1_000
SECONDS_MAX: Final = 60.0
#: The broker answers at the latest after this time, with the task's state. The command then asks again.
WAIT_SECONDS: Final = 10.0


def get(admin: str, path: str, **query: object) -> Row:
    """Return the answer to a GET. Ends the command with 3 if there is no master."""
    return call(admin, API + path, query, seconds_max=SECONDS_MAX)


def change(admin: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> Row:
    """Return the answer to a change."""
    return call(admin, API + path, {}, method=method, body=body, seconds_max=SECONDS_MAX)


def rows(admin: str, path: str, limit: int | None, **query: object) -> Iterator[Row]:
    """Yield all items of a list, or the first ``limit``, fetched page by page."""
    after: str | None = None
    left = limit
    while True:
        size = PAGE_ROWS if left is None else min(PAGE_ROWS, left)
        page = get(admin, path, limit=size, after=after, **query)
        yield from page["items"]
        after = page["following"]
        left = None if left is None else left - len(page["items"])
        if after is None or left == 0:
            return


def place(*parts: str) -> str:
    """Return a path of the API. Parts are names with any characters. "." and ".." are written as "~." and "~..", since
    clients remove them from a path."""
    return "/".join(urllib.parse.quote(f"~{part}" if _DOTS.fullmatch(part) else part, safe="") for part in parts)


_DOTS: Final = re.compile(r"~*\.{1,2}")


def carry_out(admin: str, path: str, body: Mapping[str, Any], as_json: bool) -> None:
    """Start a task, wait for its end and print the result. Ctrl-C leaves it running and prints how to stop it."""
    task = change(admin, "POST", path, {**body, "wait": WAIT_SECONDS})
    try:
        while task["state"] == "running":
            if sys.stderr.isatty():
                click.echo(f"\r{_counts(task)}", err=True, nl=False)
            task = get(admin, f"tasks/{task['id']}", wait=WAIT_SECONDS)
    except KeyboardInterrupt:
        raise Failed(
            f"task {task['id']} is still running; to stop it: tandemmq tasks stop {task['id']}", task=task
        ) from None
    if task["state"] == "failed":
        raise Failed(f"{task['error']} ({_counts(task)})", task=task)
    if task["state"] == "stopped":
        raise Failed("; ".join([f"stopped before its end ({_counts(task)})", *task["notes"]]), task=task)
    tell(as_json, task, _counts(task), *task["notes"])


def _counts(task: Row) -> str:
    counts = ", ".join(f"{count:,} {word.replace('_', ' ')}" for word, count in task["counts"].items())
    return counts or "nothing to do"


# ---- options that choose messages of a queue


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
    """Return the choice as the API expects it. Raises UsageError if there is none. With ``is_all_meant``, no choice
    means all messages."""
    choice: dict[str, Any] = {}
    if selector is not None:
        choice["selector"] = selector
    if ids:
        choice["ids"] = list(ids)
    if limit is not None:
        choice["limit"] = limit
    if is_all and choice:
        raise click.UsageError("--all cannot be combined with other choices")
    if not choice and not (is_all or is_all_meant):
        raise click.UsageError("choose messages with --selector, --id or --limit, or all of them with --all")
    return choice or {"all": True}
