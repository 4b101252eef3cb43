"""``tandemmq queues`` and ``tandemmq topics``: list, create, delete, pause, purge."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import click

from tandemmq.cli.answers import json_option, tell
from tandemmq.cli.api import Listing, carry_out, change, filter_option, limit_option, place, rows
from tandemmq.cli.choice import choice_options, chosen
from tandemmq.cli.status import admin_option
from tandemmq.cli.table import Column, print_table

_BROKER: Final = "Admin address of the master."


def _paused(row: dict[str, Any]) -> str:
    return ", ".join(who for who in ("consumers", "producers") if row.get(f"{who}_paused"))


def _group(kind: str, figures: Sequence[str], help: str, refused: str) -> click.Group:
    """Return the verbs that queues and topics share."""

    group = Listing(f"{kind}s", help=f"{help} Without a verb: list.")

    @group.command("list", help=f"List {kind}s with their figures.")
    @admin_option(_BROKER)
    @filter_option
    @limit_option("Maximum number of rows.")
    @json_option
    def listed(admin: str, pattern: str | None, limit: int | None, as_json: bool) -> None:
        found = list(rows(admin, f"destinations/{kind}", limit, filter=pattern))
        if as_json:
            click.echo(json.dumps({"items": found}, indent=2))
            return
        columns = [Column("name"), *(Column(each, is_number=True) for each in figures)]
        if any(_paused(row) for row in found):
            columns.append(Column("paused"))
        print_table(columns, ([row["name"], *(row.get(each) for each in figures), _paused(row)] for row in found))

    @group.command(help=f"Create a {kind}. An existing {kind} does not change.")
    @click.argument("name")
    @admin_option(_BROKER)
    @json_option
    def create(name: str, admin: str, as_json: bool) -> None:
        found = change(admin, "POST", "destinations", {"kind": kind, "name": name})
        tell(as_json, found, f"{kind}://{name} is there")

    @group.command(help=f"Delete a {kind} and all it holds. Refused while {refused}.")
    @click.argument("name")
    @admin_option(_BROKER)
    @json_option
    def delete(name: str, admin: str, as_json: bool) -> None:
        change(admin, "DELETE", place("destinations", kind, name))
        tell(as_json, {"kind": kind, "name": name, "deleted": True}, f"{kind}://{name} is deleted, with all it held")

    return group


queues = _group(
    "queue",
    ("messages", "unacknowledged", "consumers", "producers", "enqueued", "dequeued"),
    "Queues: list, create, delete, purge, pause, resume.",
    "it has consumers",
)
topics = _group(
    "topic",
    ("consumers", "durable_subscriptions", "producers", "enqueued", "dispatched", "dropped"),
    "Topics: list, create, delete.",
    "it has subscribers",
)


@queues.command()
@click.argument("name")
@choice_options
@admin_option(_BROKER)
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
    @admin_option(_BROKER)
    @json_option
    def command(name: str, consumers: bool, producers: bool, admin: str, as_json: bool) -> None:
        body = {"consumers": consumers, "producers": producers}
        row = change(admin, "POST", place("destinations", "queue", name, verb), body)
        tell(as_json, row, f"queue://{name}: paused are {_paused(row) or 'neither consumers nor producers'}")


_pausing(
    "pause",
    "Stop the delivery of a queue (its consumers stay), or block its producers, until it is resumed or deleted. A "
    "pause lasts through restarts and failovers. Commands of operators, such as move, still reach its messages.",
)
_pausing("resume", "Resume a paused queue.")
