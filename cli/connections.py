"""``tandemmq connections``, ``consumers``, ``subscriptions`` and ``tasks``: clients, and operations that run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from tandemmq.cli.answers import json_option, tell
from tandemmq.cli.api import Listing, change, filter_option, get, limit_option, place, rows
from tandemmq.cli.status import admin_option
from tandemmq.cli.table import Column, print_table

_BROKER: Final = "Admin address of the master."
_SIZES: Final = ("held_bytes", "loop_seconds", "messages", "seconds")
_NUMBERS: Final = frozenset(("consumers", "producers", "prefetch", "unacknowledged", "pending", *_SIZES))


def _show(found: Iterable[dict[str, Any]], names: Sequence[str], as_json: bool) -> None:
    items = list(found)
    if as_json:
        click.echo(json.dumps({"items": items}, indent=2))
        return
    print_table(
        [Column(name, name in _NUMBERS) for name in names], ([_cell(row.get(name)) for name in names] for row in items)
    )


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return value


@click.group(cls=Listing)
def connections() -> None:
    """Client connections: list, close. Without a verb: list."""


@connections.command("list")
@admin_option(_BROKER)
@filter_option
@limit_option("Maximum number of rows.")
@json_option
def list_connections(admin: str, pattern: str | None, limit: int | None, as_json: bool) -> None:
    """List client connections."""
    names = ("id", "peer", "user", "client_id", "connector", "consumers", "producers", "held_bytes", "loop_seconds")
    _show(rows(admin, "connections", limit, filter=pattern), names, as_json)


@connections.command()
@click.argument("id")
@admin_option(_BROKER)
@json_option
def close(id: str, admin: str, as_json: bool) -> None:
    """Disconnect a client. Others receive its unacknowledged messages; it can connect again."""
    change(admin, "DELETE", place("connections", id))
    tell(as_json, {"id": id, "closed": True}, f"connection {id} is closed")


@click.command()
@click.option("--queue", metavar="NAME", help="Only consumers of this queue.")
@click.option("--topic", metavar="NAME", help="Only consumers of this topic.")
@admin_option(_BROKER)
@limit_option("Maximum number of rows.")
@json_option
def consumers(queue: str | None, topic: str | None, admin: str, limit: int | None, as_json: bool) -> None:
    """List consumers, and why a consumer is slow."""
    names = ("connection", "id", "user", "destinations", "prefetch", "unacknowledged", "pending", "selector", "slow")
    _show(rows(admin, "consumers", limit, queue=queue, topic=topic), names, as_json)


@click.group(cls=Listing)
def subscriptions() -> None:
    """Durable subscriptions: list, delete. Without a verb: list."""


@subscriptions.command("list")
@admin_option(_BROKER)
@filter_option
@limit_option("Maximum number of rows.")
@json_option
def list_subscriptions(admin: str, pattern: str | None, limit: int | None, as_json: bool) -> None:
    """List durable subscriptions with their waiting messages."""
    names = ("client_id", "name", "topic", "messages", "unacknowledged", "consumers", "selector")
    _show(rows(admin, "subscriptions", limit, filter=pattern), names, as_json)


@subscriptions.command()
@click.argument("client_id")
@click.argument("name")
@admin_option(_BROKER)
@json_option
def delete(client_id: str, name: str, admin: str, as_json: bool) -> None:
    """Delete a durable subscription and its messages. Refused while its client is connected."""
    change(admin, "DELETE", place("subscriptions", client_id, name))
    said = {"client_id": client_id, "name": name, "deleted": True}
    tell(as_json, said, f"the durable subscription {name} of {client_id} is deleted, with all it held")


@click.group(cls=Listing)
def tasks() -> None:
    """Tasks of move, copy, purge and retry: list, stop. Without a verb: list."""


@tasks.command("list")
@admin_option(_BROKER)
@json_option
def list_tasks(admin: str, as_json: bool) -> None:
    """List running tasks and the latest finished ones."""
    names = ("id", "kind", "destination", "by", "state", "seconds", "counts", "error")
    _show(get(admin, "tasks")["items"], names, as_json)


@tasks.command()
@click.argument("id", type=click.IntRange(1))
@admin_option(_BROKER)
@json_option
def stop(id: int, admin: str, as_json: bool) -> None:
    """Stop a task between two messages. Finished steps stay."""
    tell(as_json, change(admin, "DELETE", f"tasks/{id}"), f"task {id} is to stop")
