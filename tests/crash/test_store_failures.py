"""Each disk call in a store's life fails once. Then the store is opened again, and its promises are checked.

Writes before a failed sync are never durable, because the kernel has marked their pages clean. So the images that a
power loss can leave afterwards show whether the store relied on such a write. By default the test takes a seeded sample
of calls and failures; with TANDEMMQ_PROVE set (``make prove``) every call fails in every way.
"""

from __future__ import annotations

import errno
import os
import random
import re

import pytest

from tandemmq.index.errors import IndexTrouble
from tandemmq.journal.errors import JournalError
from tandemmq.store.operations import AddMessage
from tandemmq.store.writer.space import StoreFull
from tests.support.crash.explorer import Judge, explore
from tests.support.crash.failing_disk import SYNCS, Failed, FailingDisk, Failure
from tests.support.crash.promises import Asked, Held, PromisingTerm
from tests.support.crash.recording_disk import ROOT, Event, Note, RecordingDisk, Sync
from tests.support.crash.short_lives import OTHER, SETTINGS, begin, round_of
from tests.support.prove import IS_PROOF, IS_THOROUGH, SEED

pytestmark = [pytest.mark.promise("confirmed-survives"), pytest.mark.usefixtures("steps")]

LIVES = 40 if IS_THOROUGH else 12
IMAGES_OF_A_LIFE = 2
WAYS = [
    (Failure.ONCE, errno.EIO),
    (Failure.LASTING, errno.EIO),
    (Failure.ONCE, errno.ENOSPC),
    (Failure.LASTING, errno.ENOSPC),
    (Failure.ONCE, errno.EDQUOT),
    (Failure.ONCE, errno.ESTALE),
    (Failure.LASTING, errno.ESTALE),
    (Failure.SHORT, 0),
]
JOURNAL_FILE = re.compile(r"db-\d+\.log")
INDEX_FILE = re.compile(r"index/.*/db\.(data|free)")


class Lived:
    """A short life on a disk that fails: rotations, checkpoints, files reclaimed."""

    def __init__(self, directory: str, fail_at: int, failure: Failure, number: int) -> None:
        self.disk = RecordingDisk(directory)
        self.own = FailingDisk(self.disk, fail_at, failure, number)
        self.ended_by: BaseException | None = None
        try:
            term = begin(directory, self.disk, own=self.own)
        except (OSError, JournalError, IndexTrouble) as error:
            self.ended_by = error
            return
        try:
            try:
                self._live(term)
            except StoreFull as error:  # what a disk may do for want of room is no failure: it is refused
                self.ended_by = error
            term.close()
        except (OSError, JournalError, IndexTrouble) as error:
            self.ended_by = error
        except AssertionError:
            if term.lost is None:
                raise
            self.ended_by = term.lost
        finally:
            term.crash()

    @staticmethod
    def _live(term: PromisingTerm) -> None:
        kept: list[AddMessage] = []
        for _ in range(4):
            kept += round_of(term, 5, 1)
            if len(kept) > 1:
                term.remove(kept.pop(0), term.queue())
                term.wait_all()
        for _ in range(6):
            term.add(OTHER)
        term.wait_all()
        term.remove_queue(OTHER)
        round_of(term, 5, 1)

    @property
    def since_failure(self) -> list[Event]:
        for number, event in enumerate(self.disk.events):
            if isinstance(event, Note) and isinstance(event.what, Failed):
                return self.disk.events[number + 1 :]
        return []


def is_latched(lived: Lived, failed: Failed) -> None:
    """After a failed write or sync no later operation is promised, and the file is not synced again."""
    since = lived.since_failure
    later = {note.what.number for note in since if isinstance(note, Note) and isinstance(note.what, Asked)}
    promised = {note.what.number for note in since if isinstance(note, Note) and isinstance(note.what, Held)}
    is_change_of_file = failed.call in SYNCS or failed.call == "pwrite"
    if is_change_of_file and JOURNAL_FILE.fullmatch(failed.path):
        assert lived.ended_by is not None, "the store went on"
        assert not later & promised, "promised after the failure"
    if is_change_of_file and INDEX_FILE.fullmatch(failed.path):
        assert lived.ended_by is not None, "the store went on"
    if failed.call in SYNCS and failed.node == ROOT:
        # Names: a removal that is under way in another thread may still end, but no rotation follows.
        assert lived.ended_by is not None or not later, "the store went on"
    elif failed.call in SYNCS:
        # The failed one is the first of these; where everything fails from then on, tries are events as well.
        tries = [event for event in since if isinstance(event, Sync) and event.node == failed.node]
        assert len(tries) <= 1, "a sync was tried again after it had failed"


def hold(scratch: str, fail_at: int, failure: Failure, number: int, dice: random.Random) -> Failed | None:
    directory = f"{scratch}/{fail_at}-{failure.name}-{number}"
    os.mkdir(directory)
    lived = Lived(directory, fail_at, failure, number)
    failed = lived.own.failed
    try:
        if failed is not None:
            if failure is Failure.SHORT:
                assert lived.ended_by is None, f"a short write is no failure: {lived.ended_by!r}"
            else:
                is_latched(lived, failed)
        assert not lived.disk.still_open(), f"not let go of in the end: {lived.disk.still_open()}"
        judge = Judge(directory, SETTINGS)
        events = lived.disk.events
        # What is left after the failure, at any later moment.
        start = len(events) - len(lived.since_failure)
        candidates = explore(events, start, dice).candidates
        for candidate in dice.sample(candidates, min(IMAGES_OF_A_LIFE, len(candidates))):
            judge.hold(candidate)
    except BaseException as error:
        error.add_note(f"call {fail_at} {failure.value}, errno {number}: {failed}; ended by {lived.ended_by!r}")
        raise
    return failed


@pytest.mark.prove
@pytest.mark.timeout(900 if IS_PROOF else 120)
def test_whatever_fails_what_was_promised_holds_and_nothing_is_promised_later(scratch: str) -> None:
    dice = random.Random(SEED)
    os.mkdir(f"{scratch}/count")
    counted = Lived(f"{scratch}/count", 0, Failure.ONCE, 0)
    assert counted.ended_by is None
    total = counted.own.count
    assert total > 60
    every = [(call, *way) for call in range(1, total + 1) for way in WAYS]
    chosen = every if IS_PROOF else dice.sample(every, LIVES)
    calls = {failed.call for each in chosen if (failed := hold(scratch, *each, dice)) is not None}
    print(f"{total} calls, {len(chosen)} of {len(every)} failures: {', '.join(sorted(calls))}")
    # How many calls there are depends on the time, so a sample may leave out any of them.
    assert calls >= ({"pwrite", "fdatasync", "fsync", "open"} if IS_PROOF else set())
    assert calls
