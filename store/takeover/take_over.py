"""Steps of one take-over: read, compare, make the records; then set ActiveMQ's index aside. The package has the
overview.

Steps of a promotion, and the effect of a crash during a step:

    1  prepare_takeover    reads only; its temporary index is private             nothing has changed
    2  header, records     the new epoch; the records between two marks           db.data exists: step 1 is repeated
    3  finish              renames db.data, db.redo, db.free; minimal index       the journal has all facts already
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from tandemmq.disk import Disk
from tandemmq.journal.checked import CheckedReader
from tandemmq.journal.errors import JournalCorrupt, JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import RECORD_HEADER_SIZE, Location, file_of
from tandemmq.journal.reader import JournalReader
from tandemmq.journal.scan import scan
from tandemmq.store.damage.report import WHOLE_FILE, Damage, JournalLost
from tandemmq.store.kahadb.index import KahaIndex, read_index
from tandemmq.store.kahadb.minimal import set_index_aside, write_minimal
from tandemmq.store.kahadb.page_file import KahaIndexDamaged
from tandemmq.store.records.commands import ADD, UPDATE, AddMessage, UpdateMessage, decode, encode
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.records.hints import CopyHint, hint_of
from tandemmq.store.records.loose import OPENWIRE_VERSION
from tandemmq.store.records.message import Destination
from tandemmq.store.records.openwire import VERSIONS_TRIED, detect_version
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.recovery.header_reader import first_batch
from tandemmq.store.recovery.index_trust import gone, is_gone
from tandemmq.store.takeover.activemq_view import END, ActiveMQView, OnCorrupt, Ranks
from tandemmq.store.takeover.difference import Plan, difference, missing_files, reordered
from tandemmq.store.takeover.records import LAYOUT_VERSION_MIN, batches, repeat_records, skipped_files
from tandemmq.store.takeover.report import Report
from tandemmq.store.takeover.scheduler import ScheduledJobs, find_scheduled_jobs

log = logging.getLogger(__name__)

# Maximum number of messages for each file, and of files, that are read to detect the OpenWire version.
SAMPLES_MAX = 8
SAMPLE_FILES_MAX = 8


class Takeover:
    """A take-over during a promotion. Made by ``prepare_takeover``.

    ``foreign_openwire``: OpenWire version of ActiveMQ's bodies for the header of the new epoch (0: no file needs it).
    ``report`` is complete after ``finish``.
    """

    def __init__(self, work: _Work, plan: Plan, subscriptions: Sequence[bytes], report: Report) -> None:
        self._work = work
        self._plan = plan
        self._subscriptions = subscriptions
        self.report = report
        self.foreign_openwire = work.openwire_version if work.has_foreign_files else 0

    def batches(self) -> Iterator[list[bytes]]:
        """Yield the payloads of the records after the header, batch by batch; bodies are read lazily from the journal.

        All must be durable and applied before ``finish``. Yields nothing if the journal agrees with the index.
        """
        work = self._work
        # prove: takeover-copies-are-compared ".end_of)" -> ".end_of)._reader"
        with closing(CheckedReader(work.files, work.follower.end_of)) as reader:
            yield from batches(self._plan, self._subscriptions, reader, work.version_at, work.on_corrupt)

    def finish(self) -> Report:
        """Set ActiveMQ's index aside and write the minimal one; durable on return. Log the report."""
        work = self._work
        aside = set_index_aside(work.directory, time.time_ns(), work.disk)  # prove: aside-first order minimal-left
        write_minimal(work.directory, max(work.openwire_version, OPENWIRE_VERSION), work.disk)  # prove: minimal-left
        state = work.follower.state
        self.report = report = replace(
            self.report,
            destinations=len(state.owners),
            messages=sum(owner.count for owner in state.owners.values()),
            prepared=tuple(key for key, transaction in state.transactions.items() if transaction.is_prepared),
            set_aside=aside,
        )
        if work.is_foreign:
            for line in report.lines():
                log.info("%s", line)
            if work.openwire_version < LAYOUT_VERSION_MIN:
                log.warning(
                    "the store has bodies of OpenWire %d and %d: ActiveMQ can read it only after `store handback`",
                    work.openwire_version,
                    OPENWIRE_VERSION,
                )
        return report


@dataclass(slots=True)
class _Work:
    """State that the steps share. ``has_foreign_files``: some files of ActiveMQ have an OpenWire version that no header
    names. ``is_foreign``: there are files of ActiveMQ, or its index."""

    files: JournalFiles
    directory: str
    disk: Disk
    follower: Follower
    ignores_missing: bool
    openwire_version: int = OPENWIRE_VERSION
    has_foreign_files: bool = False
    is_foreign: bool = False

    @property
    def on_corrupt(self) -> OnCorrupt | None:
        return _skip_damage if self.ignores_missing else None

    @property
    def epoch_history(self) -> EpochHistory:
        return self.follower.epoch_history

    def records(self, file: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, payload) of each record of a file before its end."""
        for batch in scan(self.files, file, 0, self.epoch_history.ends.get(file), on_corrupt=self.on_corrupt):
            yield from batch.records

    def version_at(self, file: int) -> int:
        headers = self.epoch_history.headers
        is_named = file in headers or any(number > file and headers[number].foreign_openwire for number in headers)
        return self.epoch_history.version_at(file) if is_named else self.openwire_version


def _skip_damage(damage: JournalCorrupt) -> None:
    log.warning("the take-over skips damage: %s", damage)


def prepare_takeover(
    files: JournalFiles,
    follower: Follower,
    *,
    scratch: str,
    index_directory: str | None = None,
    disk: Disk = os,
    ignores_missing: bool = False,
) -> Takeover | None:
    """Find whether ActiveMQ left an index, and which of its facts the journal lacks. Reads only; blocking.

    ``follower`` has read the journal to its end. ``scratch`` is a path for a temporary index, private to this broker;
    it is removed. ``index_directory`` is the directory of ActiveMQ's index; by default, that of the journal. Returns
    None if nothing must be taken over.

    Raises JournalLost if ActiveMQ's view needs a file that is missing, JournalCorrupt for damage, and the OSError of
    the volume. With ``ignores_missing``, missing files and damage are skipped; the follower has reported them.
    """
    started = time.monotonic()
    work = _Work(files, index_directory or files.directory, disk, follower, ignores_missing)
    kaha, damage = _open(work)
    plan, subscriptions = Plan(), list[bytes]()
    has_index = False
    try:
        damage = _check_journal(work, kaha, damage)
        # The newest header that names an OpenWire version does so for all files of ActiveMQ before it.
        named = max((file for file, header in work.epoch_history.headers.items() if header.foreign_openwire), default=0)
        if kaha is not None and _is_minimal(kaha) and not _may_be_unread(work, named):
            return None
        foreign = _foreign_files(work)
        unnamed = [file for file in foreign if file > named]
        if kaha is not None and _is_minimal(kaha) and not unnamed:
            return None
        work.has_foreign_files = bool(unnamed)
        work.is_foreign = bool(foreign) or kaha is not None or damage is not None
        work.openwire_version = _openwire_version(work, unnamed or foreign, kaha)
        if kaha is not None and kaha.last_update is not None and damage is None:
            try:
                plan, subscriptions = _by_index(work, kaha, kaha.last_update, scratch)
                has_index = True
            except KahaIndexDamaged as reason:
                damage = str(reason)
    finally:
        if kaha is not None:
            kaha.close()
    if damage is not None:
        log.warning("ActiveMQ's index cannot be used; the take-over uses the journal alone: %s", damage)
    if not has_index and foreign:
        done = _taken_over_until(work)
        plan = _by_journal(work, [file for file in foreign if file > done], done)
    skipped = skipped_files(files, foreign)
    if skipped:
        repeat_records(plan, follower, skipped)
    report = Report(
        work.directory,
        has_index,
        damage,
        kaha is not None and kaha.was_closed,
        work.openwire_version,
        _corrected(plan),
        _scheduled_jobs(files.directory) if work.is_foreign else (),
        seconds=time.monotonic() - started,
    )
    return Takeover(work, plan, subscriptions, report)


def _open(work: _Work) -> tuple[KahaIndex | None, str | None]:
    """Return (index, None), (None, its damage), or (None, None) if there is no index."""
    try:
        return read_index(work.directory, work.disk), None
    except KahaIndexDamaged as reason:
        return None, str(reason)


def _check_journal(work: _Work, kaha: KahaIndex | None, damage: str | None) -> str | None:
    """Return ``damage``, or a text if all files of the index's journal are missing. Raises JournalLost for that, unless
    ``ignores_missing`` is set."""
    is_index = damage is not None or (kaha is not None and not _is_minimal(kaha))
    # prove: missing-foreign-journal "not is_index" -> "True"
    if not is_index or not is_gone(work.files, work.files.list()):
        return damage
    last_update = kaha.last_update if kaha is not None else None
    file = 1 if last_update is None else file_of(last_update)
    if not work.ignores_missing:
        raise JournalLost(gone(work.files, [file], f"to db-{file}.log at least"))
    return damage or "all files of its journal are missing"


def _may_be_unread(work: _Work, named: int) -> bool:
    """Return whether ActiveMQ may have written files that were not taken over, although its index is minimal: it may
    have died before its first checkpoint. ``named``: newest file whose header names an OpenWire version."""
    files = work.files.list()[:-1]  # the last one is the fence of this promotion
    return any(file > named and file not in work.epoch_history.headers for file in files)


def _is_minimal(kaha: KahaIndex) -> bool:
    try:
        return kaha.is_minimal
    except KahaIndexDamaged:
        return False  # the reader of the index will report the damage


def _by_index(work: _Work, kaha: KahaIndex, last_update: Location, scratch: str) -> tuple[Plan, list[bytes]]:
    journal = work.follower.state
    reader = JournalReader(work.files)

    def size_of(location: Location) -> int:
        return len(reader.read(location)) + RECORD_HEADER_SIZE

    def record_of(topic: Destination, key: str) -> Location:
        owner = journal.subscriptions.get((topic, key))
        return 0 if owner is None else journal.owners[owner].latest_record

    activemq_view = ActiveMQView(work.files, work.epoch_history, scratch, work.disk)
    try:
        activemq_view.read(kaha, size_of, record_of, work.on_corrupt)
        if activemq_view.is_journal_complete:
            return Plan(), []
        lost = [
            Damage(file, 0, WHOLE_FILE, f"ActiveMQ's index has {live} messages in it", is_lost=True)
            for file, live in missing_files(activemq_view.state, work.files.list())
        ]
        if lost and not work.ignores_missing:
            raise JournalLost(lost)
        for damage in lost:
            activemq_view.state.lose_file(damage.file, is_damage=True)
        plan = difference(journal, activemq_view)
        subscriptions = []
        for owner in plan.subscribed:
            is_stored = owner.latest_record <= last_update
            stored = (
                activemq_view.subscriptions[owner.destination, owner.key]
                if is_stored
                else decode(reader.read(owner.latest_record))
            )
            subscriptions.append(encode(stored))  # in the OpenWire version of this broker
        return plan, subscriptions
    except JournalMissing as reason:
        raise JournalLost([Damage(reason.file, 0, WHOLE_FILE, str(reason), is_lost=True)]) from reason
    finally:
        activemq_view.close()
        reader.close()


def _by_journal(work: _Work, foreign: Sequence[int], done: int) -> Plan:
    """Return the plan without an index: only the order of prioritized destinations needs records. ``done``: first file
    of the last complete take-over."""
    ranks = Ranks()
    moved = _moved_by_incomplete(work, done)
    for file in foreign:
        for offset, payload in work.records(file):
            ranks.note(payload)
            if moved:
                ranks.note_origin(file << 32 | offset, payload, moved)
    return reordered(work.follower.state, ranks)


def _moved_by_incomplete(work: _Work, done: int) -> set[tuple[Destination, str]]:
    """Return the messages that incomplete take-overs moved: their present order key is not valid."""
    moved: set[tuple[Destination, str]] = set()
    of_epoch: set[tuple[Destination, str]] = set()
    for file, header in sorted(work.epoch_history.headers.items()):
        if file <= done:
            continue
        if header.reason == "promotion":
            moved |= of_epoch
            of_epoch = set()
        for _, payload in work.records(file):
            if payload == END:
                of_epoch = set()
            elif payload[0] == UPDATE and isinstance(hint_of(payload), CopyHint):
                command = decode(payload)
                assert isinstance(command, UpdateMessage), "the first byte is its type"
                of_epoch.add((command.add.destination, command.add.message_id))
    return moved | of_epoch


def _foreign_files(work: _Work) -> list[int]:
    """Return the files that ActiveMQ wrote."""
    found = []
    for file in work.files.list():
        is_ours = file in work.epoch_history.headers or work.epoch_history.ends.get(file) == 0
        if not is_ours and first_batch(work.files, file) is not None:
            found.append(file)
    return found


def _taken_over_until(work: _Work) -> int:
    """Return the first file of the last complete take-over, which included all files before it. 0: there is none."""
    headers = work.epoch_history.headers
    # The header of the first take-over names the version; a take-over that completes it may not name it again.
    begun = min((file for file, header in headers.items() if header.foreign_openwire), default=None)
    firsts = [file for file, header in headers.items() if header.reason == "promotion"]
    for first in sorted((file for file in firsts if begun is not None and file >= begun), reverse=True):
        for file, header in headers.items():
            if header.epoch == headers[first].epoch and any(payload == END for _, payload in work.records(file)):
                return first
    return 0


def _openwire_version(work: _Work, foreign: Sequence[int], kaha: KahaIndex | None) -> int:
    """Return the OpenWire version of the bodies: that of the index if samples of the journal can be decoded with it,
    otherwise the one with which they can."""
    samples = list(_samples(work, foreign))
    named = OPENWIRE_VERSION if kaha is None else kaha.openwire_version
    found = detect_version(samples, (named, *VERSIONS_TRIED))
    if found is None:
        log.warning("messages of ActiveMQ have no known OpenWire version; version %d is assumed", named)
        return named
    if kaha is not None and found != named:
        log.warning("ActiveMQ's index names OpenWire version %d for bodies, but they have version %d", named, found)
    return found


def _samples(work: _Work, foreign: Sequence[int]) -> Iterator[bytes]:
    step = max(len(foreign) // SAMPLE_FILES_MAX, 1)
    for file in foreign[::-step][:SAMPLE_FILES_MAX]:
        count = 0
        for batch in scan(work.files, file, is_live=True):
            for _, payload in batch.records:
                if payload[0] == ADD and count < SAMPLES_MAX:
                    command = decode(payload)
                    assert isinstance(command, AddMessage), "the first byte is its type"
                    count += 1
                    yield command.message
            if count == SAMPLES_MAX:
                break


def _scheduled_jobs(directory: str) -> tuple[ScheduledJobs, ...]:
    try:
        return find_scheduled_jobs(directory)
    except (OSError, JournalMissing) as reason:
        log.warning("ActiveMQ's scheduler store cannot be read; its jobs are not counted: %s", reason)
        return ()


def _corrected(plan: Plan) -> dict[str, int]:
    restored = sum(copy.is_restored for copy in plan.copies)
    return {
        "messages that had been removed": len(plan.removals),
        "messages that had been lost": restored,
        "messages that were at another place": len(plan.copies) - restored,
        "destinations that had been deleted": len(plan.removed_destinations),
        "subscriptions that had been deleted": len(plan.unsubscribed),
        "subscriptions that had been lost": len(plan.subscribed),
        "transactions that had been rolled back": len(plan.rolled_back),
    }
