"""The rows of the table ``messages``, one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.pipeline.record_rows import (
    FAILFAST,
    PERMISSIVE,
    Malformed,
    Row,
    broker_in_of,
    command_name,
    time_of,
    version_of,
)
from broker.pipeline.walk import JournalFile
from store.records import commands
from store.records.commands import AddMessage, RecordDamaged, UpdateMessage
from store.records.message import SCHEMES, BodyKind, Destination
from store.records.openwire import decode_message
from store.records.properties import Char

# The numbers of the commands that have a row.
STORED: Final = frozenset((commands.ADD, commands.UPDATE))


class MessageRows:
    """Makes the rows of the table ``messages`` of one file, record by record, in order."""

    def __init__(self, file: JournalFile, mode: str, payload: bool) -> None:
        self._file = file
        self._mode = mode
        self._payload = payload
        # of the bodies; while nobody says, the first message that is stored tells
        self.version = file.openwire

    def row(self, batch: int, offset: int, data: bytes) -> Row | None:
        """The row of a record that is STORED; None where the mode leaves it out, and for what is no command, which the
        table of records has. Raises Malformed, as ``rows`` does."""
        file = self._file
        try:
            command = commands.decode(data)
        except RecordDamaged as error:
            if self._mode == FAILFAST:
                raise Malformed(f"{file.path} at {offset}: {error}") from error
            return None
        stored = command.add if isinstance(command, UpdateMessage) else command
        assert isinstance(stored, AddMessage), "both kinds store a message"
        head = (file.store, file.file, offset, command_name(command, data))
        transaction = None if stored.transaction is None else stored.transaction.key
        producer, _, sequence = stored.message_id.rpartition(":")
        place = (
            SCHEMES[stored.destination.kind],
            stored.destination.name,
            stored.message_id,
            producer if sequence.isdecimal() else None,
            _sequence(sequence),
            transaction,
        )
        raw = stored.message if self._payload else None
        try:
            if self.version is None:
                self.version = version_of(stored.message)
            message = decode_message(stored.message, self.version)
            broker_in = broker_in_of(stored.message, message.body_kind, self.version)
        except RecordDamaged as error:
            if self._mode == FAILFAST:
                raise Malformed(f"{file.path} at {offset}: {error}") from error
            return (*head, *place, *_NO_MESSAGE, raw) if self._mode == PERMISSIVE else None
        body = message.body
        return (
            *head,
            *place,
            _optional(message.original_destination),
            message.correlation_id,
            _optional(message.reply_to),
            message.priority,
            message.persistent,
            time_of(message.timestamp),
            broker_in,
            time_of(message.expiration),
            message.redelivery_counter,
            message.type,
            message.group_id,
            message.group_sequence,
            message.user_id,
            properties_of(message.properties),
            message.body_kind.name.lower(),
            body,
            body.decode("utf-8", "replace") if message.body_kind is BodyKind.TEXT else None,
            raw,
        )


_NO_MESSAGE: Final = (None,) * 17


def _sequence(digits: str) -> int | None:
    return int(digits) if digits.isdecimal() and len(digits) < 19 else None


def _optional(destination: Destination | None) -> str | None:
    return None if destination is None else str(destination)


def properties_of(properties: Mapping[str, object] | None) -> list[tuple[str, str | None]]:
    """A message's properties as the table has them."""
    return [(name, _property(value)) for name, value in (properties or {}).items()]


def _property(value: object) -> str | None:
    """As Java prints it; bytes as two digits each."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    return str.__str__(value) if isinstance(value, Char) else str(value)
