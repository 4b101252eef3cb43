"""A journal as a busy broker writes it: messages of 1 KiB, their removes, transactions, audits; no broker needed."""

import random
from pathlib import Path

from tandemmq.bench.journals import FILE_BYTES, begin_journal, write_batch
from tandemmq.store.records.commands import encode_add, encode_commit, encode_producer_audit, encode_remove
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId

SEED = 1
BODY_BYTES = 1024
BATCH_RECORDS = 50
DESTINATIONS = 24
PRODUCERS = 16
TRANSACTED = 0.1  # share of the messages, each in its own transaction
LEFT = 0.02  # share of the messages, which no consumer takes
PREFETCH = 100  # messages stored before the first of them is removed
AUDIT_EACH = 20_000  # records
AUDIT_BYTES = 64 << 10
START_MS = 1_700_000_000_000


def write_mixed_journal(directory: Path, bytes_min: int, file_bytes: int = FILE_BYTES) -> None:
    """Write files of ``file_bytes`` with ``bytes_min`` bytes of records; equal arguments give equal bytes.

    As the store writes them: one epoch, a header in each file. Synced at the end only: no client waits for a receipt.
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
        if records // AUDIT_EACH != (records + len(batch)) // AUDIT_EACH and len(batch) >= BATCH_RECORDS:
            batch.append(encode_producer_audit(b"\xac\xed".ljust(AUDIT_BYTES, b"a")))
        if len(batch) >= BATCH_RECORDS:
            records += len(batch)
            written += write_batch(writer, batch, file_bytes)
            batch = []
    writer.sync()
    writer.close()
