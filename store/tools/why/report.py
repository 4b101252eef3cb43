"""What there is to say about the files of a store: plain values, in the shape of the JSON that commands print."""

from __future__ import annotations

from dataclasses import dataclass, field

from tandemmq.store.tools.why.inventory import Thing

# Of a file: it is written to; it goes with the next checkpoint; something keeps it; it is being removed.
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
    """``operations`` of it stand in the file, of ``operations_total``. ``since`` is the time of the newest message it
    adds, ms since 1970, None if it adds none: it was prepared then or later."""

    key: str
    is_prepared: bool
    operations: int
    operations_total: int
    since: int | None = None


@dataclass(slots=True)
class FileWhy:
    """One journal file. ``pins`` are the files in which its acknowledgements and deletions shadow something, of those
    that stay; ``pinned_by`` the inverse. ``roots`` are the files that must be emptied for this one to go; then
    ``frees`` bytes go, and ``moves`` are those that would have to be copied; ``may_compact`` says whether a compaction
    that is asked for does it. ``action`` says so in words.
    ``acknowledgements`` are those in the file, by destination; counted only when one file is asked for."""

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
    """The whole. ``bound_bytes`` is what compaction keeps ``journal_bytes`` below: FACTOR x ``live_bytes`` and two
    files. ``reclaimable`` go with the next checkpoint. ``things`` is everything in the directory, in bytes."""

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
