"""Commands that send one request to the admin API and print the answer: destinations, clients, tasks and log levels."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import click

from tandemmq.cli.admin import admin_option, answer_understood, call
from tandemmq.cli.api import carry_out, change, choice_options, chosen, get, place, rows
from tandemmq.cli.output import Column, json_option, print_table, tell

LOG_LEVEL_SECONDS_MAX: Final = 10.0
#: Levels of `broker.process.log`, which takes long to import.
LEVELS: Final = ("debug", "info", "warning", "error", "default")

#: Columns of numbers. All others are text.
_NUMBERS: Final = frozenset(
    (
        *("messages", "unacknowledged", "pending", "prefetch", "enqueued", "dequeued", "dispatched", "dropped"),
        *("consumers", "producers", "durable_subscriptions", "held_bytes", "loop_seconds", "seconds"),
    )
)

_admin = admin_option("Admin address of the master.")
_filter = click.option("--filter", metavar="PATTERN", help="Only names of this form: 'orders.*'.")
_limit = click.option("--limit", type=click.IntRange(1), metavar="COUNT", help="Maximum number of rows.")


class Listing(click.Group):
    """Group of verbs with ``list`` as its default."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        is_help = bool(arguments) and arguments[0] in context.help_option_names
        if not arguments or (arguments[0].startswith("-") and not is_help):
            arguments = ["list", *arguments]
        return super().parse_args(context, arguments)


queues = Listing("queues", help="Queues: list, create, delete, purge, pause, resume. Without a verb: list.")
topics = Listing("topics", help="Topics: list, create, delete. Without a verb: list.")
connections = Listing("connections", help="Client connections: list, close. Without a verb: list.")
subscriptions = Listing("subscriptions", help="Durable subscriptions: list, delete. Without a verb: list.")
tasks = Listing("tasks", help="Tasks of move, copy, purge and retry: list, stop. Without a verb: list.")


# ---- lists


def _listing(name: str, path: str, columns: str, help: str, *options: Callable[..., Any]) -> click.Command:
    """Return the command for a list of the API, shown as a table with these columns. The options, except that for the
    broker, are parameters of the query. Without the option ``--limit``, the API returns the list as one page."""

    def listed(admin: str, as_json: bool, limit: int | None = None, **query: str | None) -> None:
        found = list(rows(admin, path, limit, **query)) if _limit in options else get(admin, path)["items"]
        if as_json:
            click.echo(json.dumps({"items": found}, indent=2))
            return
        names = columns.split()
        table = [[_cell(row.get(each)) for each in names] for row in found]
        head = [Column(each, each in _NUMBERS) for each in names]
        if any(_paused(row) for row in found):
            head.append(Column("paused"))
            table = [[*cells, _paused(row)] for cells, row in zip(table, found, strict=True)]
        print_table(head, table)

    for option in (json_option, *reversed(options)):
        listed = option(listed)
    return click.command(name, help=help)(listed)


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return value


def _paused(row: dict[str, Any]) -> str:
    return ", ".join(who for who in ("consumers", "producers") if row.get(f"{who}_paused"))


_PAGES: Final = (_admin, _filter, _limit)
queues.add_command(
    _listing(
        "list",
        "destinations/queue",
        "name messages unacknowledged consumers producers enqueued dequeued",
        "List queues with their figures.",
        *_PAGES,
    )
)
topics.add_command(
    _listing(
        "list",
        "destinations/topic",
        "name consumers durable_subscriptions producers enqueued dispatched dropped",
        "List topics with their figures.",
        *_PAGES,
    )
)
connections.add_command(
    _listing(
        "list",
        "connections",
        "id peer user client_id connector consumers producers held_bytes loop_seconds",
        "List client connections.",
        *_PAGES,
    )
)
subscriptions.add_command(
    _listing(
        "list",
        "subscriptions",
        "client_id name topic messages unacknowledged consumers selector",
        "List durable subscriptions with their waiting messages.",
        *_PAGES,
    )
)
tasks.add_command(
    _listing(
        "list",
        "tasks",
        "id kind destination by state seconds counts error",
        "List running tasks and the latest finished ones.",
        _admin,
    )
)
consumers = _listing(
    "consumers",
    "consumers",
    "connection id user destinations prefetch unacknowledged pending selector slow",
    "List consumers, and why a consumer is slow.",
    click.option("--queue", metavar="NAME", help="Only consumers of this queue."),
    click.option("--topic", metavar="NAME", help="Only consumers of this topic."),
    _admin,
    _limit,
)


# ---- changes


def _destination_verbs(group: click.Group, kind: str, refused: str) -> None:
    """Add the verbs that queues and topics share."""

    @group.command(help=f"Create a {kind}. An existing {kind} does not change.")
    @click.argument("name")
    @_admin
    @json_option
    def create(name: str, admin: str, as_json: bool) -> None:
        found = change(admin, "POST", "destinations", {"kind": kind, "name": name})
        tell(as_json, found, f"{kind}://{name} is there")

    @group.command(help=f"Delete a {kind} and all it holds. Refused while {refused}.")
    @click.argument("name")
    @_admin
    @json_option
    def delete(name: str, admin: str, as_json: bool) -> None:
        change(admin, "DELETE", place("destinations", kind, name))
        tell(as_json, {"kind": kind, "name": name, "deleted": True}, f"{kind}://{name} is deleted, with all it held")


_destination_verbs(queues, "queue", "it has consumers")
_destination_verbs(topics, "topic", "it has subscribers")


@queues.command()
@click.argument("name")
@choice_options
@_admin
@json_option
def purge(name: str, admin: str, as_json: bool, **choice: Any) -> None:
    """Delete messages of a queue: all, or selected ones. Messages that consumers hold stay."""
    said = chosen(**choice, is_all_meant=True)
    if said == {"all": True}:
        carry_out(admin, place("destinations", "queue", name, "purge"), {}, as_json)
    else:
        carry_out(admin, place("destinations", "queue", name, "messages", "delete"), said, as_json)


def _pausing(verb: str, help: str) -> None:
    @queues.command(verb, help=help)
    @click.argument("name")
    @click.option("--consumers/--no-consumers", default=True, help="Pause or resume consumers.", show_default=True)
    @click.option("--producers/--no-producers", default=False, help="Pause or resume producers.", show_default=True)
    @_admin
    @json_option
    def command(name: str, consumers: bool, producers: bool, admin: str, as_json: bool) -> None:
        body = {"consumers": consumers, "producers": producers}
        row = change(admin, "POST", place("destinations", "queue", name, verb), body)
        paused = _paused(row)
        tell(as_json, row, f"queue://{name}: {f'{paused} paused' if paused else 'not paused'}")


_pausing(
    "pause",
    "Stop the delivery of a queue (its consumers stay), or block its producers, until it is resumed or deleted. A "
    "pause lasts through restarts and failovers. Commands of operators, such as move, still reach its messages.",
)
_pausing("resume", "Resume a paused queue.")


@connections.command()
@click.argument("id")
@_admin
@json_option
def close(id: str, admin: str, as_json: bool) -> None:
    """Disconnect a client. Others receive its unacknowledged messages; it can connect again."""
    change(admin, "DELETE", place("connections", id))
    tell(as_json, {"id": id, "closed": True}, f"connection {id} is closed")


@subscriptions.command()
@click.argument("client_id")
@click.argument("name")
@_admin
@json_option
def delete(client_id: str, name: str, admin: str, as_json: bool) -> None:
    """Delete a durable subscription and its messages. Refused while its client is connected."""
    change(admin, "DELETE", place("subscriptions", client_id, name))
    facts = {"client_id": client_id, "name": name, "deleted": True}
    tell(as_json, facts, f"the durable subscription {name} of {client_id} is deleted, with all it held")


@tasks.command()
@click.argument("id", type=click.IntRange(1))
@_admin
@json_option
def stop(id: int, admin: str, as_json: bool) -> None:
    """Stop a task between two messages. Finished steps stay."""
    tell(as_json, change(admin, "DELETE", f"tasks/{id}"), f"task {id} will stop")


# ---- log levels


@click.command()
@admin_option("Admin address of the broker.")
@click.argument("logger", required=False)
@click.argument("level", required=False, type=click.Choice(LEVELS))
@json_option
def log_level(admin: str, logger: str | None, level: str | None, as_json: bool) -> None:
    """Set the LEVEL of a LOGGER and all below it, or show the levels that are set.

    LOGGER is a package or module of the broker, such as store or broker.net, or tandemmq for all of it. The level lasts
    until the broker reads its settings again (SIGHUP) or ends; "default" returns to the settings.
    """
    if (logger is None) != (level is None):
        raise click.UsageError("a LOGGER and a LEVEL, or neither")
    query = {"logger": logger, "level": level}
    found = call(
        admin, "log-level", query, method="GET" if logger is None else "POST", seconds_max=LOG_LEVEL_SECONDS_MAX
    )
    if as_json:
        tell(as_json, found)
        return
    with answer_understood(admin):
        print_table([Column("logger"), Column("level")], sorted(found["levels"].items()))
