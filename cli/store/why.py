"""``tandemmq store why``: what holds each journal file, and the cheapest way to free it."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from typing import Any

import click

from tandemmq.cli.admin import DEFAULT_ADMIN, admin_option, answer_understood, call
from tandemmq.cli.output import json_option, say_each
from tandemmq.cli.store.directory import demand_journal, failures_reported, file_length, holder_of, journal_file
from tandemmq.journal.files import JournalFiles
from tandemmq.store.state.state import State
from tandemmq.store.tools.why.explain import NoSuchFile, Place, explain
from tandemmq.store.tools.why.inventory import UNKNOWN, Thing, file_named
from tandemmq.store.tools.why.offline import read_state
from tandemmq.store.tools.why.report import (
    FileWhy,
    Holder,
    Oldest,
    OpenTransaction,
    SubscriptionRecord,
    Why,
    age_of,
    bytes_of,
    counted,
    holder_in_words,
    names,
    transaction_in_words,
)

DEFAULT_DIRECTORY = "tandemmq-data"
ANSWER_SECONDS_MAX = 60.0


@click.command()
@click.argument("directory", required=False)
@click.argument("file", required=False)
@admin_option(f"Ask a running broker ({DEFAULT_ADMIN}) instead of reading the files.", None)
@click.option("--store", metavar="NAME", help="With --admin: one of several stores.")
@click.option("--index", "index_root", type=click.Path(file_okay=False), help="Index directory. Default: index/.")
@json_option
def why(
    directory: str | None,
    file: str | None,
    admin: str | None,
    store: str | None,
    index_root: str | None,
    as_json: bool,
) -> None:
    """Show why each journal file in DIRECTORY, or one FILE (db-87.log, db-87 or 87), is kept.

    Shows what keeps it, since when, and the cheapest way to free it; then whether the journal is within its bound, and
    all other files. Reads only. If a broker is running, its latest writes may be missing; use --admin URL instead.
    """
    if file is None and directory is not None and (admin is not None or _is_file_name(directory)):
        directory, file = None, directory
    if admin is not None and directory is not None:
        raise click.UsageError("either DIRECTORY or --admin: a broker answers for its own directory")
    only = None if file is None else journal_file(file)
    found = _from_broker(admin, store, only) if admin is not None else _from_files(directory, index_root, only)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found)))
    elif only is not None:
        _print_file(found.files[0], found.notes)
    else:
        _print(found)


def _is_file_name(text: str) -> bool:
    return not os.path.isdir(text) and file_named(os.path.basename(text)) is not None


# ---- sources


def _from_files(directory: str | None, index_root: str | None, only: int | None) -> Why:
    directory = directory or DEFAULT_DIRECTORY
    if not os.path.isdir(directory):
        raise click.UsageError(f"there is no directory {directory}")
    demand_journal(directory)
    holder = holder_of(directory)
    notes = []
    if holder is not None:
        ask = f"; to query it, use `--admin {holder.admin}`" if holder.admin else ""
        notes.append(f"in use by {holder}: its last writes may be missing{ask}")
    is_live = holder is not None
    with (
        failures_reported(f"; `tandemmq store check {directory}` has the details"),
        read_state(directory, index_root, is_live=is_live) as follower,
    ):
        place = Place(JournalFiles(directory), file_length(follower.epoch_history), is_live, index_root)
        notes += [f"damaged: {damage}" for damage in follower.damages]
        if not follower.has_caught_up:
            notes.append("the journal could not be read to its end: `tandemmq store check` shows why")
        state: State = follower.state
        now = int(time.time() * 1000)
        try:
            return explain(lambda function: function(state), place, follower.epoch_history, now, only=only, notes=notes)
        except NoSuchFile as error:
            raise click.UsageError(str(error)) from error


def _from_broker(admin: str, store: str | None, only: int | None) -> Why:
    query = {"file": None if only is None else f"db-{only}", "store": store}
    answer = call(admin, "store/why", query, seconds_max=ANSWER_SECONDS_MAX)
    with answer_understood(admin):
        return _decode(answer)


def _decode(answer: dict[str, Any]) -> Why:
    files = [FileWhy(**known | _lists_of(known)) for known in answer["files"]]
    return Why(**answer | {"files": files, "things": [Thing(**thing) for thing in answer["things"]]})


def _lists_of(known: dict[str, Any]) -> dict[str, Any]:
    return {
        "holders": [Holder(**h | {"oldest": h["oldest"] and Oldest(**h["oldest"])}) for h in known["holders"]],
        "subscriptions": [SubscriptionRecord(**record) for record in known["subscriptions"]],
        "transactions": [OpenTransaction(**transaction) for transaction in known["transactions"]],
    }


# ---- in words


def _print(found: Why) -> None:
    for file in found.files:
        share = file.live_bytes / max(file.bytes, 1)
        click.echo(f"{file.name}  {bytes_of(file.bytes)}, {bytes_of(file.live_bytes)} live ({share:.0%})")
        click.echo(f"    {file.action}")
    click.echo("")
    _print_whole(found)
    say_each("note: ", found.notes, is_error=True)


def _print_whole(found: Why) -> None:
    bound = bytes_of(found.bound_bytes)
    held = f"within its bound of {bound}" if found.is_bound_held else f"BEYOND its bound of {bound}: compaction is due"
    click.echo(f"journal      {bytes_of(found.journal_bytes)}, {held}")
    click.echo(f"live         {bytes_of(found.live_bytes)} in {counted(found.live_messages, 'message')}")
    click.echo(f"reclaimable  {bytes_of(found.reclaimable_bytes)} in {counted(len(found.reclaimable), 'file')}")
    click.echo("")
    for thing in found.things:
        name = thing.name if thing.files == 1 or thing.kind == "journal" else f"{thing.name} ({thing.files} files)"
        mark = "? " if thing.kind == UNKNOWN else ""
        click.echo(f"{bytes_of(thing.bytes):>10}  {name}: {mark}{thing.says}")
    click.echo(f"{bytes_of(sum(thing.bytes for thing in found.things)):>10}  in all")


def _print_file(file: FileWhy, notes: list[str]) -> None:
    now = int(time.time() * 1000)
    share = file.live_bytes / max(file.bytes, 1)
    epoch = f", of epoch {file.epoch}" if file.epoch else ", by ActiveMQ"
    click.echo(f"{file.name}  {bytes_of(file.bytes)}, {bytes_of(file.live_bytes)} live ({share:.0%}){epoch}")
    for holder in file.holders:
        click.echo(f"  holds {holder_in_words(holder, now)} ({bytes_of(holder.bytes)})")
        if holder.oldest is not None:
            _print_oldest(file, holder.oldest, now)
    if file.holders_total > len(file.holders):
        click.echo(f"  holds messages of {counted(file.holders_total - len(file.holders), 'more destination')}")
    for record in file.subscriptions:
        name = f"{record.client_id}:{record.subscription_name}"
        click.echo(f"  holds the record of durable subscription {name} of {record.destination}")
    for transaction in file.transactions:
        click.echo(f"  holds {transaction_in_words(transaction, now)}")
    for destination, number in sorted(file.acknowledgements.items()):
        click.echo(f"  has {counted(number, 'acknowledgement')} of {destination}")
    if file.pins:
        click.echo(
            f"  has acknowledgements and deletions for {names(file.pins)}: without them, messages there would return"
        )
    if file.pinned_by:
        click.echo(f"  keeps {names(file.pinned_by)}, which have acknowledgements and deletions for this file")
    if file.fences_before:
        click.echo(f"  is the fence of a promotion: removed after {counted(len(file.fences_before), 'older file')}")
    if file.roots and file.roots != [file.file]:
        click.echo(f"  can be removed when {names(file.roots)} are empty")
    click.echo(f"  => {file.action}")
    say_each("note: ", notes, is_error=True)


def _print_oldest(file: FileWhy, oldest: Oldest, now: int) -> None:
    if oldest.problem is not None:
        text = oldest.problem
    elif oldest.timestamp is None:
        text = "no time is given"
    else:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(oldest.timestamp / 1000))
        text = f"sent {at}, {age_of(oldest.timestamp, now)} ago"
    click.echo(f"    first {oldest.message_id} at {file.name}:{oldest.offset}, {text}")
