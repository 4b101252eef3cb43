"""From standby to master: fence, read, header (safety.md 2).

The lock decides which broker may try; the fence decides whose writes count. ``link(2)`` makes the next journal file
appear, whole and under its final name, or fails: so exactly one broker begins an epoch, whatever the lock, the clock or
the volume does. Only after its own fence a successor reads its predecessor's records, and its header names their end.
Later writes of a deposed master are after that end, and are ignored forever.

With several stores (store.several) all journals are fenced before any is read: the three steps are three calls.
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

# A promotion's file begins short and grows as it is written: clients wait while it is made, and a promotion that fails
# (a damaged journal, tried again and again) leaves little behind.
FIRST_FILE_BYTES = 64 << 10
# Records that a promotion writes beside its header are written in batches of about this size.
BATCH_BYTES = 4 << 20
# Limit of files that disappear while they are read; a deposed master removes a few at most.
REMOVED_MAX = 100
# Time limit for getting a damaged file from other brokers; no broker serves clients meanwhile.
MEND_SECONDS = 5.0

T = TypeVar("T")

# Outcome of a prepared transaction: True commit, False roll back, None leave it to its transaction manager.
Outcome = Callable[[TransactionId], bool | None]

# Called after each step of a promotion with the step, and facts of it by name.
OnStep = Callable[..., object]


def ignore_step(step: str, **facts: object) -> None:
    """Ignore the step."""


def _show_nobody() -> None:
    """Do nothing: no caller needs signs of life."""


def left_to_others(transaction: TransactionId) -> bool | None:
    """Leave the outcome of a prepared transaction to its transaction manager."""
    return None


@dataclass(frozen=True, slots=True)
class Promoted:
    """A journal that is ours to write. ``epoch`` is at least the id of its first file, which no other broker got.
    ``authority`` is notified by the writer of each write, and settles it."""

    writer: JournalWriter
    authority: Authority
    epoch: int
    recovery_seconds: float
    records_replayed: int
    rolled_back: int

    def close(self) -> None:
        """Close the file as it is; notify the authority that nothing is written any more."""
        self.writer.close()
        self.authority.end()


class Promotion:
    """The steps of one journal into a new epoch: ``fence``, ``read``, ``begin``, in this order; blocking.

    Needs the lock. Each raises FenceTaken or Deposed when another broker was faster (try again for the lock),
    the OSError of the volume. A failure after ``fence`` leaves a file without header behind: its end is 0 in the
    next header, and it stays a fence. ``alive`` is called now and then while ``begin`` waits for ``authority``.
    """

    def __init__(
        self,
        files: JournalFiles,
        *,
        broker: str,
        max_file_length: int,
        sync: str,
        authority: Authority = SHARED_VOLUME,
        alive: Callable[[], object] = _show_nobody,
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
        """Make the next journal file appear: from here on no other broker may send a receipt for its writes.

        ``has_proof`` is called at the last moment: is the lock still known to be ours? Raises NoProof if not, because a
        promotion that hung until another broker became master would depose the rightful one. Once the file is there the
        lock no longer matters.
        """
        started = self._clock()
        files = self._files
        # First, because a fence by an old list could take the place of a file that was made and removed since.
        self._prepare()  # prove: prepared-before-listing
        ids = files.list()
        self._last = ids[-1] if ids else 0
        self._first = first = self._authority.first_file(self._last)
        assert first > self._last, "an epoch begins behind all that is there"
        if not has_proof():  # prove: no-proof-no-fence
            raise NoProof("the locker's last proof of ownership is too old to put up a fence")
        self._own = files.publish(self._broker, first)  # prove: fence-before-second-listing
        highest = files.list()[-1]
        if highest > first:  # prove: fence-second-listing
            raise Deposed(first, f"db-{highest}.log exists")
        self._seconds += self._clock() - started

    def _prepare(self) -> None:
        """Make the file that is to be linked. A host that caches names (NFS) lists the directory anew after this,
        because it changed the directory."""
        self._files.prepare(self._broker, min(self._max_file_length, FIRST_FILE_BYTES))

    def _check_fence(self) -> None:
        """Do the fence check of a writer: raise Deposed if there is a successor, or if our own file is gone."""
        self._authority.check_promotion()  # prove: promotion-asks-the-authority
        if self._files.exists(self._first + 1):
            raise Deposed(self._first, f"db-{self._first + 1}.log exists")  # prove: promotion-sees-successor
        assert self._own is not None, "the fence comes first"
        try:
            identity = self._files.identity_now(self._first)
        except FileNotFoundError as error:
            raise Deposed(self._first, "its name is gone") from error
        # The number of a file that was reclaimed can be free again, and a late broker may link its own.
        if identity != self._own.identity:  # prove: promotion-sees-own-file-replaced
            raise Deposed(self._first, "another file has its name")

    def read(self, follower: Follower) -> None:
        """Read all records that were written before the fence: afterwards ``follower.state`` is exact.

        May be called again with another follower when the first failed (IndexNotOfThisJournal). Raises
        JournalCorrupt or JournalLost when the journal is damaged.
        """
        started = self._clock()
        before = follower.replay.records
        self._ends = self.undisturbed(lambda: follower.advance(is_final=True))
        self.undisturbed(lambda: describe_subscriptions(follower.state, self._files))
        # A successor may have put up its fence before this read: our header must not name its files.
        earlier = {file: end for file, end in self._ends.items() if file < self._first}
        self._ends = earlier  # prove: ends-of-earlier-files
        # A batch that was written and never synced counts now, and must survive; it need not be in the last file,
        # because that may be the fence of a failed promotion.
        for file in self._ends:
            self._sync_file(file)  # prove: sync-of-each-ended-file
        self.records_read += follower.replay.records - before
        self._seconds += self._clock() - started

    def _sync_file(self, file: int) -> None:
        try:
            self._files.sync(file)
        except FileNotFoundError:
            self._check_fence()  # the deposed master still removes files that it gave up; they are not needed

    def undisturbed(self, read: Callable[[], T]) -> T:
        """Call ``read``, which reads journal files, and return its result. Files that others remove meanwhile are no
        damage: a successor of ours (raises Deposed), or a master that our fence deposed and that still removes what it
        gave up."""
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
                    self._prepare()  # so that the directory is listed anew
                except (JournalError, JournalLost) as error:
                    self._check_fence()  # prove: damage-while-reading-checks-fence
                    if self._mends(files_of(error), mended):
                        continue
                    self._authority.damaged(files_of(error))  # prove: damage-is-left-to-others
                    raise
        finally:
            self._files.abandon(self._broker)

    def _mends(self, files: Sequence[int], before: set[int]) -> bool:
        """Return whether all of these files verify now, with the copies of others. A file is mended once: if it
        verifies and still cannot be read, another copy is no better."""
        # prove: promotion-mends-a-file-once " if file not in before"
        new = [file for file in files if file not in before]
        before.update(new)
        return bool(new) and all(
            is_mended(self._authority, file, seconds=MEND_SECONDS, alive=self._alive, threads=self._threads)
            for file in new
        )

    def next_epoch(self, follower: Follower) -> int:
        """Return the lowest possible new epoch; to be called after ``read``."""
        # Above the index too, whose journal may have lost its last file: ids of messages contain the epoch.
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
        outcome_of: Outcome = left_to_others,
        records: Iterable[Sequence[bytes]] = (),
        foreign_openwire: int = 0,
    ) -> Promoted:
        """Write the header, and the end of each transaction that only this broker can end. Durable and fence-checked on
        return.

        ``epoch`` is not below ``next_epoch``, the default. ``outcome_of`` is called for each prepared transaction. The
        follower's records about damage come right after the header. ``records``, batch by batch, come next, and
        ``foreign_openwire`` stands in the header: these are for the take-over of another broker's store, which may be
        many files.
        """
        started = self._clock()
        if epoch is None:
            epoch = self.next_epoch(follower)
        assert epoch >= self.next_epoch(follower), "epochs grow"
        authority = self._authority
        said = authority.set_header()
        assert said is None or epoch == self._first, "an epoch of a set has the number of its first file"
        # A broker that slept since the fence writes nothing, and may not find its file.
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
            # A file that was given up may be here still, and gone elsewhere: no broker needs to get it again.
            # prove: authority-begins-before-header order header-before-epoch
            authority.begin(self._first, lambda: tuple(sorted({*state.named_files(), writer.file})))
            # Not what the directory lists: a late broker may have linked a file since. It is no file of this journal,
            # and a broker that knows the earlier file of that name would miss it.
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
                set=said,
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
        """Close the file that ``fence`` made, as it is, unless ``begin`` gave it to a writer."""
        own, self._own = self._own, None
        if own is not None:
            try:
                self._files.disk.close(own.fd)
            except OSError:
                pass  # nothing was written by it

    def _write_more(self, writer: JournalWriter, follower: Follower, epoch: int, batch: Sequence[bytes]) -> None:
        """Write a batch; rotate to a new file first, or write a checkpoint after it, if one is needed."""
        if writer.is_full(sum(map(len, batch))):
            self._rotate(writer, follower, epoch)
        self._write(writer, follower, batch)
        if follower.state.tail.operations >= follower.records_per_checkpoint:
            follower.checkpoint()

    def _write(self, writer: JournalWriter, follower: Follower, payloads: Sequence[bytes]) -> None:
        """Write a batch. It is final on return: a checkpoint may cover it, and clients may be notified of it."""
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
    """Return commits and rollbacks of the transactions that former epochs left open, as records, as ActiveMQ does.

    A transaction that was not prepared can no longer be committed.
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
