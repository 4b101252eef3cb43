"""Facts about the files of a store: plain values, in the shape of the JSON that commands print; and sentences about the
contents that keep a journal file, and the ways to free it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tandemmq.store.tools.why.inventory import Thing

# States of a file
TAIL = "tail"  # the master writes to it
RECLAIMABLE = "reclaimable"  # the next checkpoint removes it
HELD = "held"  # its contents or another file keep it
GOING = "going"  # it is being removed


@dataclass(slots=True)
class Oldest:
    """The first message of a holder in the file. ``timestamp``: set by its sender, ms since 1970. None: it has none, or
    the message cannot be read (``problem`` is the reason)."""

    message_id: str
    offset: int
    timestamp: int | None = None
    problem: str | None = None


@dataclass(slots=True)
class Holder:
    """A queue, or a durable subscription, that has live messages in the file. ``consumers``: None if not known, because
    no broker runs."""

    destination: str
    client_id: str | None
    subscription_name: str | None
    count: int
    bytes: int
    oldest: Oldest | None = None
    consumers: int | None = None


@dataclass(slots=True)
class SubscriptionRecord:
    """A durable subscription that has a record of its description in the file."""

    destination: str
    client_id: str
    subscription_name: str


@dataclass(slots=True)
class OpenTransaction:
    """An open transaction: ``operations`` of its ``operations_total`` operations are in the file. ``since``: timestamp
    of the newest message that it adds, ms since 1970, so it was prepared then or later. None: it adds no message, or
    the message has no timestamp or cannot be read."""

    key: str
    is_prepared: bool
    operations: int
    operations_total: int
    since: int | None = None


@dataclass(slots=True)
class FileWhy:
    """A journal file, and why it is kept. ``pins``: existing files with records to which its acknowledgements and
    deletions refer; ``pinned_by``: the inverse. ``roots``: files that must be emptied to free this one. A compaction of
    these copies ``moves`` bytes and frees ``frees`` bytes; ``may_compact``: ``tandemmq store compact`` does it.
    ``action``: holders and remedy in words. ``acknowledgements``: destination -> number of acknowledgements in the
    file, counted only for a single requested file."""

    file: int
    name: str
    bytes: int
    live_bytes: int
    live_messages: int
    epoch: int
    state: str
    holders: list[Holder] = field(default_factory=list)
    holders_total: int = 0
    subscriptions: list[SubscriptionRecord] = field(default_factory=list)
    transactions: list[OpenTransaction] = field(default_factory=list)
    pins: list[int] = field(default_factory=list)
    pinned_by: list[int] = field(default_factory=list)
    fences_before: list[int] = field(default_factory=list)  # this file is a fence: these must be removed before it
    roots: list[int] = field(default_factory=list)
    moves: int = 0
    frees: int = 0
    may_compact: bool = False
    action: str = ""
    acknowledgements: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Why:
    """Report on all files. ``bound_bytes``: compaction keeps ``journal_bytes`` below this bound, FACTOR x
    ``live_bytes`` plus two files. ``reclaimable``: files that the next checkpoint removes. ``things``: all contents of
    the directory."""

    directory: str
    files: list[FileWhy]
    journal_bytes: int
    live_bytes: int
    live_messages: int
    bound_bytes: int
    is_bound_held: bool
    reclaimable: list[int]
    reclaimable_bytes: int
    things: list[Thing]
    notes: list[str] = field(default_factory=list)


_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")
_AGES: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
# Maximum number of items that a sentence names. It only counts the other items.
NAMED_MAX: Final = 3


def bytes_of(size: int) -> str:
    """Return a size in words: 2150 -> "2.1 KiB"."""
    value, unit = float(size), "B"
    for larger in _UNITS:
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f}".removesuffix(".0") + f" {unit}" if value < 100 else f"{value:.0f} {unit}"


def age_of(timestamp: int, now: int) -> str:
    """Return the age of a timestamp in words: 9 days in ms -> "9 days"; a timestamp in the future -> "0 seconds"."""
    seconds = max(0, now - timestamp) // 1000
    for length, word in _AGES:
        if seconds >= length:
            return counted(seconds // length, word)
    return "0 seconds"


def counted(number: int, word: str) -> str:
    """Return a count in words: 3, "message" -> "3 messages"."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def action_for(why: FileWhy, now: int) -> str:
    """Return the holders of the file, and the cheapest way to free it, with the bytes that it frees."""
    lines, actions = _own(why, now)
    if why.state == TAIL:
        return "; ".join(["the master writes to it", *lines])
    if why.state == GOING:
        return "it is being removed"
    if why.state == RECLAIMABLE:
        return f"nothing needs it: the next checkpoint frees {bytes_of(why.bytes)}"
    waits = _waits(why)
    compaction = _compaction(why)
    if not lines:
        remedy = compaction or "it is removed when those files are empty"
        return f"{waits}: {remedy}" if waits else "no known contents keep it"
    if waits:
        lines.append(waits)
    action = " and ".join(actions)
    if compaction:
        action = f"{action}, or {compaction}" if action else compaction
    elif why.frees:
        action = f"{action or 'when the open transactions have ended'}: this frees {bytes_of(why.frees)}"
    return f"{'; '.join(lines)}: {action}"


def _own(why: FileWhy, now: int) -> tuple[list[str], list[str]]:
    """Return the contents of the file itself, and the possible actions."""
    lines = [holder_in_words(holder, now) for holder in why.holders[:NAMED_MAX]]
    actions = []
    if why.holders:
        rest = why.holders_total - len(lines)
        if rest:
            lines.append(f"messages of {counted(rest, 'more destination')}")
        actions.append(f"consume or purge {'it' if why.live_messages == 1 else 'them'}")
    lines += [
        f"the record of durable subscription {record.client_id}:{record.subscription_name}"
        for record in why.subscriptions[:NAMED_MAX]
    ]
    if len(why.subscriptions) > NAMED_MAX:
        lines.append(f"the records of {len(why.subscriptions) - NAMED_MAX:,} more")
    if why.subscriptions and not why.holders:
        actions.append("end the unused subscriptions")
    lines += [transaction_in_words(transaction, now) for transaction in why.transactions[:NAMED_MAX]]
    if len(why.transactions) > NAMED_MAX:
        lines.append(f"{len(why.transactions) - NAMED_MAX:,} more transactions")
    if any(transaction.is_prepared for transaction in why.transactions):
        actions.append("commit or roll back the prepared transactions")
    return lines, actions


def holder_in_words(holder: Holder, now: int) -> str:
    """Return a holder in words: 3 messages of queue://ORDERS.EU, oldest 9 days, no consumer."""
    text = f"{counted(holder.count, 'message')} of {holder.destination}"
    if holder.subscription_name is not None:
        text += f" for {holder.client_id}:{holder.subscription_name}"
    if holder.oldest is not None and holder.oldest.timestamp is not None:
        text += f", oldest {age_of(holder.oldest.timestamp, now)}"
    if holder.consumers is not None:
        text += f", {counted(holder.consumers, 'consumer') if holder.consumers else 'no consumer'}"
    return text


def transaction_in_words(transaction: OpenTransaction, now: int) -> str:
    """Return a transaction in words: 2 of 5 operations of prepared transaction XID:[...], 3 days old."""
    total = transaction.operations_total
    some = f"{transaction.operations} of {total}" if transaction.operations != total else f"{total}"
    kind = "prepared" if transaction.is_prepared else "open"
    text = f"{some} {'operation' if total == 1 else 'operations'} of {kind} transaction {transaction.key}"
    if transaction.since is not None:
        text += f", {age_of(transaction.since, now)} old"
    return text


def _waits(why: FileWhy) -> str:
    parts = []
    if why.pins:
        parts.append(f"its acknowledgements and deletions refer to records in {names(why.pins)}")
    if why.fences_before:
        parts.append(
            f"it is the fence of a promotion, so it is removed after all older files, "
            f"{counted(len(why.fences_before), 'file')} from {names(why.fences_before[:1])} on"
        )
    return "; ".join(parts)


def names(files: list[int]) -> str:
    """Return the names of files: [3, 5] -> "db-3.log, db-5.log"."""
    text = ", ".join(f"db-{file}.log" for file in files[:NAMED_MAX])
    return text if len(files) <= NAMED_MAX else f"{text} and {len(files) - NAMED_MAX:,} more"


def _compaction(why: FileWhy) -> str:
    """Return the compaction in words; empty if it would copy more bytes than it frees."""
    if not why.may_compact or why.moves >= why.frees:
        return ""
    return f"`tandemmq store compact` moves {bytes_of(why.moves)} and frees {bytes_of(why.frees)}"
