"""``tandemmq browse``, ``move``, ``copy`` and ``retry``: the messages of a queue, by the admin API."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from tandemmq.cli.admin import admin_option
from tandemmq.cli.api import carry_out, choice_options, chosen, get, place
from tandemmq.cli.output import Column, json_option, print_facts, print_table

_BROKER: Final = "Admin address of the master."
_BROWSED: Final = 50


@click.command()
@click.argument("queue")
@click.option("--selector", metavar="CONDITION", help="Messages that match this JMS selector.")
@click.option("--id", metavar="ID", help="Message with this id, with its body.")
@click.option("--after", type=click.IntRange(0), default=0, metavar="COUNT", help="Number of messages to skip.")
@click.option("--limit", type=click.IntRange(1, 1000), default=_BROWSED, metavar="COUNT", show_default=True)
@admin_option(_BROKER)
@json_option
def browse(queue: str, selector: str | None, id: str | None, after: int, limit: int, admin: str, as_json: bool) -> None:
    """Show messages of a queue. Browsing neither removes nor marks them."""
    if id is not None:
        message = get(admin, place("destinations", "queue", queue, "messages", id), after=after)
        _show(message, as_json)
        return
    page = get(admin, place("destinations", "queue", queue, "messages"), selector=selector, after=after, limit=limit)
    if as_json:
        click.echo(json.dumps(page, indent=2))
        return
    columns = [
        Column("position", is_number=True),
        Column("id"),
        Column("timestamp"),
        Column("size", is_number=True),
        Column("redelivery_counter", is_number=True),
        Column("preview"),
    ]
    print_table(columns, ([row[column.name] for column in columns] for row in page["items"]))
    if page["following"] is not None:
        click.echo(f"more with --after {page['following']}", err=True)


def _show(message: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(message, indent=2))
        return
    body = message.pop("body")
    encoded = message.pop("body_base64")
    properties = message.pop("properties")
    facts = [(name, value) for name, value in message.items() if value not in (None, "", False)]
    print_facts([*facts, *((f"property {name}", value) for name, value in properties.items())])
    click.echo()
    click.echo(body if body is not None else f"(base64) {encoded}")


def _carrying(verb: str, help: str) -> click.Command:
    @click.command(verb, help=help)
    @click.argument("queue")
    @click.argument("target")
    @click.option("--to-topic", is_flag=True, help="TARGET is a topic.")
    @choice_options
    @admin_option(_BROKER)
    @json_option
    def command(queue: str, target: str, to_topic: bool, admin: str, as_json: bool, **choice: Any) -> None:
        body = {"to": target, "to_kind": "topic" if to_topic else "queue", **chosen(**choice)}
        carry_out(admin, place("destinations", "queue", queue, "messages", verb), body, as_json)

    return command


move = _carrying(
    "move",
    "Move messages from QUEUE to TARGET, each in one step of the store. Messages that consumers hold stay.",
)
copy = _carrying(
    "copy",
    "Copy messages from QUEUE to TARGET. Copies get new ids and the property originalMessageId.",
)


@click.command()
@click.argument("queue")
@choice_options
@click.option("--dry-run", is_flag=True, help="Only show how many messages would go to which destination.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), metavar="COUNT", help="Maximum number of messages in a second."
)
@click.option(
    "--canary",
    is_flag=True,
    help="Send one, then ten, then all; stop if one becomes a dead letter again or is not consumed.",
)
@click.option(
    "--canary-wait",
    type=click.FloatRange(0, 3600, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for the messages of a step to be consumed.",
)
@admin_option(_BROKER)
@json_option
def retry(
    queue: str,
    dry_run: bool,
    rate: float | None,
    canary: bool,
    canary_wait: float,
    admin: str,
    as_json: bool,
    **choice: Any,
) -> None:
    """Send dead letters of QUEUE, such as ActiveMQ.DLQ.Queue.orders, back to the destinations where they became dead
    letters, with all headers and properties."""
    body = {"dry_run": dry_run, "canary": canary, "canary_wait": canary_wait, **chosen(**choice, is_all_meant=dry_run)}
    if rate is not None:
        body["rate"] = rate
    carry_out(admin, place("destinations", "queue", queue, "messages", "retry"), body, as_json)
