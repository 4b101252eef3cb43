"""Facts about the files of a store: plain values, in the shape of the JSON that commands print."""

from __future__ import annotations

from dataclasses import dataclass, field

from tandemmq.store.tools.why.inventory import Thing

# States of a file: it is being written; the next checkpoint removes it; something keeps it; it is being removed.
TAIL = "tail"
RECLAIMABLE = "reclaimable"
HELD = "held"
GOING = "going"


@dataclass(slots=True)
class Oldest:
    """The message of a holder that stands first in its order. ``timestamp`` is its sender's, ms since 1970; None: it
    has none, or cannot be read (``problem`` says why)."""

    message_id: str
    offset: int
    timestamp: int | None = None
    problem: str | None = None


@dataclass(slots=True)
class Holder:
    """A queue, or a durable subscription, with live messages in the file. ``consumers`` None: not known offline."""

    destination: str
    client_id: str | None
    subscription_name: str | None
    count: int
    bytes: int
    oldest: Oldest | None = None
    consumers: int | None = None


@dataclass(slots=True)
class SubscriptionRecord:
    """A durable subscription whose own record stands in the file."""

    destination: str
    client_id: str
    subscription_name: str


@dataclass(slots=True)
class OpenTransaction:
    """``operations`` of its ``operations_total`` are in the file. ``since`` is the time of the newest message it
    adds, ms since 1970, None if it adds none: it was prepared then or later."""

    key: str
    is_prepared: bool
    operations: int
    operations_total: int
    since: int | None = None


@dataclass(slots=True)
class FileWhy:
    """A journal file. ``pins``: the remaining files in which its acknowledgements and deletions shadow records;
    ``pinned_by``: the inverse. ``roots``: the files that must be emptied to free this one; that frees ``frees`` bytes,
    and ``moves`` bytes would have to be copied; ``may_compact``: a requested compaction does this. ``action`` describes
    the same in words. ``acknowledgements``: those in the file, by destination; counted only for a single requested
    file."""

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
    fences_before: list[int] = field(default_factory=list)  # files that must go first, for this one fenced off an epoch
    roots: list[int] = field(default_factory=list)
    moves: int = 0
    frees: int = 0
    may_compact: bool = False
    action: str = ""
    acknowledgements: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Why:
    """The whole report. ``bound_bytes``: the bound below which compaction keeps ``journal_bytes``: FACTOR x
    ``live_bytes`` and two files. ``reclaimable``: removed by the next checkpoint. ``things``: all contents of the
    directory, in bytes."""

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
