"""From standby to master: fence, read, header (safety.md 2).

The lock says who may try; the fence says whose writes count. ``link(2)`` makes the next journal file appear, whole
and under its final name, or fails: so exactly one broker begins an epoch, whatever the lock, the clock or the volume
does. Only behind its own fence a successor reads what its predecessor wrote, and its header names where that ends.
What a deposed master writes later stands behind that end, and is ignored for ever.

Of several stores (store.several) all journals are fenced before any is read: the three steps are three calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from journal.errors import Deposed, JournalError, JournalMissing
from journal.files import JournalFiles
from journal.writer import JournalWriter
from store.damage import JournalLost, encode_next
from store.follow import Follower
from store.headers import Header, encode_header
from store.journal_end import NoProof
from store.records.commands import encode_commit, encode_rollback
from store.records.transactions import TransactionId, transaction_of_key
from store.tail import Position
from store.terms import describe_subscriptions
from store.threads import OS_THREADS, Threads

# A promotion's file begins short and grows as it is written: clients wait while it is made, and one that comes to
# nothing (a damaged journal, tried again and again) leaves little behind.
FIRST_FILE_BYTES = 64 << 10
# What a promotion has to say beside its header is written in batches of about this size.
BATCH_BYTES = 4 << 20
# So many times a file may go while it is read; a deposed master removes a few at most.
REMOVED_MAX = 100

T = TypeVar("T")

# What becomes of a prepared transaction: True commit, False roll back, None leave it to who prepared it.
Outcome = Callable[[TransactionId], bool | None]

# Hears of the steps of a promotion as they are done: what was done, and facts of it by name.
Told = Callable[..., object]


def untold(step: str, **facts: object) -> None:
    """Nobody wants to know."""


def left_to_others(transaction: TransactionId) -> bool | None:
    """The outcome of a prepared transaction is not ours to say."""
    return None


@dataclass(frozen=True, slots=True)
class Promoted:
    """A journal that is ours to write. ``epoch`` is at least the id of its first file, which nobody else was given."""

    writer: JournalWriter
    epoch: int
    recovery_seconds: float
    records_replayed: int
    rolled_back: int


class Promotion:
    """The way of one journal into a new epoch: ``fence``, ``read``, ``begin``, in this order; blocking.

    Needs the lock. Each raises FenceTaken or Deposed when another broker got there first (try again for the lock),
    OSError as the volume gives it. What fails after ``fence`` leaves a file without header behind: its end is 0 in the
    next header, and it stays a fence.
    """

    def __init__(
        self, files: JournalFiles, *, broker: str, max_file_length: int, sync: str, threads: Threads = OS_THREADS
    ) -> None:
        self._files = files
        self._broker = broker
        self._max_file_length = max_file_length
        self._sync = sync
        self._clock = threads.monotonic
        self._last = 0
        self._first = 0
        self._ends: dict[int, int] = {}
        self.records_read = 0
        self._seconds = 0.0

    def fence(self, has_proof: Callable[[], bool]) -> None:
        """Make the next journal file appear: from here on nothing that others write can be promised by them.

        ``has_proof`` is asked at the last moment: is the lock still known to be ours? Raises NoProof if not, for a
        promotion that hung until somebody else became master would depose the rightful one. When the file is there
        it does not matter any more who has the lock.
        """
        started = self._clock()
        files = self._files
        # First, for a fence by an old list could stand in the place of a file that came and went since.
        self._prepare()  # prove: prepared-before-listing
        ids = files.list()
        self._last = ids[-1] if ids else 0
        self._first = first = self._last + 1
        if not has_proof():  # prove: no-proof-no-fence
            raise NoProof("the locker's last proof of ownership is too old to put up a fence")
        files.publish(self._broker, first)  # prove: fence-before-second-listing
        highest = files.list()[-1]
        if highest > first:  # prove: fence-second-listing
            raise Deposed(first, f"db-{highest}.log exists")
        self._seconds += self._clock() - started

    def _prepare(self) -> None:
        """Make the file that is to be linked. A host that remembers names (NFS) lists the directory anew after this,
        because it changed it."""
        self._files.prepare(self._broker, min(self._max_file_length, FIRST_FILE_BYTES))

    def _look(self) -> None:
        """As a writer looks: is there a successor, or is our own file gone? Raises Deposed."""
        if self._files.exists(self._first + 1):
            raise Deposed(self._first, f"db-{self._first + 1}.log exists")  # prove: promotion-sees-successor
        if not self._files.exists(self._first):
            raise Deposed(self._first, "its name is gone")  # prove: promotion-sees-own-file-gone

    def read(self, follower: Follower) -> None:
        """Read what was written before the fence, to the end: afterwards ``follower.state`` is exact.

        May be called again with another follower when the first was no use (IndexNotOfThisJournal). Raises
        JournalCorrupt or JournalLost when the journal is damaged.
        """
        started = self._clock()
        before = follower.replay.records
        self._ends = self.undisturbed(lambda: follower.advance(is_final=True))
        describe_subscriptions(follower.state, self._files)
        # A successor may have put up its fence before we came to read: what it has is none of our header's business.
        earlier = {file: end for file, end in self._ends.items() if file < self._first}
        self._ends = earlier  # prove: ends-of-earlier-files
        # A batch that was written and never synced counts now, and must survive; it need not stand in the last file,
        # for that may be the fence of a promotion that came to nothing.
        for file in self._ends:
            self._sync_file(file)  # prove: sync-of-each-ended-file
        self.records_read += follower.replay.records - before
        self._seconds += self._clock() - started

    def _sync_file(self, file: int) -> None:
        try:
            self._files.sync(file)
        except FileNotFoundError:
            self._look()  # whom our fence deposed still removes what it gave up before: nobody needs that

    def undisturbed(self, read: Callable[[], T]) -> T:
        """What ``read`` returns, which reads journal files. What others remove meanwhile is no damage: a successor of
        ours (Deposed is raised), or one whom our fence deposed and who still removes what it gave up before."""
        removed = 0
        try:
            while True:
                try:
                    return read()
                except JournalMissing:
                    self._look()  # prove: missing-while-reading-looks
                    removed += 1
                    if removed > REMOVED_MAX:
                        raise
                    self._prepare()  # so that the directory is listed anew
                except (JournalError, JournalLost):
                    self._look()  # prove: damage-while-reading-looks
                    raise
        finally:
            self._files.abandon(self._broker)

    def next_epoch(self, follower: Follower) -> int:
        """The least that the new epoch can be; to be asked after ``read``."""
        # Also beyond an index whose journal lost its last file: ids of messages contain the epoch.
        return max(
            self._first,  # prove: epoch-not-below-its-file "self._first" -> "0"
            follower.chronicle.epoch + 1,  # prove: epoch-above-headers " + 1"
            follower.state.epoch + 1,  # prove: epoch-above-index " + 1"
        )

    def begin(
        self,
        follower: Follower,
        *,
        epoch: int | None = None,
        outcome_of: Outcome = left_to_others,
        records: Iterable[Sequence[bytes]] = (),
        foreign_openwire: int = 0,
    ) -> Promoted:
        """Write the header, and the end of each transaction that nobody else can end. Durable and looked at on return.

        ``epoch`` is not below ``next_epoch``, which it is by default. ``outcome_of`` is asked for each prepared
        transaction. What the follower has to say of damage comes right after the header. ``records``, batch by batch,
        come next, and ``foreign_openwire`` stands in the header: what the take-over of another broker's store has to
        say, which may be many files.
        """
        started = self._clock()
        if epoch is None:
            epoch = self.next_epoch(follower)
        assert epoch >= self.next_epoch(follower), "epochs grow"
        # Who slept since the fence writes nothing, and may not find its file.
        self._look()  # prove: look-before-header
        writer = JournalWriter(self._files, self._broker, self._first, file_length_max=self._max_file_length)
        try:
            files = tuple(file for file in self._files.list() if file <= self._first)
            length = min(self._max_file_length, FIRST_FILE_BYTES)
            header = Header(
                epoch,
                self._broker,
                "promotion",
                self._ends,  # prove: promotion-names-the-ends "self._ends" -> "{}"
                files,
                sync=self._sync,
                length=length,
                foreign_openwire=foreign_openwire,
            )
            _write(writer, follower, [encode_header(header)])  # prove: header-before-epoch
            follower.state.epoch = epoch
            follower.read_headers()
            for batch in _batches(follower.repairs):
                self._write_more(writer, follower, epoch, batch)
                follower.pin_for_repairs(writer.file)
            for records_of_one in records:
                self._write_more(writer, follower, epoch, records_of_one)
            commits, rollbacks = _outcomes(follower, outcome_of)
            if commits or rollbacks:
                _write(writer, follower, [*commits, *rollbacks])
            follower.read_headers()
        except BaseException:
            writer.close()
            raise
        self._seconds += self._clock() - started
        return Promoted(writer, epoch, self._seconds, self.records_read, len(rollbacks))

    def _write_more(self, writer: JournalWriter, follower: Follower, epoch: int, batch: Sequence[bytes]) -> None:
        """A batch that may need a file more, and that a checkpoint may have to make room for."""
        if writer.is_full(sum(map(len, batch))):
            self._rotate(writer, follower, epoch)
        _write(writer, follower, batch)
        if follower.state.tail.operations >= follower.records_per_checkpoint:
            follower.checkpoint()

    def _rotate(self, writer: JournalWriter, follower: Follower, epoch: int) -> None:
        file, end = writer.position
        header = Header(
            epoch,
            self._broker,
            "rotation",
            {file: end},  # prove: promotions-rotation-names-the-end "file: end"
            (*sorted(follower.state.files.keys() | {file}), file + 1),
            sync=self._sync,
            length=self._max_file_length,
        )
        writer.rotate(encode_header(header), encode_next(file + 1))
        writer.sync()
        follower.state.know_file(file + 1)
        follower.read_headers()


def _outcomes(follower: Follower, outcome_of: Outcome) -> tuple[list[bytes], list[bytes]]:
    """Commits and rollbacks of what former epochs left open: said in words, as ActiveMQ does.

    A transaction that was not prepared cannot be committed by anybody any more.
    """
    commits: list[bytes] = []
    rollbacks: list[bytes] = []
    for key, transaction in follower.state.transactions.items():
        identity = transaction_of_key(key)
        outcome = outcome_of(identity) if transaction.is_prepared else False  # prove: unprepared-ends "False" -> "None"
        if outcome is not None:
            (commits if outcome else rollbacks).append((encode_commit if outcome else encode_rollback)(identity))
    return commits, rollbacks


def _batches(payloads: Sequence[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for payload in payloads:
        if batch and size + len(payload) > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(payload)
        size += len(payload)
    if batch:
        yield batch


def _write(writer: JournalWriter, follower: Follower, payloads: Sequence[bytes]) -> None:
    file, start = writer.position
    locations = writer.append(payloads)
    writer.sync()  # prove: promotions-sync-before-look order promotions-look
    writer.look()  # prove: promotions-look
    for location, payload in zip(locations, payloads, strict=True):
        follower.replay.apply(location, payload)
    file, end = writer.position
    follower.state.position = Position(file, end, start, writer.checksum)
