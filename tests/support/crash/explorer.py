"""Opens the images that a crash may leave, checks the store's promises, and then crashes the recovery, too.

``explore`` finds all images that a recorded life may leave, and the allowed states of each. A ``Judge`` opens an image
and checks it. Images are in memory, and are opened in a tmpfs if there is one.
"""

from __future__ import annotations

import glob
import multiprocessing
import os
import random
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tandemmq.index.index import Index
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.settings import StoreSettings
from tandemmq.store.tools.check_several import check_all
from tests.support.crash.crash_images import Disk, Image
from tests.support.crash.promises import Ledger, PromisingTerm, State, difference, drained, seen, words_of
from tests.support.crash.recording_disk import Event, Note, RecordingDisk
from tests.support.store.store_harness import Q, Term

TMPFS = "/dev/shm"
# One image out of this number is used further until its files are reclaimed, and then opened without an index.
LIVES_ON_EVERY = 4
ROUNDS_OF_FILLER = 6
# Bytes that a pipe holds without a reader, shared by all processes.
FAILURE_CHARACTERS_MAX = 8_000
FILLER = Destination(DestinationKind.QUEUE, "filler")


@dataclass(slots=True)
class Candidate:
    """An image and its allowed states. It may be left at several moments, and must be allowed at all of them."""

    image: Image
    allowed: frozenset[State]
    moment: int


@dataclass(slots=True)
class Exploration:
    """``images``: number of images of all moments; ``candidates``: those with different contents."""

    candidates: list[Candidate] = field(default_factory=list)
    images: int = 0
    moments: int = 0
    is_capped: bool = False

    def __str__(self) -> str:
        capped = ", capped" if self.is_capped else ""
        return f"{self.moments} moments, {self.images} images, {len(self.candidates)} distinct{capped}"


def explore(
    events: Sequence[Event],
    start: int,
    dice: random.Random,
    *,
    before: frozenset[State] = frozenset([()]),
    ledger_of: Callable[[frozenset[State]], Ledger] = Ledger,
) -> Exploration:
    """Return all images that a power loss after each event from ``start`` on may leave. ``before``: the state at the
    start."""
    disk, ledger, found = Disk(dice), ledger_of(before), Exploration()
    known: dict[bytes, Candidate] = {}
    now: list[Candidate] = []
    for number, event in enumerate(events):
        disk.apply(event)
        ledger.apply(event)
        if number + 1 < start:
            continue
        if isinstance(event, Note) and found.moments:
            for candidate in now:
                candidate.allowed &= ledger.allowed
            continue
        found.moments += 1
        at_once: dict[bytes, Candidate] = {}
        for image in disk.images():
            found.images += 1
            key = image.key
            if key in at_once:
                continue
            candidate = known.get(key)
            if candidate is None:
                candidate = known[key] = Candidate(image, ledger.allowed, number)
            candidate.allowed &= ledger.allowed
            at_once[key] = candidate
        now = list(at_once.values())
    found.candidates = list(known.values())
    found.is_capped = disk.is_capped
    return found


def sampled(
    events: Sequence[Event], start: int, count: int, dice: random.Random, *, must_last: bool = True
) -> Iterator[Candidate]:
    """Yield ``count`` images of random moments, for lives too long to enumerate."""
    moments = sorted(dice.randrange(start, len(events) + 1) for _ in range(count))
    disk, ledger = Disk(dice), Ledger(must_last=must_last)
    for number, event in enumerate([*events, None]):
        while moments and moments[0] == number:
            moments.pop(0)
            yield Candidate(disk.image(), ledger.allowed, number - 1)
        if event is not None:
            disk.apply(event)
            ledger.apply(event)


@dataclass(frozen=True, slots=True)
class StoreKind:
    """A kind of store: how it is opened, with and without a record of its promises, and what it promises."""

    open: Callable[[str, str, StoreSettings], Term]
    begin: type[PromisingTerm]
    ledger: Callable[[frozenset[State]], Ledger]


ONE_STORE = StoreKind(Term, PromisingTerm, Ledger)


def index_directories(directory: str) -> list[str]:
    """Return the directories of the brokers' indexes, of one store or of several."""
    return glob.glob(f"{directory}/index") + glob.glob(f"{directory}/*/index")


class Judge:
    """Opens images in ``scratch`` with a store of these settings, as these brokers in turn.

    ``also``: further checks of the directory, called after the crash and at the end.
    """

    def __init__(
        self,
        scratch: str,
        settings: StoreSettings,
        also: Callable[[str], None] = lambda directory: None,
        brokers: Sequence[str] = ("a", "b"),
        store_kind: StoreKind = ONE_STORE,
    ) -> None:
        self.store_kind = store_kind
        self.scratch = scratch
        self.settings = settings
        self.also = also
        self.brokers = brokers
        self.opened = 0

    def hold(self, candidate: Candidate, *, has_index: bool = True) -> State:
        """Open the image, check all promises, and return its state. ``has_index`` False: without the index.

        It is opened twice, the second time by another broker, which must find the same and be able to continue.
        """
        with self._directory(candidate, has_index) as directory:
            first = self._open(directory, self.brokers[self.opened % len(self.brokers)], candidate.allowed)
            state = seen(first)
            if self.opened % 3:
                first.crash()
            else:
                first.close()
            again = self._open(directory, self.brokers[(self.opened + 1) % len(self.brokers)], frozenset([state]))
            if self.opened % LIVES_ON_EVERY:
                self._check_use(again)
            else:
                kept = self._live_on(again)
                _lose_indexes(directory)
                self._open(directory, "c", frozenset([drained(state, kept)])).close()
            self._sound(directory, "after it was opened twice")
            names = [name for place in index_directories(directory) for name in os.listdir(place)]
            assert not [name for name in names if ".aside-" in name], "an index is moved away"
        return state

    def recovery(self, candidate: Candidate, *, has_index: bool = True) -> RecordingDisk:
        """Open the image and record this, so that a crash during the recovery can be explored like a life."""
        with self._directory(candidate, has_index) as directory:
            disk = RecordingDisk(directory)
            term = self.store_kind.begin(directory, self.brokers[self.opened % len(self.brokers)], self.settings, disk)
            term.close()
            return disk

    def _open(self, directory: str, broker: str, allowed: Iterable[State]) -> Term:
        term = self.store_kind.open(directory, broker, self.settings)
        try:
            state = seen(term)
            assert state in allowed, difference(state, allowed)
        except BaseException:
            term.crash()
            raise
        return term

    def _check_use(self, term: Term) -> None:
        """Check that a recovered store stores and removes messages, and stops normally."""
        try:
            added = term.add_durably(1)
            before = len(term.durable_operations)
            term.remove(added[0], term.store.queue(Q))
            term.wait_durable(before + 1)
        except BaseException:
            term.crash()
            raise
        term.close()

    def _live_on(self, term: Term) -> str:
        """Acknowledge all messages except those of one owner, while files are created and reclaimed. Return the owner;
        empty if there is none.

        No message of the others may come back, although a file of this owner may contain theirs.
        """
        owners = [*term.owners, None]
        kept = owners[self.opened // LIVES_ON_EVERY % len(owners)]
        try:
            for owner in term.owners:
                if owner is kept:
                    continue
                key = owner.subscription_name and f"{owner.client_id}:{owner.subscription_name}"
                before = len(term.durable_operations)
                messages = term.page(owner.id).messages
                for paged in messages:
                    term.remove(paged, owner.id, key)
                term.wait_durable(before + 1 + len(messages))
            queue = term.store.queue(FILLER)
            for _ in range(ROUNDS_OF_FILLER):
                added = term.add_durably(5, FILLER, b"x" * 400)
                before = len(term.durable_operations)
                for operation in added:
                    term.remove(operation, queue)
                term.wait_durable(before + 5)
        except BaseException:
            term.crash()
            raise
        term.close()
        return "" if kept is None else words_of(kept)

    def _sound(self, directory: str, when: str) -> None:
        report = check_all(directory, scratch=self.scratch)
        assert report.is_clean, f"{when}: {report.problems}"
        self.also(directory)

    @contextmanager
    def _directory(self, candidate: Candidate, has_index: bool) -> Iterator[str]:
        self.opened += 1
        directory = f"{self.scratch}/{self.opened}"
        os.mkdir(directory)
        try:
            candidate.image.put(directory)
            if not has_index:
                _lose_indexes(directory)
            self._sound(directory, "as the crash left it")
            for place in index_directories(directory):
                for data in glob.glob(f"{place}/*/db.data"):
                    with Index.open(os.path.dirname(data)) as index:
                        assert not index.needs_free_page_recovery, "after the crash all pages are read"
            yield directory
        except BaseException as error:
            error.add_note(f"after event {candidate.moment}, index {'there' if has_index else 'lost'}")
            error.add_note(candidate.image.story)
            raise
        finally:
            shutil.rmtree(directory)


def _lose_indexes(directory: str) -> None:
    for place in index_directories(directory):
        shutil.rmtree(place)


# ---- with all processors


def hold_all(judge: Judge, images: Sequence[tuple[Candidate, bool]]) -> None:
    """Open each candidate, with or without its index, in as many processes as there are processors.

    Raises AssertionError with the first problem. ``judge.opened``: number of opened images.
    """
    fork = multiprocessing.get_context("fork")  # so that the images are not copied
    count = min(len(os.sched_getaffinity(0)), len(images))
    failures = fork.SimpleQueue()

    def work(first: int) -> None:
        for number in range(first, len(images), count):
            candidate, has_index = images[number]
            judge.opened = opened + number
            try:
                judge.hold(candidate, has_index=has_index)
            except BaseException:
                failures.put(traceback.format_exc()[-FAILURE_CHARACTERS_MAX:])
                return

    opened = judge.opened
    workers = [fork.Process(target=work, args=(first,)) for first in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    judge.opened = opened + len(images)
    assert failures.empty(), failures.get()
    assert all(worker.exitcode == 0 for worker in workers), [worker.exitcode for worker in workers]


@contextmanager
def scratch_directory() -> Iterator[str]:
    """Yield a temporary directory, in a tmpfs if there is one, where syncs are free."""
    with tempfile.TemporaryDirectory(
        prefix="tandemmq-crash-", dir=TMPFS if os.access(TMPFS, os.W_OK) else None
    ) as directory:
        yield directory
