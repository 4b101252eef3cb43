"""Journals of any size for benchmarks of the store and the pipeline, written in the store's format without a broker. A
mixed journal is similar to that of a busy broker: messages of 1 KiB, their removes, transactions, audits."""

import random
from pathlib import Path

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.writer import JournalWriter
from tandemmq.store.records.commands import encode_add, encode_commit, encode_producer_audit, encode_remove
from tandemmq.store.records.headers import Header, encode_header
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId

FILE_BYTES = 32 << 20
BATCH_RECORDS = 200
HOLDER = "bench"
QUEUE = Destination(DestinationKind.QUEUE, "bench.live")


def write_journal(directory: Path, messages: int, body_bytes: int, *, live_every: int = 1) -> int:
    """Store ``messages`` in one queue. All except each ``live_every``-th are removed a hundred messages later. Return
    the bytes.

    The journal has one epoch, and a header in each file. It is synced only at the end.
    """
    writer = begin_journal(directory, FILE_BYTES)
    body = b"x" * body_bytes
    batch: list[bytes] = []
    for number in range(1, messages + 1):
        message = Message(
            QUEUE, f"ID:bench-1:1:1:{number}", body, BodyKind.TEXT, persistent=True, timestamp=1_700_000_000_000
        )
        batch.append(encode_add(message, encode_message(message)))
        old = number - 100
        if old > 0 and old % live_every:
            batch.append(encode_remove(QUEUE, f"ID:bench-1:1:1:{old}"))
        if len(batch) >= BATCH_RECORDS:
            write_batch(writer, batch, FILE_BYTES)
            batch = []
    if batch:
        write_batch(writer, batch, FILE_BYTES)
    writer.sync()
    writer.close()
    files = JournalFiles(str(directory))
    return sum(files.size(file) for file in files.list())


def begin_journal(directory: Path, file_bytes: int) -> JournalWriter:
    """Begin a new journal with files of ``file_bytes``, and write its first header."""
    directory.mkdir(parents=True, exist_ok=True)
    files = JournalFiles(str(directory))
    files.prepare(HOLDER, file_bytes)
    writer = JournalWriter(files, HOLDER, files.publish(HOLDER, 1), file_length_max=file_bytes)
    writer.append([encode_header(Header(1, HOLDER, "promotion", {}, (1,), length=file_bytes))])
    return writer


def write_batch(writer: JournalWriter, batch: list[bytes], file_bytes: int) -> int:
    """Write records, in the next file if the present one is full. Return their bytes."""
    size = sum(map(len, batch)) + 5 * len(batch)
    if writer.is_full(size):
        file, end = writer.position
        known = tuple(range(1, file + 2))
        writer.rotate(encode_header(Header(1, HOLDER, "rotation", {file: end}, known, length=file_bytes)))
    writer.append(batch)
    return size


# ---- a mixed journal

SEED = 1
BODY_BYTES = 1024
MIXED_BATCH_RECORDS = 50
DESTINATIONS = 24
PRODUCERS = 16
TRANSACTED = 0.1  # share of the messages, each in its own transaction
LEFT = 0.02  # share of the messages that are not removed
PREFETCH = 100  # messages stored before the first of them is removed
AUDIT_EACH = 20_000  # records
AUDIT_BYTES = 64 << 10
START_MS = 1_700_000_000_000


def write_mixed_journal(directory: Path, bytes_min: int, file_bytes: int = FILE_BYTES) -> None:
    """Write files of ``file_bytes`` with at least ``bytes_min`` bytes of records. Equal arguments give equal bytes.

    The journal has one epoch, and a header in each file. It is synced only at the end.
    """
    chance = random.Random(SEED)
    writer = begin_journal(directory, file_bytes)
    queues = [Destination(DestinationKind.QUEUE, f"bench.queue.{number}") for number in range(DESTINATIONS)]
    body = b"x" * BODY_BYTES
    stored: list[tuple[Destination, str]] = []
    batch: list[bytes] = []
    written = records = number = 0
    while written < bytes_min:
        number += 1
        queue = queues[min(int(chance.paretovariate(1.0)) - 1, DESTINATIONS - 1)]
        message = Message(
            queue,
            f"ID:bench-{number % PRODUCERS}:1:1:{number}",
            body,
            BodyKind.TEXT,
            persistent=True,
            timestamp=START_MS + number,
        )
        transaction = LocalTransactionId("ID:bench-1", number) if chance.random() < TRANSACTED else None
        batch.append(encode_add(message, encode_message(message), transaction))
        if transaction is not None:
            batch.append(encode_commit(transaction))
        if chance.random() >= LEFT:
            stored.append((queue, message.message_id))
        if len(stored) > PREFETCH:
            batch.append(encode_remove(*stored.pop(0)))
        if records // AUDIT_EACH != (records + len(batch)) // AUDIT_EACH and len(batch) >= MIXED_BATCH_RECORDS:
            batch.append(encode_producer_audit(b"\xac\xed".ljust(AUDIT_BYTES, b"a")))
        if len(batch) >= MIXED_BATCH_RECORDS:
            records += len(batch)
            written += write_batch(writer, batch, file_bytes)
            batch = []
    writer.sync()
    writer.close()
