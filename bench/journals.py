"""Journals of any size, written as the store writes them, without a broker: the basis of the store's figures."""

from pathlib import Path

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.writer import JournalWriter
from tandemmq.store.records.commands import encode_add, encode_remove
from tandemmq.store.records.headers import Header, encode_header
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message

FILE_BYTES = 32 << 20
BATCH_RECORDS = 200
HOLDER = "bench"
QUEUE = Destination(DestinationKind.QUEUE, "bench.live")


def write_journal(directory: Path, messages: int, body_bytes: int, *, live_every: int = 1) -> int:
    """Store ``messages`` in one queue; all but each ``live_every``-th are removed a hundred later. Return the bytes.

    One epoch, with a header in each file; synced at the end only, since no client waits for a receipt.
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
    """Begin a new journal of files of ``file_bytes``, and write its first header."""
    directory.mkdir(parents=True, exist_ok=True)
    files = JournalFiles(str(directory))
    files.prepare(HOLDER, file_bytes)
    writer = JournalWriter(files, HOLDER, files.publish(HOLDER, 1), file_length_max=file_bytes)
    writer.append([encode_header(Header(1, HOLDER, "promotion", {}, (1,), length=file_bytes))])
    return writer


def write_batch(writer: JournalWriter, batch: list[bytes], file_bytes: int) -> int:
    """Write records, in the next file if this one is full. Return their bytes."""
    size = sum(map(len, batch)) + 5 * len(batch)
    if writer.is_full(size):
        file, end = writer.position
        known = tuple(range(1, file + 2))
        writer.rotate(encode_header(Header(1, HOLDER, "rotation", {file: end}, known, length=file_bytes)))
    writer.append(batch)
    return size
