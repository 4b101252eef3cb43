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
    """The first message of a holder in the file. ``timestamp`` is its sender's, ms since 1970; None: it has none, or
    cannot be read (``problem`` says why)."""

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
    """A durable subscription whose own record is in the file."""

    destination: str
    client_id: str
    subscription_name: str


@dataclass(slots=True)
class OpenTransaction:
    """An open transaction with operations in the file: ``operations`` of ``operations_total``. ``since``: timestamp of
    the newest message that it adds, ms since 1970; it was prepared then or later. None: it adds no message."""

    key: str
    is_prepared: bool
    operations: int
    operations_total: int
    since: int | None = None


@dataclass(slots=True)
class FileWhy:
    """A journal file. ``pins``: existing files with records to which its acknowledgements and deletions refer;
    ``pinned_by``: the inverse. ``roots``: files that must be emptied to free this one. This copies ``moves`` bytes and
    frees ``frees`` bytes; ``may_compact``: a requested compaction does it. ``action`` describes it in words.
    ``acknowledgements``: those in the file, by destination; counted only for a single requested file."""

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
    fences_before: list[int] = field(default_factory=list)  # remove these first: this is a fence
    roots: list[int] = field(default_factory=list)
    moves: int = 0
    frees: int = 0
    may_compact: bool = False
    action: str = ""
    acknowledgements: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Why:
    """The whole report. ``bound_bytes``: compaction keeps ``journal_bytes`` below this: FACTOR x ``live_bytes`` plus
    two files. ``reclaimable``: removed by the next checkpoint. ``things``: all contents of the directory, in bytes."""

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
