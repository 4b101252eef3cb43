"""Journals of any size, written as the store writes them, without a broker: what the store's figures are taken on."""

from pathlib import Path

from journal.files import JournalFiles
from journal.writer import JournalWriter
from store.headers import Header, encode_header
from store.records.commands import encode_add, encode_remove
from store.records.message import BodyKind, Destination, DestinationKind, Message
from store.records.openwire import encode_message

FILE_BYTES = 32 << 20
BATCH_RECORDS = 200
HOLDER = "bench"
QUEUE = Destination(DestinationKind.QUEUE, "bench.live")


def write_journal(directory: Path, messages: int, body_bytes: int, *, live_every: int = 1) -> int:
    """Store ``messages`` in one queue; all but each ``live_every``-th are removed a hundred later. Returns the bytes.

    One epoch, with a header in each file, synced at the end only: nobody waits for a receipt.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = JournalFiles(str(directory))
    files.prepare(HOLDER, FILE_BYTES)
    files.publish(HOLDER, 1)
    writer = JournalWriter(files, HOLDER, 1, file_length_max=FILE_BYTES)
    writer.append([encode_header(Header(1, HOLDER, "promotion", {}, (1,), length=FILE_BYTES))])
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
            _write(writer, batch)
            batch = []
    if batch:
        _write(writer, batch)
    writer.sync()
    writer.close()
    return sum(files.size(file) for file in files.list())


def _write(writer: JournalWriter, batch: list[bytes]) -> None:
    if writer.is_full(sum(map(len, batch)) + 5 * len(batch)):
        file, end = writer.position
        files = tuple(range(1, file + 2))
        writer.rotate(encode_header(Header(1, HOLDER, "rotation", {file: end}, files, length=FILE_BYTES)))
    writer.append(batch)
