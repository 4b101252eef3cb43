"""``tandemmq store inspect``: the records of a journal, one line each, or how many bytes each kind takes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import fields
from typing import Any

import click

from tandemmq.broker.protocols.encoded import decoded, is_encoded
from tandemmq.cli.output import Column, json_option, print_table, progress, unseen
from tandemmq.cli.store.directory import DIRECTORY, demand_names, holder_of, journal_file
from tandemmq.disk import irregular
from tandemmq.journal.errors import JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.records.message import BodyKind, Message
from tandemmq.store.tools.inspect import KINDS, Gap, Item, Seen, Summary, Trail, message_of, read_headers, walk
from tandemmq.store.tools.why.report import bytes_of

# Maximum number of characters of a body or trace in a line; --json has the whole text.
TEXT_CHARACTERS_MAX = 200


def _kinds(context: click.Context, parameter: click.Parameter, value: str | None) -> frozenset[str]:
    kinds = frozenset(word.strip() for word in (value or "").split(",") if word.strip())
    unknown = kinds - set(KINDS)
    if unknown:
        raise click.BadParameter(f"there is no {', '.join(sorted(unknown))}; the types are {', '.join(KINDS)}")
    return kinds


def _file(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    return None if value is None else journal_file(value)


@click.command()
@click.argument("directory", type=DIRECTORY)
@click.option("--file", "only", metavar="FILE", callback=_file, help="One journal file: db-87.log, db-87 or 87.")
@click.option(
    "--from", "start", metavar="OFFSET", type=click.IntRange(0), default=0, help="Skip records before this offset."
)
@click.option("--destination", metavar="NAME", help="queue://NAME, topic://NAME, or NAME for either.")
@click.option(
    "--type", "kinds", metavar="TYPE,...", callback=_kinds, help=f"Only records of these types: {', '.join(KINDS)}."
)
@click.option("--id", "message_id", metavar="ID", help="All records of one message.")
@click.option("--bodies", is_flag=True, help="Show headers and bodies of messages.")
@click.option("--summary", is_flag=True, help="Show only the bytes of each type.")
@json_option
def inspect(
    directory: str,
    only: int | None,
    start: int,
    destination: str | None,
    kinds: frozenset[str],
    message_id: str | None,
    bodies: bool,
    summary: bool,
    as_json: bool,
) -> None:
    """Print the records of the journal in DIRECTORY, in order, with damaged places.

    Reads only, also beside a running broker. A journal file that is not a regular file (a link, a FIFO, ...) is skipped
    and reported. Records that a deposed master wrote after the end of a file are shown and marked.
    """
    demand_names(directory)
    files = JournalFiles(directory)
    wanted = _wanted(start, destination, kinds, None if message_id is None else Trail(message_id))
    is_live = holder_of(directory) is not None
    epoch_history = read_headers(files)
    strange = irregular(map(files.path, files.list()))
    for each in strange:
        click.echo(f"{each}: stepped over", err=True)
    stepped_over = {each.filename for each in strange}
    ids = [file for file in files.list() if files.path(file) not in stepped_over]
    if only is not None and only not in ids:
        raise click.BadParameter(f"db-{only}.log is not in {directory}; there is {_listed(ids)}", param_hint="--file")
    chosen = ids if only is None else [only]
    counted = Summary()
    sizes = {file: files.size(file) for file in chosen}
    watch = progress("reading", sum(sizes.values())) if summary or message_id else nullcontext(unseen)
    done = 0
    with watch as advance:
        for file in chosen:
            counted.file(sizes[file])
            for item in _walk(files, epoch_history, file, is_live):
                if summary:
                    counted.add(item)
                elif wanted(item):
                    click.echo(_line(item, epoch_history, bodies, as_json))
            done += sizes[file]
            advance(done)
    if summary:
        _print_summary(counted, as_json)


def _wanted(start: int, destination: str | None, kinds: frozenset[str], trail: Trail | None) -> Callable[[Item], bool]:
    """Return the filter of items. It passes every gap: a gap may hide a wanted item."""
    names = (
        (destination,)
        if destination is None or "://" in destination
        else (f"queue://{destination}", f"topic://{destination}")
    )

    def is_wanted(item: Item) -> bool:
        if isinstance(item, Gap):
            return item.stop > start
        return (
            (trail is None or trail.concerns(item))
            and item.offset >= start
            and (not kinds or item.kind in kinds)
            and (destination is None or item.destination in names)
        )

    return is_wanted


def _walk(files: JournalFiles, epoch_history: EpochHistory, file: int, is_live: bool) -> Iterator[Item]:
    try:
        yield from walk(files, epoch_history, file, is_live=is_live)
    except JournalMissing:
        click.echo(f"db-{file}.log was reclaimed meanwhile", err=True)


def _listed(ids: list[int]) -> str:
    return ", ".join(f"db-{file}.log" for file in ids) if len(ids) < 8 else f"db-{ids[0]}.log to db-{ids[-1]}.log"


# ---- a line


def _line(item: Item, epoch_history: EpochHistory, bodies: bool, as_json: bool) -> str:
    if isinstance(item, Gap):
        return _gap_line(item, as_json)
    message: Message | None = None
    problem: str | None = None
    if bodies:
        try:
            message = message_of(item, epoch_history)
        except RecordDamaged as error:
            problem = str(error)
    return _json_line(item, message, problem) if as_json else _text_line(item, message, problem)


def _gap_line(gap: Gap, as_json: bool) -> str:
    if as_json:
        facts = {"file": gap.file, "offset": gap.start, "stop": gap.stop, "type": gap.what, "says": gap.reason}
        return json.dumps(facts)
    return f"db-{gap.file}.log:{gap.start}  {gap.what.upper()} to {gap.stop}: {gap.reason}"


# Fields of a record in JSON, and the fields that have another name there.
_OF_RECORD = tuple(each.name for each in fields(Seen) if each.name != "payload")
_CALLED = {"kind": "type", "message_id": "id"}


def _json_line(seen: Seen, message: Message | None, problem: str | None) -> str:
    facts = {_CALLED.get(name, name): getattr(seen, name) for name in _OF_RECORD}
    facts |= {"hint_bytes": seen.hint_bytes or None, "problem": problem}
    if seen.moved_from is not None:
        facts["moved_from"] = dict(zip(("file", "offset"), seen.moved_from, strict=True))
    if message is not None:
        facts["message"] = _message(message)
    return json.dumps({name: value for name, value in facts.items() if value is not None}, ensure_ascii=False)


def _message(message: Message) -> dict[str, Any]:
    if is_encoded(message):
        message = decoded(message, is_quick=False) or message
    facts: dict[str, Any] = {
        "timestamp": message.timestamp,
        "expiration": message.expiration or None,
        "priority": message.priority,
        "kind": message.body_kind.name.lower(),
        "type": message.type,
        "correlation_id": message.correlation_id,
        "reply_to": None if message.reply_to is None else str(message.reply_to),
        "group_id": message.group_id,
        "redelivery_counter": message.redelivery_counter or None,
        "properties": {name: _readable(value) for name, value in (message.properties or {}).items()} or None,
    }
    text = _text_of(message)
    if text is None:
        facts["body_base64"] = base64.b64encode(message.body).decode()
    else:
        facts["body"] = text
    return {name: value for name, value in facts.items() if value is not None}


def _readable(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else repr(value)


def _text_of(message: Message) -> str | None:
    """Return the body as text if it is text; also the bytes of STOMP clients, if they are UTF-8."""
    if message.body_kind not in (BodyKind.TEXT, BodyKind.BYTES, BodyKind.NONE):
        return None
    try:
        return message.body.decode()
    except UnicodeDecodeError:
        return None


def _text_line(seen: Seen, message: Message | None, problem: str | None) -> str:
    remark = seen.says or seen.text
    parts = (
        f"db-{seen.file}.log:{seen.offset}  {seen.kind:<8}",
        seen.destination,
        seen.message_id,
        f"{seen.size} bytes",
        seen.subscription and f"for {seen.subscription}",
        seen.transaction and f"in {seen.transaction}",
        seen.moved_from and f"moved from db-{seen.moved_from[0]}.log:{seen.moved_from[1]}",
        seen.hint_bytes and f"hint {seen.hint_bytes} bytes",
        f"batch {seen.batch}",
        None if seen.counts else "DOES NOT COUNT",
        remark and _short(remark),
        problem and f"body unreadable: {problem}",
    )
    line = "  ".join(str(part) for part in parts if part)
    if message is None:
        return line
    facts = _message(message)
    body = facts.pop("body", None)
    head = "  ".join(f"{name}={value}" for name, value in facts.items() if name != "body_base64")
    shown = f"{len(message.body)} bytes, not text" if body is None else _short(repr(body))
    return f"{line}\n    {head}\n    {shown}"


def _short(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[:TEXT_CHARACTERS_MAX]}... ({len(text)} characters)"


# ---- the summary


def _print_summary(counted: Summary, as_json: bool) -> None:
    rows = [(kind, counted.records[kind], counted.record_bytes[kind]) for kind in KINDS if kind in counted.records]
    if as_json:
        types = {kind: {"records": number, "bytes": size} for kind, number, size in rows}
        sums = {name: getattr(counted, name) for name in ("batches", "batch_bytes", "dead_bytes", "unused_bytes")}
        head = {"files": counted.files, "bytes": counted.bytes}
        click.echo(json.dumps(head | {"types": types, "shares": counted.shares()} | sums))
        return
    written = counted.bytes - counted.unused_bytes
    click.echo(f"{counted.files} files, {bytes_of(counted.bytes)}, of which {bytes_of(written)} are written")
    rows.append(("batches", counted.batches, counted.batch_bytes))
    if counted.dead_bytes:
        rows.append(("do not count", 0, counted.dead_bytes))
    sizes = (Column("size", is_number=True), Column("share", is_number=True))
    print_table(
        [Column("type"), Column("records", is_number=True), *sizes],
        [
            *([name, number or None, bytes_of(size), f"{size / max(written, 1):.1%}"] for name, number, size in rows),
            ["unused", None, bytes_of(counted.unused_bytes), None],
        ],
    )
    click.echo("")
    print_table(
        [Column("what"), *sizes],
        (
            [name, bytes_of(size), f"{size / max(written, 1):.1%}"]
            for name, size in sorted(counted.shares().items(), key=lambda share: -share[1])
        ),
    )
