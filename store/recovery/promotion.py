"""Promotion from standby to master: fence, read, header.

The lock decides which broker may try; the fence decides whose writes count. ``link(2)`` makes the next journal file
appear complete and with its final name, or fails. So exactly one broker begins an epoch, also if the lock, a clock or
the volume fails. After its fence, the new master reads the records of its predecessor, and its header states their end.
Later writes of the deposed master are after that end, and never count.

The three steps are separate calls, because with several stores (store.several) all journals are fenced before any is
read.
"""

# proofs: promotion

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tandemmq.journal.errors import Deposed, JournalError, JournalMissing
from tandemmq.journal.files import JournalFiles, OwnFile
from tandemmq.journal.writer import JournalWriter
from tandemmq.store.authority import SHARED_VOLUME, Authority, is_mended
from tandemmq.store.damage.report import JournalLost, encode_next, files_of
from tandemmq.store.records.commands import encode_commit, encode_rollback
from tandemmq.store.records.headers import Header, encode_header
from tandemmq.store.records.transactions import TransactionId, transaction_of_key
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.recovery.terms import describe_subscriptions
from tandemmq.store.state.tail import Position
from tandemmq.store.threads import OS_THREADS, Threads
from tandemmq.store.writer.journal_end import NoProof

# Initial length of the first file of an epoch. It is short, because clients wait while it is made, and because a
# promotion that fails repeatedly (a damaged journal) leaves a file each time.
FIRST_FILE_BYTES = 64 << 10
# Approximate size of a batch of further records that a promotion writes.
BATCH_BYTES = 4 << 20
# Maximum number of files that may disappear while they are read. A deposed master removes only a few.
REMOVED_MAX = 100
# Time limit for the repair of a damaged file from other brokers. No broker serves clients meanwhile.
MEND_SECONDS = 5.0

T = TypeVar("T")

# Returns the outcome of a prepared transaction: True: commit; False: roll back; None: leave it prepared.
Outcome = Callable[[TransactionId], bool | None]

# Called after each step of a promotion with the name of the step, and facts as keyword arguments.
OnStep = Callable[..., object]


def ignore_step(step: str, **facts: object) -> None:
    """Ignore the step."""


def _no_sign_of_life() -> None:
    """Do nothing. This is the default of ``alive``."""


def leave_prepared(transaction: TransactionId) -> bool | None:
    """Return None: the transaction stays prepared, until its transaction manager decides."""
    return None


@dataclass(frozen=True, slots=True)
class Promoted:
    """Result of a promotion: the journal's writer, its authority, and the new epoch, which is at least the number of
    its first file."""

    writer: JournalWriter
    authority: Authority
    epoch: int
    recovery_seconds: float
    records_replayed: int
    rolled_back: int

    def close(self) -> None:
        """Close the file without writing, and end the epoch of the authority."""
        self.writer.close()
        self.authority.end()


class Promotion:
    """Promotion of one journal. The caller, which holds the lock, calls ``fence``, ``read`` and ``begin`` in this
    order; they block.

    Each raises FenceTaken or Deposed if another broker was faster, OSError if the volume fails. After a failure the
    file of ``fence`` remains without a header; the next header states that it ends at 0. ``alive`` is called several
    times a second while a step waits for ``authority``.
    """

    def __init__(
        self,
        files: JournalFiles,
        *,
        broker: str,
        max_file_length: int,
        sync: str,
        authority: Authority = SHARED_VOLUME,
        alive: Callable[[], object] = _no_sign_of_life,
        threads: Threads = OS_THREADS,
    ) -> None:
        self._files = files
        self._authority = authority
        self._alive = alive
        self._broker = broker
        self._max_file_length = max_file_length
        self._sync = sync
        self._threads = threads
        self._clock = threads.monotonic
        self._last = 0
        self._first = 0
        self._own: OwnFile | None = None  # until ``begin`` gives it to the writer
        self._ends: dict[int, int] = {}
        self.records_read = 0
        self._seconds = 0.0

    def fence(self, has_proof: Callable[[], bool]) -> None:
        """Make the next journal file appear. From then on, no former master may send a receipt for its writes.

        ``has_proof`` is called directly before that. If it returns False, NoProof is raised: this promotion may have
        hung until another broker became master, and must not depose that broker. When the file exists, the lock does
        not matter any more.
        """
        started = self._clock()
        files = self._files
        # Prepared before the directory is listed. Otherwise the fence could get the number of a file that another
        # broker made and removed after the listing.
        self._prepare()  # prove: prepared-before-listing
        ids = files.list()
        self._last = ids[-1] if ids else 0
        self._first = first = self._authority.first_file(self._last)
        assert first > self._last, "an epoch begins after all existing files"
        if not has_proof():  # prove: no-proof-no-fence
            raise NoProof("the locker's last proof of ownership is too old to make a fence")
        self._own = files.publish(self._broker, first)  # prove: fence-before-second-listing
        highest = files.list()[-1]
        if highest > first:  # prove: fence-second-listing
            raise Deposed(first, f"db-{highest}.log exists")
        self._seconds += self._clock() - started

    def _prepare(self) -> None:
        """Make the file to be linked. This also changes the directory, so that a host that caches names (NFS) reads the
        directory again."""
        self._files.prepare(self._broker, min(self._max_file_length, FIRST_FILE_BYTES))

    def _check_fence(self) -> None:
        """Raise Deposed if a successor's file exists or this broker's own file is gone. This is the fence check of a
        writer."""
        self._authority.check_promotion()  # prove: promotion-asks-the-authority
        if self._files.exists(self._first + 1):
            raise Deposed(self._first, f"db-{self._first + 1}.log exists")  # prove: promotion-sees-successor
        assert self._own is not None, "the fence comes first"
        try:
            identity = self._files.identity_now(self._first)
        except FileNotFoundError as error:
            raise Deposed(self._first, "its name is gone") from error
        # If this broker's file was reclaimed, another broker may have linked its own file with the same number.
        if identity != self._own.identity:  # prove: promotion-sees-own-file-replaced
            raise Deposed(self._first, "another file has its name")

    def read(self, follower: Follower) -> None:
        """Read all records that were written before the fence. On return, ``follower.state`` includes all of them.

        If it raises IndexNotOfThisJournal, it may be called again with another follower. Raises JournalCorrupt or
        JournalLost if the journal is damaged.
        """
        started = self._clock()
        before = follower.replay.records
        self._ends = self.undisturbed(lambda: follower.advance(is_final=True))
        self.undisturbed(lambda: describe_subscriptions(follower.state, self._files))
        # A successor may have made its fence before this read: the header must not name the successor's files.
        earlier = {file: end for file, end in self._ends.items() if file < self._first}
        self._ends = earlier  # prove: ends-of-earlier-files
        # A batch that was written and never synced counts now, so it must become durable. It need not be in the last
        # file, because that may be the fence of a failed promotion.
        for file in self._ends:
            self._sync_file(file)  # prove: sync-of-each-ended-file
        self.records_read += follower.replay.records - before
        self._seconds += self._clock() - started

    def _sync_file(self, file: int) -> None:
        try:
            self._files.sync(file)
        except FileNotFoundError:
            self._check_fence()  # the deposed master may still remove files that it gave up; they are not needed

    def undisturbed(self, read: Callable[[], T]) -> T:
        """Call ``read``, which reads journal files, and return its result. Call it again if a file is removed
        meanwhile, or if a damaged file could be repaired.

        A file that is removed meanwhile is no damage: the master that this fence deposed may still remove files that it
        gave up. If a successor of this broker removes files, Deposed is raised.
        """
        removed = 0
        mended: set[int] = set()
        try:
            while True:
                try:
                    return read()
                except JournalMissing:
                    self._check_fence()  # prove: missing-while-reading-checks-fence
                    removed += 1
                    if removed > REMOVED_MAX:
                        raise
                    self._prepare()  # so that a host that caches names reads the directory again
                except (JournalError, JournalLost) as error:
                    self._check_fence()  # prove: damage-while-reading-checks-fence
                    if self._repair_files(files_of(error), mended):
                        continue
                    self._authority.damaged(files_of(error))  # prove: damage-is-left-to-others
                    raise
        finally:
            self._files.abandon(self._broker)

    def _repair_files(self, files: Sequence[int], before: set[int]) -> bool:
        """Repair these files from other brokers, and return whether that succeeded. Each file is repaired only once: if
        it still cannot be read, another copy does not help."""
        # prove: promotion-mends-a-file-once " if file not in before"
        new = [file for file in files if file not in before]
        before.update(new)
        return bool(new) and all(
            is_mended(self._authority, file, seconds=MEND_SECONDS, alive=self._alive, threads=self._threads)
            for file in new
        )

    def next_epoch(self, follower: Follower) -> int:
        """Return the lowest possible number of the new epoch. Valid after ``read``."""
        # Also above the epoch of the index, because the journal may have lost its last file. Message ids contain the
        # epoch, so it must be new.
        return max(
            self._first,  # prove: epoch-not-below-its-file "self._first" -> "0"
            follower.epoch_history.epoch + 1,  # prove: epoch-above-headers " + 1"
            follower.state.epoch + 1,  # prove: epoch-above-index " + 1"
        )

    def begin(
        self,
        follower: Follower,
        *,
        epoch: int | None = None,
        outcome_of: Outcome = leave_prepared,
        records: Iterable[Sequence[bytes]] = (),
        foreign_openwire: int = 0,
    ) -> Promoted:
        """Write the header, and commits or rollbacks of open transactions; durable, fence-checked and final on return.

        ``epoch`` must be at least ``next_epoch``, the default. ``outcome_of`` is called for each prepared transaction;
        others are rolled back. After the header follow the repairs of the follower, then ``records``, batch by batch.
        ``records`` and ``foreign_openwire``, a value of the header, are for the take-over of ActiveMQ's store.
        """
        started = self._clock()
        if epoch is None:
            epoch = self.next_epoch(follower)
        assert epoch >= self.next_epoch(follower), "epochs grow"
        authority = self._authority
        set_header = authority.set_header()
        assert set_header is None or epoch == self._first, "an epoch of a set has the number of its first file"
        # If this process was suspended after its fence, it may be deposed by now, and must not write.
        self._check_fence()  # prove: fence-check-before-header
        assert self._own is not None, "the fence comes first"
        own, self._own = self._own, None
        writer = JournalWriter(
            self._files,
            self._broker,
            own,
            file_length_max=self._max_file_length,
            on_written=authority.wrote,
        )
        try:
            state = follower.state
            # Files that were given up are not named, because other nodes may have removed them already.
            # prove: authority-begins-before-header order header-before-epoch
            authority.begin(self._first, lambda: tuple(sorted({*state.named_files(), writer.file})))
            # These are the files of the state, not those of the directory. A deposed broker may have linked a file
            # meanwhile that does not belong to this journal; a header that names it would make it look needed.
            files = (*sorted(file for file in state.named_files() if file < self._first), self._first)
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
                set=set_header,
            )
            self._write(writer, follower, [encode_header(header)])  # prove: header-before-epoch
            follower.state.epoch = epoch
            follower.read_headers()
            for batch in _batches(follower.repairs):
                self._write_more(writer, follower, epoch, batch)
                follower.pin_for_repairs(writer.file)
            for records_of_one in records:
                self._write_more(writer, follower, epoch, records_of_one)
            commits, rollbacks = _outcomes(follower, outcome_of)
            if commits or rollbacks:
                self._write(writer, follower, [*commits, *rollbacks])
            follower.read_headers()
        except BaseException:
            writer.close()
            authority.end()
            raise
        self._seconds += self._clock() - started
        return Promoted(writer, authority, epoch, self._seconds, self.records_read, len(rollbacks))

    def close(self) -> None:
        """Close the file of ``fence`` without writing, unless a writer owns it."""
        own, self._own = self._own, None
        if own is not None:
            try:
                self._files.disk.close(own.fd)
            except OSError:
                pass  # nothing was written through this descriptor

    def _write_more(self, writer: JournalWriter, follower: Follower, epoch: int, batch: Sequence[bytes]) -> None:
        """Write a batch. If needed, rotate to a new file before it, and write a checkpoint after it."""
        if writer.is_full(sum(map(len, batch))):
            self._rotate(writer, follower, epoch)
        self._write(writer, follower, batch)
        if follower.state.tail.operations >= follower.records_per_checkpoint:
            follower.checkpoint()

    def _write(self, writer: JournalWriter, follower: Follower, payloads: Sequence[bytes]) -> None:
        """Write a batch and apply it to the state. It is durable, fence-checked and final on return."""
        start = writer.offset
        locations = writer.append(payloads)
        writer.sync()  # prove: promotion-sync-before-fence-check order promotion-checks-fence
        file, end = writer.position
        self._authority.synced(file, end)
        writer.check_fence()  # prove: promotion-checks-fence
        self._authority.settle(file, end, must_be_final=True, alive=self._alive)  # prove: promotion-is-final
        for location, payload in zip(locations, payloads, strict=True):
            follower.replay.apply(location, payload)
        follower.state.position = Position(file, end, start, writer.checksum)

    def _rotate(self, writer: JournalWriter, follower: Follower, epoch: int) -> None:
        authority = self._authority
        file, end = writer.position
        header = Header(
            epoch,
            self._broker,
            "rotation",
            {file: end},  # prove: promotions-rotation-names-the-end "file: end"
            (*sorted(follower.state.named_files() | {file}), file + 1),
            sync=self._sync,
            length=self._max_file_length,
            set=authority.set_header(),
        )
        authority.sealed(file, end)
        # prove: promotions-end-marker-where-it-may-be " if authority.leaves_end_markers else None"
        writer.rotate(encode_header(header), encode_next(file + 1) if authority.leaves_end_markers else None)
        writer.sync()
        authority.synced(*writer.position)
        follower.state.know_file(file + 1)
        follower.read_headers()


def _outcomes(follower: Follower, outcome_of: Outcome) -> tuple[list[bytes], list[bytes]]:
    """Return (payloads of commits, payloads of rollbacks) for the transactions that former epochs left open.

    As in ActiveMQ, a transaction that was not prepared is rolled back.
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
