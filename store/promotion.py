"""From standby to master: fence, read, header (safety.md 2).

The lock says who may try; the fence says whose writes count. ``link(2)`` makes the next journal file appear, whole
and under its final name, or fails: so exactly one broker begins an epoch, whatever the lock, the clock or the volume
does. Only behind its own fence a successor reads what its predecessor wrote, and its header names where that ends.
What a deposed master writes later stands behind that end, and is ignored for ever.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from journal.errors import Deposed
from journal.files import JournalFiles
from journal.writer import JournalWriter
from store.follow import Follower
from store.headers import Header, encode_header
from store.records.commands import LocalTransactionId, encode_rollback, transaction_of_key
from store.tail import Position

# A promotion's file begins short and grows as it is written: clients wait while it is made, and one that comes to
# nothing (a damaged journal, tried again and again) leaves little behind.
FIRST_FILE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Promoted:
    """A journal that is ours to write. ``epoch`` is the id of its first file: link(2) gave it to nobody else."""

    writer: JournalWriter
    epoch: int
    recovery_seconds: float
    records_replayed: int
    rolled_back: int


def promote(
    files: JournalFiles,
    follower: Follower,
    *,
    broker: str,
    max_file_length: int,
    sync: str,
) -> Promoted:
    """Begin a new epoch; blocking. On return the header is durable and looked at, and ``follower.state`` is exact.

    Needs the lock. Raises FenceTaken or Deposed when another broker got there first (try again for the lock),
    JournalCorrupt or JournalLost when the journal is damaged, OSError as the volume gives it.
    """
    started = time.monotonic()
    records_before = follower.replay.records
    ids = files.list()
    last = ids[-1] if ids else 0
    first = last + 1
    files.prepare(broker, min(max_file_length, FIRST_FILE_BYTES))
    files.publish(broker, first)  # the fence
    highest = files.list()[-1]
    if highest > first:
        raise Deposed(first, f"db-{highest}.log exists")

    ends = follower.advance(is_final=True)
    ends.pop(first, None)
    if last:
        files.sync(last)  # a batch that was written and never synced counts now, and must survive
    epoch = max(first, follower.chronicle.epoch + 1)
    writer = JournalWriter(files, broker, first, file_length_max=max_file_length)
    header = Header(epoch, broker, "promotion", ends, tuple(files.list()), sync=sync)
    _write(writer, follower, [encode_header(header)])
    follower.state.epoch = epoch
    rollbacks = _rollbacks(follower)
    if rollbacks:
        _write(writer, follower, rollbacks)
    follower.read_headers()
    return Promoted(
        writer,
        epoch,
        time.monotonic() - started,
        follower.replay.records - records_before,
        len(rollbacks),
    )


def _rollbacks(follower: Follower) -> list[bytes]:
    """Local transactions of former epochs that nobody can commit any more: said in words, as ActiveMQ does."""
    payloads = []
    for key, transaction in follower.state.transactions.items():
        identity = transaction_of_key(key)
        if isinstance(identity, LocalTransactionId) and not transaction.is_prepared:
            payloads.append(encode_rollback(identity))
    return payloads


def _write(writer: JournalWriter, follower: Follower, payloads: list[bytes]) -> None:
    file, start = writer.position
    locations = writer.append(payloads)
    writer.sync()
    writer.look()
    for location, payload in zip(locations, payloads, strict=True):
        follower.replay.apply(location, payload)
    file, end = writer.position
    follower.state.position = Position(file, end, start, writer.checksum)
