"""Calls of the admin API (docs/api.md): lists page by page, and tasks with a wait for their end."""

from __future__ import annotations

import re
import sys
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import click

from tandemmq.cli.admin_call import API, call
from tandemmq.cli.answers import tell
from tandemmq.cli.failures import Failed

Command = TypeVar("Command", bound=Callable[..., Any])
Row = dict[str, Any]

PAGE_ROWS: Final = 1_000
SECONDS_MAX: Final = 60.0
#: The broker answers at the latest after this time, with the task's state. The command then asks again.
WAIT_SECONDS: Final = 10.0


class Listing(click.Group):
    """Group of verbs with ``list`` as its default."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        is_help = bool(arguments) and arguments[0] in context.help_option_names
        if not arguments or (arguments[0].startswith("-") and not is_help):
            arguments = ["list", *arguments]
        return super().parse_args(context, arguments)


def get(admin: str, path: str, **query: object) -> Row:
    """Return the answer to a GET. Ends the command with 3 if there is no master."""
    return call(admin, API + path, _texts(query), seconds_max=SECONDS_MAX)


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


def _texts(query: Mapping[str, object]) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in query.items()}


def limit_option(help: str) -> Callable[[Command], Command]:
    return click.option("--limit", type=click.IntRange(1), metavar="COUNT", help=help)


def filter_option(command: Command) -> Command:
    return click.option("--filter", "pattern", metavar="PATTERN", help="Only names of this form: 'orders.*'.")(command)
