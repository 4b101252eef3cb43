"""Journals for the tests of the pipeline, written without a broker."""

from __future__ import annotations

from pathlib import Path

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import encode_batch
from tandemmq.journal.writer import JournalWriter
from tandemmq.store.records.commands import encode_add, encode_remove
from tandemmq.store.records.headers import Header, encode_header
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message

QUEUE = Destination(DestinationKind.QUEUE, "orders")
FILE_BYTES = 64 << 10
NOW_MS = 1_700_000_000_000


def message(number: int, body: bytes = b"x" * 500, to: Destination = QUEUE, **fields: object) -> Message:
    """Return message ``number`` of one producer."""
    text: dict[str, object] = {
        "body_kind": BodyKind.TEXT, "persistent": True, "timestamp": NOW_MS + number, **fields,
    }  # fmt: skip
    return Message(to, f"ID:tests-1:1:1:{number}", body, **text)  # type: ignore[arg-type]


def add(number: int, body: bytes = b"x" * 500, to: Destination = QUEUE, **fields: object) -> bytes:
    """Return the payload that stores ``message`` with the same arguments."""
    stored = message(number, body, to, **fields)
    return encode_add(stored, encode_message(stored))


def write_store(directory: Path, messages: int, *, removed_behind: int = 10) -> None:
    """Write a store of TandemMQ: files of 64 KiB with headers, batches of ten records, most messages removed again."""
    directory.mkdir(parents=True)
    files = JournalFiles(str(directory))
    files.prepare("a", FILE_BYTES)
    writer = JournalWriter(files, "a", files.publish("a", 1), file_length_max=FILE_BYTES)
    writer.append([encode_header(Header(3, "a", "promotion", {}, (1,), length=FILE_BYTES))])
    batch: list[bytes] = []
    for number in range(1, messages + 1):
        batch.append(add(number))
        if number > removed_behind:
            batch.append(encode_remove(QUEUE, f"ID:tests-1:1:1:{number - removed_behind}"))
        if len(batch) >= 10 or number == messages:
            if writer.is_full(sum(map(len, batch)) + 5 * len(batch)):
                file, end = writer.position
                files.prepare("a", FILE_BYTES)
                known = tuple(range(1, file + 2))
                writer.rotate(encode_header(Header(3, "a", "rotation", {file: end}, known, length=FILE_BYTES)))
            writer.append(batch)
            batch = []
    writer.sync()
    writer.close()


def write_foreign(path: Path, batches: list[list[bytes]], *, size: int = FILE_BYTES) -> None:
    """Write a journal file as ActiveMQ leaves it: batches, an end record, zeros; no header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = bytearray()
    for payloads in batches:
        batch, _ = encode_batch(payloads)
        del content[len(content) - 5 :]
        content += batch
    path.write_bytes(bytes(content).ljust(size, b"\0"))
