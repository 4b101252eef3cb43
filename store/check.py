"""The store's checker: does everything on the disk agree with everything else? Reads only.

It reads every journal file to its end, replays all of it, and compares what lives by that with what each broker's
index says, entry by entry; and it checks each index by itself (index.check). Product code: ``tandemmq store check``
and the end of every test that opened a store.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field

from index.check import check as check_pages
from index.errors import IndexInUse, IndexTrouble
from index.index import Index
from journal.errors import JournalError
from journal.files import JournalFiles
from journal.reader import JournalReader
from store.follow import Follower, IndexNotOfThisJournal, JournalLost
from store.records.commands import AddMessage, UpdateMessage, decode
from store.records.errors import RecordDamaged
from store.state import State

# A replay holds this many operations in memory before they go to its index, which is a temporary one.
RECORDS_PER_CHECKPOINT = 100_000
PROBLEMS_MAX = 1_000


@dataclass(slots=True)
class Report:
    """``problems`` are sentences for an operator, empty when all is well; ``notes`` what was left out, and why."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: int = 0
    records: int = 0
    messages: int = 0
    owners: int = 0

    @property
    def is_clean(self) -> bool:
        return not self.problems

    def problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


def check(directory: str, index_root: str | None = None, *, scratch: str | None = None) -> Report:
    """Check the store in ``directory`` and all indexes below ``index_root`` (default: ``index/`` in it).

    No broker may be writing meanwhile: what is being written would look torn. ``scratch`` is where the temporary
    index goes (default: the system's place for temporary files).
    """
    report = Report()
    files = JournalFiles(directory)
    try:
        report.files = len(files.list())
    except FileNotFoundError:
        report.problem(f"{directory} is not there")
        return report
    with tempfile.TemporaryDirectory(prefix="tandemmq-check-", dir=scratch) as temporary:
        index = Index.open(temporary)
        try:
            truth = _replay(files, index, report)
            if truth is not None:
                _check_records(files, truth.state, report)
                for name in _indexes(index_root or os.path.join(directory, "index")):
                    _check_index(files, name, truth.state, report)
        finally:
            index.close()
    return report


def _replay(files: JournalFiles, index: Index, report: Report) -> Follower | None:
    follower = Follower(files, index, records_per_checkpoint=RECORDS_PER_CHECKPOINT)
    try:
        follower.advance(is_final=True)
    except (JournalError, JournalLost, RecordDamaged) as error:
        report.problem(str(error))
        return None
    report.records = follower.replay.records
    report.owners = len(follower.state.owners)
    report.messages = sum(owner.count for owner in follower.state.owners.values())
    return follower


def _check_records(files: JournalFiles, state: State, report: Report) -> None:
    """Every live entry points to the record that stores just this message."""
    reader = JournalReader(files)
    try:
        for owner in state.owners.values():
            count = 0
            for _, entry in state.entries(owner.id, 0):
                count += 1
                try:
                    command = decode(reader.read(entry.location, entry.size))
                except (JournalError, RecordDamaged) as error:
                    report.problem(f"{owner.destination}: {entry.message_id}: {error}")
                    continue
                if isinstance(command, UpdateMessage):
                    command = command.add
                if not isinstance(command, AddMessage) or command.message_id != entry.message_id:
                    report.problem(f"{owner.destination}: {entry.message_id}: another record stands at its place")
            if count != owner.count:
                report.problem(f"{owner.destination}: {count} entries, {owner.count} counted")
    finally:
        reader.close()


def _indexes(root: str) -> Iterator[str]:
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return
    for name in names:
        if ".aside-" not in name and os.path.exists(os.path.join(root, name, "db.data")):
            yield os.path.join(root, name)


def _check_index(files: JournalFiles, path: str, truth: State, report: Report) -> None:
    try:
        for problem in check_pages(path).problems:
            report.problem(f"{path}: {problem}")
        index = Index.open(path)
    except IndexInUse:
        report.notes.append(f"{path} is in use and was not compared")
        return
    except IndexTrouble as error:
        report.problem(f"{path}: {error}")
        return
    try:
        _compare(files, index, path, truth, report)
    finally:
        index.close()


def _compare(files: JournalFiles, index: Index, path: str, truth: State, report: Report) -> None:
    """Bring the index up to the journal's end, in memory, and hold it against a replay of everything."""
    try:
        follower = Follower(files, index, records_per_checkpoint=1 << 62)
        follower.advance(is_final=True)
    except IndexNotOfThisJournal as error:
        report.notes.append(f"{path} will be set aside at the next start: {error}")
        return
    except (IndexTrouble, JournalError, JournalLost) as error:
        report.problem(f"{path}: {error}")
        return
    mine = _contents(follower.state)
    theirs = _contents(truth)
    for name in sorted(mine.keys() | theirs.keys()):
        has, should = mine.get(name, {}), theirs.get(name, {})
        for message_id in list(should.keys() - has.keys())[:10]:
            report.problem(f"{path}: {name} lacks {message_id}, which the journal holds")
        for message_id in list(has.keys() - should.keys())[:10]:
            report.problem(f"{path}: {name} has {message_id}, which the journal does not hold")
        if [m for m in has if m in should] != [m for m in should if m in has]:
            report.problem(f"{path}: {name}: another order than the journal's")
    for file in files.list():
        held, should_hold = follower.state.files.get(file), truth.files.get(file)
        live = (held.live if held else 0, held.live_bytes if held else 0)
        should_live = (should_hold.live if should_hold else 0, should_hold.live_bytes if should_hold else 0)
        if live != should_live:
            report.problem(f"{path}: db-{file}.log holds {live} messages and bytes, {should_live} by the journal")


def _contents(state: State) -> dict[str, dict[str, int]]:
    """Owner in words -> message id -> order key, in order. Empty owners are left out: queues leave no record."""
    found: dict[str, dict[str, int]] = {}
    for owner in state.owners.values():
        name = str(owner.destination)
        if owner.subscription_name is not None:
            name += f" for {owner.client_id}:{owner.subscription_name}"
        entries = {entry.message_id: order_key for order_key, entry in state.entries(owner.id, 0)}
        if entries:
            found[name] = entries
    return found
