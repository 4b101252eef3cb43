"""Short lives of a store, each of which ends or crashes during the work that it tests.

They are so small that every possible image after a power loss can be opened: few files of a few KiB, few checkpoints.
CrashMonkey found that long workloads rarely find problems that short ones do not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

from tandemmq.disk import Disk
from tandemmq.index.errors import IndexTrouble
from tandemmq.journal.errors import JournalError
from tandemmq.journal.files import file_id
from tandemmq.store.maintenance.manifest import SUFFIX, decode_manifest
from tandemmq.store.operations import AddMessage
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tests.support.crash.explorer import ONE_STORE, StoreKind
from tests.support.crash.failing_disk import FailingDisk, Failure, SleepingDisk
from tests.support.crash.promises import PromisingTerm, State, messages_of
from tests.support.crash.recording_disk import RecordingDisk
from tests.support.store.store_harness import KIB, Q

SETTINGS = StoreSettings(
    journal_max_file_length=4 * KIB,
    checkpoint_interval=3600.0,
    checkpoint_records=12,
    cleanup_interval=0.0,
    fence_check_interval=0.002,
)
BY_HAND = replace(SETTINGS, enable_compaction=False)  # only on request
# Keep the storage thread in the journal's queue, if the journal has one.
QUEUED = replace(SETTINGS, fence_check_interval=3600.0, clock_mark_interval=3600.0, checkpoint_records=40)
ARCHIVING = replace(SETTINGS, archive_data_logs=True)
OTHER = Destination(DestinationKind.QUEUE, "Q.B")
TOPIC = Destination(DestinationKind.TOPIC, "T.A")
Life = Callable[[str, RecordingDisk], None]


def nothing(directory: str) -> State:
    """The state of an empty directory."""
    return ()


@dataclass(frozen=True, slots=True)
class ShortLife:
    """``also``: further checks of each image, called also after its recovery. ``found``: prepares the directory that
    others left, durably, and returns its state."""

    live: Life
    settings: StoreSettings = SETTINGS
    also: Callable[[str], None] = lambda directory: None
    found: Callable[[str], State] = nothing
    store_kind: StoreKind = ONE_STORE


def begin(
    directory: str,
    disk: RecordingDisk,
    broker: str = "a",
    *,
    own: Disk | None = None,
    settings: StoreSettings = SETTINGS,
) -> PromisingTerm:
    """Begin a term. ``own``: the recorded disk as this broker sees it."""
    return PromisingTerm(directory, broker, settings, disk, own)


def round_of(term: PromisingTerm, count: int, keep: int) -> list[AddMessage]:
    """Add messages and remove most of them; return the rest."""
    added = [term.add() for _ in range(count)]
    term.wait_all()
    owner = term.queue()
    for operation in added[keep:]:
        term.remove(operation, owner)
    term.wait_all()
    return added[:keep]


def adds_and_acks(directory: str, disk: RecordingDisk) -> None:
    """Files are filled, checkpointed and reclaimed."""
    term = begin(directory, disk)
    kept: list[AddMessage] = []
    for _ in range(5):
        kept += round_of(term, 5, 1)
        if len(kept) > 1:
            term.remove(kept.pop(0), term.queue())
            term.wait_all()
    term.close()


def turns_that_are_submitted(directory: str, disk: RecordingDisk) -> None:
    """Several turns are submitted during a step of the disk; the master is killed with some of them unanswered."""
    term = begin(directory, disk, settings=QUEUED)
    for done in term.store.checkpoint():  # while one is under way the queue is closed
        done.result()
    kept = [term.add()]
    term.wait_all()
    for _ in range(6):
        kept.append(term.add())
        term.end_turn()
        term.remove(kept.pop(0), term.queue())
        term.end_turn()
        term.wait_all()
    for _ in range(3):
        term.add()
        term.end_turn()
    term.crash()
    again = begin(directory, disk, "b", settings=QUEUED)
    round_of(again, 3, 1)
    again.close()


def commits_that_are_submitted(directory: str, disk: RecordingDisk) -> None:
    """Transactions of several turns and single messages are written during a step of the disk; the master is killed
    with some of them unanswered."""
    term = begin(directory, disk, settings=replace(QUEUED, journal_max_file_length=16 * KIB))
    for done in term.store.checkpoint():  # while one is under way the queue is closed
        done.result()
    added = [term.add() for _ in range(4)]
    term.add(OTHER)
    term.wait_all()
    for number, each in enumerate(added):
        if number % 2 == 0 and term.is_watched:
            term.wait_open()
        term.transact(number, [(OTHER, ()), (Q, ())], [(each, term.queue(), None)])
        term.add()
        term.end_turn()
    term.wait_all()
    for number in range(4, 7):
        term.transact(number, [(OTHER, ())], [])
        term.end_turn()
    term.crash()
    again = begin(directory, disk, "b", settings=QUEUED)
    round_of(again, 3, 1)
    again.close()


def a_message_that_stays(directory: str, disk: RecordingDisk) -> None:
    """The message keeps a file whose other messages were acknowledged in files that are reclaimed, or must not be."""
    term = begin(directory, disk)
    added = [term.add() for _ in range(5)]
    term.wait_all()
    for operation in added[1:]:
        round_of(term, 3, 0)
        term.remove(operation, term.queue())
        term.wait_all()
    for _ in range(3):
        round_of(term, 5, 0)
    term.remove(added[0], term.queue())
    term.wait_all()
    for _ in range(3):
        round_of(term, 5, 0)
    term.close()


def a_second_master(directory: str, disk: RecordingDisk) -> None:
    """A master is killed with unanswered requests; its standby takes over; then the first broker is master again."""
    first = begin(directory, disk)
    standby = Standby(directory, f"{directory}/index", "b", SETTINGS, disk=disk)
    round_of(first, 4, 2)
    standby.follow()
    standby.close()
    for _ in range(3):
        first.add()
    first.end_turn()
    first.crash()
    second = begin(directory, disk, "b")
    round_of(second, 4, 1)
    for paged in messages_of(second, second.queue())[:2]:
        second.remove(paged, second.queue())
    second.wait_all()
    second.crash()
    third = begin(directory, disk, "a")
    round_of(third, 2, 1)
    third.close()


def is_journal_write(call: str, path: str) -> bool:
    return call == "pwrite" and file_id(os.path.basename(path)) is not None


def is_journal_sync(call: str, path: str) -> bool:
    return call == "fdatasync" and file_id(os.path.basename(path)) is not None


def a_deposed_master_writes_on(directory: str, disk: RecordingDisk) -> None:
    """The second master begins while the first is stopped: late writes of the first have no effect."""
    own = SleepingDisk(disk, is_journal_write)
    first = begin(directory, disk, own=own)
    kept = round_of(first, 4, 2)
    own.fall_asleep(partial(stores_and_forgets, first, kept[0]))
    second = begin(directory, disk, "b")
    own.wake()
    first.wait_lost()
    round_of(second, 3, 1)
    first.crash()
    second.crash()


def stores_and_forgets(term: PromisingTerm, known: AddMessage) -> None:
    """Request one batch, without waiting for it."""
    term.add()
    term.remove(known, term.queue())
    term.end_turn()


def transactions(directory: str, disk: RecordingDisk) -> None:
    """Several messages at a time move from queue to queue in transactions, completely or not at all."""
    term = begin(directory, disk)
    other = term.queue(OTHER)
    added = [term.add() for _ in range(4)]
    term.wait_all()
    moved = []
    for number in range(3):
        operation = term.transact(number, [(OTHER, (other,))] * 2, [(added[number], term.queue(), None)])
        term.wait_all()
        moved.append(operation.operations[0])
    added_there = [part for part in moved if isinstance(part, AddMessage)]
    term.transact(3, [], [(part, other, None) for part in added_there])
    term.add()
    term.wait_all()
    term.crash()
    again = begin(directory, disk)
    again.transact(4, [(OTHER, (again.queue(OTHER),))], [])
    again.wait_all()
    again.close()


def subscriptions_and_queues_end(directory: str, disk: RecordingDisk) -> None:
    """End one of two durable subscriptions, and a queue; both begin again and are empty."""
    term = begin(directory, disk)
    one, two = term.subscribe(TOPIC, "one"), term.subscribe(TOPIC, "two")
    term.wait_all()
    added = [term.add(TOPIC, owners=(one, two)) for _ in range(4)]
    for _ in range(3):
        term.add(OTHER)
    term.wait_all()
    term.remove(added[0], one, "client:one")
    term.remove(added[1], one, "client:one")
    term.remove(added[0], two, "client:two")
    term.wait_all()
    term.unsubscribe(TOPIC, "one", one)
    term.remove_queue(OTHER)
    term.wait_all()
    one = term.subscribe(TOPIC, "one")
    term.wait_all()
    added += [term.add(TOPIC, owners=(two, one)) for _ in range(2)]
    term.add(OTHER)
    term.wait_all()
    for operation in added[1:5]:
        term.remove(operation, two, "client:two")
    term.wait_all()
    round_of(term, 5, 0)
    round_of(term, 5, 1)
    term.close()


def what_ended_goes_from_the_index_in_pieces(directory: str, disk: RecordingDisk) -> None:
    """A queue and one of two subscriptions end. Checkpoints, a crash and a promotion happen while parts of them are in
    the index, and others begin with their names."""
    with (
        patch("tandemmq.store.maintenance.upkeep.RECLAIM_ENTRIES", 2),
        patch("tandemmq.store.state.state.RECLAIMED_MAX", 4),
    ):
        term = begin(directory, disk)
        one, two = term.subscribe(TOPIC, "one"), term.subscribe(TOPIC, "two")
        for _ in range(5):
            term.add(TOPIC, owners=(one, two))
            term.add(OTHER)
            term.add(OTHER)
        term.wait_all()
        term.unsubscribe(TOPIC, "one", one)
        term.remove_queue(OTHER)
        term.add(OTHER)
        term.wait_all()
        round_of(term, 6, 1)
        standby = Standby(directory, f"{directory}/index", "b", SETTINGS, disk=disk)
        standby.follow()
        standby.close()
        term.crash()
        again = begin(directory, disk, "b")
        one = again.subscribe(TOPIC, "one")
        again.add(TOPIC, owners=(again.store.subscription("client", "two", TOPIC), one))
        again.wait_all()
        round_of(again, 6, 0)
        again.remove_queue(OTHER)
        again.wait_all()
        round_of(again, 6, 1)
        again.close()


def killed_at(call: int) -> Life:
    """Return a life: a master is killed before its ``call``-th call of the disk, and a successor follows.

    Unsynced writes of the first are in the memory of the system, where the second finds them.
    """

    def life(directory: str, disk: RecordingDisk) -> None:
        own = FailingDisk(disk, call, Failure.KILLED)
        try:
            first = begin(directory, disk, own=own)
        except (OSError, JournalError, IndexTrouble):
            pass
        else:
            try:
                for _ in range(2):
                    round_of(first, 5, 1)
                first.add()
                first.wait_all()
            except AssertionError:
                assert own.failed is not None, "only the kill ends it"
            first.crash()
        second = begin(directory, disk, "b" if call % 2 else "a")
        round_of(second, 5, 1)
        second.close()

    return life


def sparse_files(term: PromisingTerm, files: int) -> list[AddMessage]:
    """Fill ``files`` files, with one remaining message in each."""
    kept: list[AddMessage] = []
    for _ in range(files):
        kept += round_of(term, 7, 1)
    return kept


def compaction(directory: str, disk: RecordingDisk) -> None:
    """Sparse files are emptied; moved messages are acknowledged, moved again, and stay in order."""
    term = begin(directory, disk, settings=BY_HAND)
    owner = term.queue()
    kept = sparse_files(term, 5)
    assert term.compact().messages > 2
    for operation in kept[1::2]:
        term.remove(operation, owner)
    term.wait_all()
    kept += sparse_files(term, 2)
    report = term.store.compact()
    for operation in kept[2:7:2]:  # during the compaction
        term.add()
        term.remove(operation, owner)
    term.wait_all()
    term.wait(report.done)
    term.crash()
    again = begin(directory, disk, "b", settings=BY_HAND)
    round_of(again, 2, 1)
    again.compact()
    again.close()


def compaction_of_all_kinds(directory: str, disk: RecordingDisk) -> None:
    """A sparse file contains subscriptions, some of their pending messages, and a prepared transaction."""
    term = begin(directory, disk, settings=BY_HAND)
    one, two = term.subscribe(TOPIC, "one"), term.subscribe(TOPIC, "two")
    term.wait_all()
    added = [term.add(TOPIC, owners=(one, two)) for _ in range(2)]
    queued = [term.add() for _ in range(2)]
    term.wait_all()
    term.remove(added[0], one, "client:one")
    term.remove(added[1], two, "client:two")
    prepared = term.prepare(1, [(Q, ())], [(queued[0], term.queue(), None), (added[1], one, "client:one")])
    term.remove(queued[1], term.queue())
    term.wait_all()
    for _ in range(6):
        round_of(term, 7, 4)
    term.compact()
    assert not os.path.exists(f"{directory}/db-1.log"), "all records were moved"
    term.unsubscribe(TOPIC, "two", two)
    term.wait_all()
    term.end(prepared, is_commit=False)
    term.wait_all()
    sparse_files(term, 2)
    term.compact()
    term.close()


def prepared_transactions(directory: str, disk: RecordingDisk) -> None:
    """Prepare two transactions and commit one; the next master rolls back the other."""
    term = begin(directory, disk)
    added = [term.add() for _ in range(4)]
    term.wait_all()
    owner, other = term.queue(), term.queue(OTHER)
    first = term.prepare(1, [(OTHER, (other,))] * 2, [(added[0], owner, None)])
    second = term.prepare(2, [(OTHER, (other,))], [(added[1], owner, None), (added[3], owner, None)])
    term.wait_all()
    round_of(term, 7, 1)
    term.end(first, is_commit=True)
    term.wait_all()
    round_of(term, 4, 0)
    term.crash()
    again = begin(directory, disk, "b")
    round_of(again, 3, 1)
    again.end(second, is_commit=False)
    again.wait_all()
    round_of(again, 7, 0)
    again.close()


def subscriptions_begin_before_a_commit(directory: str, disk: RecordingDisk) -> None:
    """One subscription begins after the prepare, another under the next master: the commit delivers the prepared
    messages to both."""
    term = begin(directory, disk)
    prepared = term.prepare(1, [(TOPIC, ())] * 2, [])
    dropped = term.prepare(2, [(TOPIC, ())], [])
    term.wait_all()
    one = term.subscribe(TOPIC, "one")
    round_of(term, 7, 1)
    term.crash()
    again = begin(directory, disk, "b")
    one, two = again.store.subscription("client", "one", TOPIC), again.subscribe(TOPIC, "two")
    again.end(prepared, is_commit=True, joined=(one, two))
    again.end(dropped, is_commit=False)
    again.wait_all()
    again.remove(messages_of(again, one)[0], one, "client:one")
    round_of(again, 7, 1)
    again.close()


def files_go_to_the_archive(directory: str, disk: RecordingDisk) -> None:
    term = begin(directory, disk, settings=ARCHIVING)
    for _ in range(3):
        round_of(term, 6, 0)
    kept = round_of(term, 5, 1)
    round_of(term, 7, 0)
    term.remove(kept[0], term.queue())
    term.wait_all()
    round_of(term, 7, 0)
    term.close()


def every_file_is_somewhere(directory: str) -> None:
    """Check that all files of one master up to its last are in the journal or in its archive.

    A file with a manifest is complete, and each file that is only in the archive has one.
    """
    there = {name for name in os.listdir(directory) if file_id(name) is not None}
    archive = Path(directory, "data-archive")
    archived = set(os.listdir(archive)) if archive.is_dir() else set()
    files = {name for name in archived if file_id(name) is not None}
    last = max((file_id(name) or 0 for name in there | files), default=0)
    missing = {f"db-{number}.log" for number in range(1, last + 1)} - there - files
    assert not missing, f"neither in the journal nor in its archive: {missing}"
    for name in files:
        if name + SUFFIX in archived:
            manifest = decode_manifest((archive / (name + SUFFIX)).read_bytes())
            assert manifest is not None, f"{name}: a torn manifest"
            # A deposed master may have written after this position since.
            counted = (archive / name).read_bytes()[: manifest.counted]
            assert manifest.counted_sha256 == hashlib.sha256(counted).hexdigest(), name
        else:
            assert name in there, f"{name} is only in the archive, and has no manifest"
    assert not {name for name in archived if name.endswith(SUFFIX)} - {name + SUFFIX for name in files}


LIVES: dict[str, ShortLife] = {
    "adds and acks": ShortLife(adds_and_acks),
    "turns that are submitted": ShortLife(turns_that_are_submitted, QUEUED),
    "commits that are submitted": ShortLife(commits_that_are_submitted, QUEUED),
    "a message that stays": ShortLife(a_message_that_stays),
    "a second master": ShortLife(a_second_master),
    "a deposed master writes on": ShortLife(a_deposed_master_writes_on),
    "transactions": ShortLife(transactions),
    "prepared transactions": ShortLife(prepared_transactions),
    "subscriptions begin before a commit": ShortLife(subscriptions_begin_before_a_commit),
    "subscriptions and queues end": ShortLife(subscriptions_and_queues_end),
    "what ended goes from the index in pieces": ShortLife(what_ended_goes_from_the_index_in_pieces),
    "compaction": ShortLife(compaction, BY_HAND),
    "compaction of all kinds": ShortLife(compaction_of_all_kinds, BY_HAND),
    "files go to the archive": ShortLife(files_go_to_the_archive, ARCHIVING, every_file_is_somewhere),
}
