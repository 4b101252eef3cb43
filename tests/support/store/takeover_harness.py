"""A take-over without a broker: the content afterwards, and the content according to the journal alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from tandemmq.index.index import Index
from tandemmq.journal.files import JournalFiles
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.recovery.promotion import Promotion
from tandemmq.store.takeover import Report, prepare_takeover

FILE_BYTES_MAX = 1 << 20

# An owner of messages as text -> their ids in order of delivery
Held = dict[str, list[str]]


class Taken(NamedTuple):
    """A directory after a take-over. ``withheld``: messages whose removal is prepared; ``selectors``: those of durable
    subscriptions, by name."""

    held: Held
    withheld: int
    prepared: list[str]
    report: Report | None
    records: int
    selectors: dict[str, str | None]


def held_by(follower: Follower) -> Held:
    """Return all stored messages, including those whose removal is prepared, because a running ActiveMQ lists them,
    too."""
    state = follower.state
    found: Held = {}
    for owner, known in state.owners.items():
        name = known.destination.name
        if known.subscription_name is not None:
            name = f"{name} for {known.key}"
        found[name] = [entry.message_id for _, entry in state.entries(owner, 0)]
    return found


def take_over(
    directory: Path, broker: str = "a", *, stop_before_finish: bool = False, batches_max: int = 1 << 30
) -> Taken:
    """Run one promotion with its take-over, after which the broker is killed. ``batches_max``: it is killed after this
    number of batches."""
    files = JournalFiles(str(directory))
    follower = Follower(files, Index.open(f"{directory}/index/{broker}"), records_per_checkpoint=100_000)
    promotion = Promotion(files, broker=broker, max_file_length=FILE_BYTES_MAX, sync="always")
    try:
        promotion.fence(lambda: True)
        promotion.read(follower)
        takeover = prepare_takeover(files, follower, scratch=f"{directory}/index/{broker}.takeover")
        batches = [] if takeover is None else list(takeover.batches())
        records = sum(map(len, batches))
        foreign = 0 if takeover is None else takeover.foreign_openwire
        promotion.begin(follower, records=batches[:batches_max], foreign_openwire=foreign).writer.close()
        report = None
        if takeover is not None and not stop_before_finish:
            report = takeover.finish()
        prepared = [key for key, open_ in follower.state.transactions.items() if open_.is_prepared]
        withheld = sum(map(len, follower.state.withheld.values()))
        selectors = {
            owner.subscription_name: owner.terms.selector
            for owner in follower.state.owners.values()
            if owner.subscription_name is not None and owner.terms is not None
        }
        return Taken(held_by(follower), withheld, prepared, report, records, selectors)
    finally:
        promotion.close()
        follower.index.close()


def replayed(directory: Path, copy: Path) -> Held:
    """Return the content by the journal alone, read from its beginning in a copy of the directory."""
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("index", "db.*"))
    follower = Follower(JournalFiles(str(copy)), Index.open(f"{copy}/index/x"), records_per_checkpoint=100_000)
    try:
        follower.advance(is_final=True)
        return held_by(follower)
    finally:
        follower.index.close()
