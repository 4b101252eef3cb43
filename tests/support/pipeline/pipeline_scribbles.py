"""Journals of random records without reclaimed files, so that every link between two files is still visible."""

from __future__ import annotations

import random
from pathlib import Path

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import CONTROL_SIZE
from tandemmq.journal.writer import JournalWriter
from tandemmq.store.records.commands import (
    UpdateMessage,
    decode,
    encode,
    encode_add,
    encode_commit,
    encode_prepare,
    encode_remove,
    encode_remove_destination,
    encode_rollback,
    encode_subscription,
    encode_unsubscribe,
)
from tandemmq.store.records.headers import Header, encode_header
from tandemmq.store.records.hints import with_copy_hint, with_operation_hint
from tandemmq.store.records.marks import encode_settled
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import XaTransactionId

FILE_BYTES = 64 << 10
QUEUES = (Destination(DestinationKind.QUEUE, "orders"), Destination(DestinationKind.QUEUE, "prices"))
TOPIC = Destination(DestinationKind.TOPIC, "news")
NAMES = ("one", "two")
TRANSACTIONS = tuple(XaTransactionId(5, b"branch", b"%d" % number) for number in range(4))


class Scribble:
    """``files`` files of ``records`` random records each."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self._files = JournalFiles(str(directory))
        self._chance = chance
        self._files.prepare("a", FILE_BYTES)
        own = self._files.publish("a", 1)
        self._writer = JournalWriter(self._files, "a", own, file_length_max=FILE_BYTES)
        self._writer.append([encode_header(Header(1, "a", "promotion", {}, (1,), length=FILE_BYTES))])
        self._added: dict[tuple[Destination, str], int] = {}  # positions of the last adds outside transactions
        self._open: dict[XaTransactionId, list[tuple[int, bytes]]] = {}

    def write(self, files: int, records: int) -> None:
        deeds = (
            *[self._add] * 8,
            *[self._remove] * 8,
            *[self._enlist] * 6,
            *[self._move_operation] * 3,
            *[self._move] * 3,
            *[self._end] * 3,
            *[self._declare] * 3,
        )
        for number in range(files):
            if number:
                file, end = self._writer.position
                self._files.prepare("a", FILE_BYTES)
                known = tuple(range(1, file + 2))
                self._writer.rotate(encode_header(Header(1, "a", "rotation", {file: end}, known, length=FILE_BYTES)))
            for _ in range(records):
                self._chance.choice(deeds)()
        self._writer.sync()
        self._writer.close()

    def _append(self, payload: bytes) -> int:
        file, end = self._writer.position
        self._writer.append([payload])
        return file << 32 | end + CONTROL_SIZE

    def _message(self) -> Message:
        destination = self._chance.choice((*QUEUES, TOPIC))
        number = self._chance.randrange(1, 30)
        return Message(destination, f"ID:p:1:1:{number}", b"x", BodyKind.BYTES, persistent=True, timestamp=1)

    def _payload(self, transaction: XaTransactionId | None = None) -> bytes:
        message = self._message()
        if self._chance.random() < 0.5:
            return encode_add(message, encode_message(message), transaction)
        name = None if message.destination != TOPIC else f"c:{self._chance.choice(NAMES)}"
        return encode_remove(message.destination, message.message_id, transaction, name)

    def _add(self) -> None:
        message = self._message()
        place = self._append(encode_add(message, encode_message(message)))
        self._added.setdefault((message.destination, message.message_id), place)

    def _remove(self) -> None:
        message = self._message()
        name = None if message.destination != TOPIC else f"c:{self._chance.choice(NAMES)}"
        self._append(encode_remove(message.destination, message.message_id, None, name))

    def _enlist(self) -> None:
        transaction = self._chance.choice(TRANSACTIONS)
        payload = self._payload(transaction)
        operations = self._open.setdefault(transaction, [])
        if all(payload != known for _, known in operations):
            operations.append((self._append(payload), payload))

    def _move_operation(self) -> None:
        operations = self._open.get(self._chance.choice(TRANSACTIONS))
        if operations:
            number = self._chance.randrange(len(operations))
            place, payload = operations[number]
            operations[number] = self._append(with_operation_hint(payload, place)), payload

    def _move(self) -> None:
        if self._added:
            (destination, message_id), place = self._chance.choice(sorted(self._added.items(), key=str))
            message = Message(destination, message_id, b"x", BodyKind.BYTES, persistent=True, timestamp=1)
            add = decode(encode_add(message, encode_message(message)))
            self._append(with_copy_hint(encode(UpdateMessage(add)), place << 32, place))  # type: ignore[arg-type]

    def _end(self) -> None:
        transaction = self._chance.choice(TRANSACTIONS)
        encoded = self._chance.choice((encode_prepare, encode_commit, encode_rollback))
        self._append(encoded(transaction))
        if encoded is not encode_prepare:
            self._open.pop(transaction, None)

    def _declare(self) -> None:
        name = self._chance.choice(NAMES)
        self._append(
            self._chance.choice(
                (
                    encode_subscription(TOPIC, "c", name),
                    encode_subscription(TOPIC, "c", name),
                    encode_settled(TOPIC, f"c:{name}"),
                    encode_unsubscribe(TOPIC, "c", name),
                    encode_remove_destination(self._chance.choice((*QUEUES, TOPIC))),
                )
            )
        )
