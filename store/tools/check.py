"""Check that the journal and the indexes of a store agree. Reads only.

The check replays the whole journal and compares the result with the index of each broker, entry by entry. It also
checks each index separately (index.check). Damage does not end the check: every damaged range is reported with its
messages. Used by ``tandemmq store check`` and at the end of every test that opened a store.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import starmap, zip_longest
from operator import eq

from tandemmq.disk import NotRegular, irregular
from tandemmq.index.check import check as check_pages
from tandemmq.index.errors import IndexInUse, IndexTrouble
from tandemmq.index.index import Index
from tandemmq.journal.errors import JournalError
from tandemmq.journal.files import JournalFiles
from tandemmq.store.damage.report import JournalLost, as_json, holder_name, listed
from tandemmq.store.kahadb.minimal import has_foreign_index
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.recovery.follow import Follower, IndexNotOfThisJournal
from tandemmq.store.recovery.index_directory import DATA, named_indexes
from tandemmq.store.recovery.index_trust import numbering_of
from tandemmq.store.recovery.rebuild import RECORDS_PER_CHECKPOINT, Trial
from tandemmq.store.state.file_states import FileState, reclaimable
from tandemmq.store.state.keys import RANKS
from tandemmq.store.state.state import State
from tandemmq.store.state.tail import Position

PROBLEMS_MAX = 1_000
# Maximum of differences that are reported for each queue and subscription
DIFFERENCES_MAX = 10

# Called with (bytes that were read, bytes in all).
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Report:
    """Result of a check. ``problems``: sentences for the operator; empty if the store is good. ``notes``: facts that
    are no problem, and parts that were not checked, with the reason.

    ``damages``: each damaged range and lost file with all message ids, as JSON (store.damage.report.as_json). ``files``
    to ``owners`` are the numbers of journal files, their bytes, records, live messages, and queues and durable
    subscriptions.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    damages: list[dict[str, object]] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    records: int = 0
    messages: int = 0
    owners: int = 0

    @property
    def is_clean(self) -> bool:
        return not self.problems

    def problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


def check(
    directory: str,
    index_root: str | None = None,
    *,
    scratch: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check the store in ``directory`` and all indexes below ``index_root`` (default: ``index/`` in it).

    No broker may write meanwhile, because an unfinished write looks like a torn one. ``scratch``: directory for the
    temporary index (default: the system's directory for temporary files).
    """
    report = Report()
    files = JournalFiles(directory)
    root = index_root or os.path.join(directory, "index")
    try:
        strange = irregular(map(files.path, files.list()))
        if strange:
            report.problems += map(str, strange)
            return report
        sizes = {file: files.size(file) for file in files.list()}
    except FileNotFoundError:
        report.problem(f"{directory} is not there")
        return report
    report.files = len(sizes)
    steps = _Steps(sizes, progress)
    with scratch_index(scratch) as index:
        replayed = _replay(files, index, root, report, steps)
        if replayed is not None:
            _reclaim(replayed.state, "the journal", report, replayed.checkpoint)
            replayed.checkpoint()  # the comparison needs two indexes, byte by byte
            _check_counts(replayed.state, report)
            for path in named_indexes(root):
                if os.path.exists(os.path.join(path, DATA)):
                    _check_index(files, path, replayed, report)
    steps.end()
    return report


@contextmanager
def scratch_index(scratch: str | None) -> Iterator[Index]:
    """Open an empty index in a directory below ``scratch``, and remove both afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="tandemmq-check-", dir=scratch) as temporary,
        Index.open(temporary) as index,
    ):
        yield index


class _Steps:
    """Progress of the check: bytes of the journal that were replayed. The later steps take little time."""

    def __init__(self, sizes: dict[int, int], report: Progress | None) -> None:
        self._before: dict[int, int] = {}
        self._read = 0
        for file, size in sizes.items():
            self._before[file] = self._read
            self._read += size
        self._done = 0
        self._all = self._read
        self._report = report

    def at(self, position: Position) -> None:
        self._done = self._before.get(position.file, 0) + position.offset
        if self._report is not None:
            self._report(self._done, self._all)

    def end(self) -> None:
        if self._report is not None:
            self._report(self._all, self._all)


def _replay(files: JournalFiles, index: Index, root: str, report: Report, steps: _Steps) -> Follower | None:
    is_foreign = has_foreign_index(files.directory)
    if is_foreign:
        report.notes.append("ActiveMQ's index exists: files that ActiveMQ removed look the same as lost ones")
    follower = Trial(
        files,
        index,
        ignores_missing=True,
        index_root=root,
        has_foreign_index=lambda: is_foreign,
        on_read=steps.at,
    )
    try:
        ends = follower.advance(is_final=True)
    except (JournalError, JournalLost, RecordDamaged) as error:
        report.problem(str(error))
        return None
    for damage in follower.damages:
        report.problem(str(damage))
        report.damages.append(as_json(damage))
    for torn in follower.torn:
        ids = listed(torn.message_ids) or "no message"
        report.notes.append(
            f"db-{torn.file}.log is torn at offset {torn.start}: {torn.reason}; the torn bytes show {ids}. The next "
            f"start ignores these bytes and does not change them"
        )
    _check_fences(files, follower, report)
    report.bytes = sum({**ends, **follower.epoch_history.ends}.get(file, 0) for file in files.list())
    report.records = follower.replay.records
    report.owners = len(follower.state.owners)
    report.messages = sum(owner.count for owner in follower.state.owners.values())
    return follower


def _check_fences(files: JournalFiles, follower: Follower, report: Report) -> None:
    """Check that each fence, a file whose writer died before its header was final, exists until all files before it are
    removed."""
    existing = files.list()
    epoch_history = follower.epoch_history
    for file in existing:
        if epoch_history.ends.get(file) == 0:
            report.notes.append(
                f"db-{file}.log has no valid header: a promotion or rotation failed there. It is a fence, and stays "
                f"until all files before it are removed"
            )
    # A file that was given up and exists will be removed soon, or is the fence of a broker that was deposed at once.
    there = set(existing) - follower.state.given_up
    for file in epoch_history.missing_fences(there):
        # A fence was also not needed if no earlier file existed when it was found without a header.
        found = max(number for number, header in epoch_history.headers.items() if file in header.ends)
        if not there.intersection(other for other in epoch_history.headers[found].files if other < file):
            continue
        report.problem(
            f"db-{file}.log, a fence without header, is missing, though files before it exist: a suspended master of "
            f"one of those files cannot find that it was deposed"
        )


def _check_counts(state: State, report: Report) -> None:
    """Check that the counts of owners match their entries. The replay, which made the entries, has checked the
    records."""
    for owner in state.owners.values():
        entries = state.as_checkpointed(owner.id) or state.entries(owner.id, 0)
        count = sum(1 for _ in entries)
        if count != owner.count:
            report.problem(f"{owner}: {count} entries, {owner.count} counted")
        if owner.id in state.ranked:
            count = sum(1 for priority in range(RANKS) for _ in state.of_priority(owner.id, priority, 0))
            if count != owner.count:
                report.problem(f"{owner}: {count} entries by priority, {owner.count} counted")


def _reclaim(state: State, path: str, report: Report, checkpoint: Callable[[], object]) -> None:
    """Remove the entries of owners that ended: until then the counts may include dead bytes."""
    ended = list(state.ended.values())
    while state.ended:
        state.reclaim(RECORDS_PER_CHECKPOINT)
        checkpoint()
    for owner in ended:
        if owner.count or owner.bytes:
            report.problem(
                f"{path}: {owner.destination}, which ended, has no entries, but its count is {owner.count} messages of "
                f"{owner.bytes} bytes"
            )


# ---- indexes


def _check_index(files: JournalFiles, path: str, replayed: Follower, report: Report) -> None:
    try:
        for problem in check_pages(path).problems:
            report.problem(f"{path}: {problem}")
        index = Index.open(path, notes_damage=False)
    except IndexInUse:
        report.notes.append(f"{path} is in use and was not compared")
        return
    except (IndexTrouble, NotRegular) as error:
        report.problem(f"{path}: {error}")
        return
    with index:
        _compare(files, index, path, replayed, report)


def _compare(files: JournalFiles, index: Index, path: str, replayed: Follower, report: Report) -> None:
    """Apply the journal to the index up to its end, in memory, and compare it with a replay of the whole journal."""
    try:
        follower = Trial(
            files,
            index,
            records_per_checkpoint=1 << 62,
            ignores_missing=True,
            first_owner=numbering_of(index.meta),
        )
        follower.advance(is_final=True)
    except IndexNotOfThisJournal as error:
        report.notes.append(f"{path} will be set aside at the next start: {error}")
        return
    except (IndexTrouble, JournalError, JournalLost) as error:
        report.problem(f"{path}: {error}")
        return
    _reclaim(follower.state, path, report, lambda: None)
    known = {(damage.file, damage.start, damage.stop) for damage in replayed.damages}
    for damage in follower.damages:
        if (damage.file, damage.start, damage.stop) not in known:
            report.problem(f"{path}: {damage}")
            report.damages.append(as_json(damage))
    _compare_messages(path, follower.state, replayed.state, report)
    _compare_transactions(path, follower.state, replayed.state, report)
    mine, theirs = follower.state.users.counts(), replayed.state.users.counts()
    for user in sorted(user for user in mine.keys() | theirs.keys() if mine.get(user) != theirs.get(user)):
        report.problem(f"{path}: {mine.get(user, 0)} bytes count for user {user}, {theirs.get(user, 0)} by the journal")
    _compare_files(files, path, follower.state, replayed.state, report)


def _compare_messages(path: str, state: State, replayed: State, report: Report) -> None:
    mine = {holder_name(state, owner): owner for owner in state.owners}
    theirs = {holder_name(replayed, owner): owner for owner in replayed.owners}
    for name in sorted(mine.keys() & theirs.keys()):
        _compare_priorities(path, name, state, mine[name], replayed, theirs[name], report)
    for name in sorted(mine.keys() | theirs.keys()):
        counted, true_count = _count(state, mine.get(name)), _count(replayed, theirs.get(name))
        if counted != true_count:
            report.problem(f"{path}: {name}: {counted} messages are counted, {true_count} by the journal")
        # Usually they are equal; this comparison needs no memory for the messages.
        if _are_alike(state, mine.get(name), replayed, theirs.get(name)):
            continue
        before = len(report.problems)
        has = dict.fromkeys(_ids(state, mine.get(name)))
        should = dict.fromkeys(_ids(replayed, theirs.get(name)))
        for message_id in list(should.keys() - has.keys())[:DIFFERENCES_MAX]:
            report.problem(f"{path}: {name} lacks {message_id}, which the journal holds")
        for message_id in list(has.keys() - should.keys())[:DIFFERENCES_MAX]:
            report.problem(f"{path}: {name} has {message_id}, which the journal does not hold")
        if [m for m in has if m in should] != [m for m in should if m in has]:
            report.problem(f"{path}: {name}: the messages have another order than in the journal")
        if len(report.problems) == before:
            report.problem(f"{path}: {name}: a message's record is at another place in the journal")
    for key in sorted(state.subscriptions.keys() ^ replayed.subscriptions.keys()):
        what = "has" if key in state.subscriptions else "lacks"
        report.problem(f"{path}: {what} the subscription {key[1]} of {key[0]}, unlike the journal")
    for key in sorted(state.subscriptions.keys() & replayed.subscriptions.keys()):
        terms, wanted = (each.owners[each.subscriptions[key]].terms for each in (state, replayed))
        if terms is not None and terms != wanted:
            report.problem(f"{path}: the subscription {key[1]} of {key[0]} has {terms}, by the journal {wanted}")


def _compare_priorities(
    path: str, name: str, state: State, owner: int, replayed: State, true_owner: int, report: Report
) -> None:
    if owner not in state.ranked and true_owner not in replayed.ranked:
        return
    for priority in range(RANKS):
        pairs = zip_longest(state.of_priority(owner, priority, 0), replayed.of_priority(true_owner, priority, 0))
        if any(has != should for has, should in pairs):
            report.problem(f"{path}: {name} has other messages of priority {priority} than the journal")


def _are_alike(state: State, owner: int | None, replayed: State, true_owner: int | None) -> bool:
    """Return whether two owners hold the same messages in the same order, each record at the same place."""
    if owner is None or true_owner is None:
        return next(_ids(state, owner), None) is None and next(_ids(replayed, true_owner), None) is None
    has, should = state.as_checkpointed(owner), replayed.as_checkpointed(true_owner)
    # prove: one-too-many-is-found "zip_longest(has, should)" -> "zip(has, should, strict=False)"
    if has is not None and should is not None and all(starmap(eq, zip_longest(has, should))):
        return True
    pairs = zip_longest(state.entries(owner, 0), replayed.entries(true_owner, 0))
    return all(has == should for has, should in pairs)


def _count(state: State, owner: int | None) -> int:
    return 0 if owner is None else state.owners[owner].count


def _ids(state: State, owner: int | None) -> Iterator[str]:
    """Iterate over an owner's message ids, in order; none for an owner that does not exist."""
    if owner is not None:
        for _, entry in state.entries(owner, 0):
            yield entry.message_id


def _compare_transactions(path: str, state: State, replayed: State, report: Report) -> None:
    for key in sorted(state.transactions.keys() | replayed.transactions.keys()):
        has, should = state.transactions.get(key), replayed.transactions.get(key)
        if has is None or should is None:
            what = "lacks" if has is None else "has"
            report.problem(f"{path}: {what} the open transaction {key}, unlike the journal")
        elif (has.is_prepared, [o.location for o in has.operations]) != (
            should.is_prepared,
            [o.location for o in should.operations],
        ):
            report.problem(f"{path}: transaction {key} has other operations than in the journal")


def _compare_files(files: JournalFiles, path: str, state: State, replayed: State, report: Report) -> None:
    """Compare the holders and pins of each file. An index may have more pins than a replay finds: the records that gave
    the reasons for them may be in removed files."""
    existing = set(files.list())
    for file in sorted(existing):
        has, should = state.files.get(file, FileState()), replayed.files.get(file, FileState())
        if has.live_bytes != should.live_bytes:
            report.problem(f"{path}: {has.live_bytes} live bytes in db-{file}.log, {should.live_bytes} by the journal")
        mine, theirs = _holders(state, has), _holders(replayed, should)
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                count, size = mine.get(name, (0, 0))
                report.problem(
                    f"{path}: {name} has {count} messages of {size} bytes in db-{file}.log, "
                    f"{' of '.join(map(str, theirs.get(name, (0, 0))))} by the journal"
                )
        # A file that was given up needs no pin: it is removed before all others.
        for pin in sorted(((should.pins - has.pins) & existing) - replayed.given_up):
            if file not in _staying_with(state, pin):
                report.problem(f"{path}: db-{file}.log does not pin db-{pin}.log, whose records it removes")


def _staying_with(state: State, file: int) -> Set[int]:
    """Return the files that would stay if only ``file`` had needed records.

    Not all of them pin ``file`` directly. Each record of a subscription pins the record before it, and the newest also
    pins the oldest; in a replay that lacks the oldest, the newest pins the oldest existing one.
    """
    others = state.files.keys() - {file}
    return state.files.keys() - reclaimable(state.files, {file}, lambda _: False, max(others, default=0) + 1, others)


def _holders(state: State, file: FileState) -> dict[str, tuple[int, int]]:
    return {holder_name(state, owner): (held[0], held[1]) for owner, held in file.holders.items() if held[0]}
