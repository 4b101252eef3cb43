"""Facts about the files of a store: plain values, in the shape of the JSON that commands print."""

from __future__ import annotations

from dataclasses import dataclass, field

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
