"""Rows of the table ``messages``, made one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tandemmq.broker.core.numbers import java_text
from tandemmq.broker.protocols.encoded import decoded, is_encoded
from tandemmq.pipeline import record_rows
from tandemmq.store.records import commands
from tandemmq.store.records.commands import AddMessage, UpdateMessage
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.message import SCHEMES, BodyKind, Destination
from tandemmq.store.records.openwire import decode_message
from tandemmq.store.records.properties import Char

# Numbers of the commands that have a row in ``messages``.
STORED: Final = frozenset((commands.ADD, commands.UPDATE))


class MessageRows(record_rows.Rows):
    """Rows of the table ``messages``, for records that are STORED."""

    def row(self, batch: int, offset: int, data: bytes) -> record_rows.Row | None:
        file = self._file
        command = self._decoded(offset, data)
        if command is None:
            return None
        stored = command.add if isinstance(command, UpdateMessage) else command
        assert isinstance(stored, AddMessage), "adds and updates store a message"
        head = (file.store, file.file, offset, record_rows.command_name(command, data))
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
                self.version = record_rows.version_of(stored.message)
            message = decode_message(stored.message, self.version)
            content_bytes, broker_in = record_rows.body_and_time(self._scratch, stored.message, self.version)
        except RecordDamaged as error:
            self._refuse(offset, error)
            return (*head, *place, *_NO_MESSAGE, raw) if self._mode == record_rows.PERMISSIVE else None
        if is_encoded(message):
            message = decoded(message, is_quick=False) or message
        body = message.body
        return (
            *head,
            *place,
            _optional(message.original_destination),
            message.correlation_id,
            _optional(message.reply_to),
            message.priority,
            message.persistent,
            record_rows.time_of(message.timestamp),
            broker_in,
            record_rows.time_of(message.expiration),
            message.redelivery_counter,
            message.type,
            message.group_id,
            message.group_sequence,
            message.user_id,
            properties_of(message.properties),
            message.body_kind.name.lower(),
            body or None,
            # A message with an empty text has content: the length of the text. A message without a text has no content.
            body.decode("utf-8", "replace") if message.body_kind is BodyKind.TEXT and content_bytes else None,
            raw,
        )


_NO_MESSAGE: Final = (None,) * 17


def _sequence(digits: str) -> int | None:
    return int(digits) if digits.isdecimal() and len(digits) < 19 else None


def _optional(destination: Destination | None) -> str | None:
    return None if destination is None else str(destination)


def properties_of(properties: Mapping[str, object] | None) -> list[tuple[str, str | None]]:
    """Return a message's properties in the form of the table."""
    return [(name, _property(value)) for name, value in (properties or {}).items()]


def _property(value: object) -> str | None:
    """Return a value as Java prints it; a byte becomes two hexadecimal digits."""
    if value is None:
        return None
    if isinstance(value, bool | int | float):
        return java_text(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}={_nested(each)}' for name, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_nested, value))}]"
    return str.__str__(value) if isinstance(value, Char) else str(value)


def _nested(value: object) -> str:
    text = _property(value)
    return "null" if text is None else text
