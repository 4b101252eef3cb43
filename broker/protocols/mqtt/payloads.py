"""Payloads for an MQTT client, made of a message's body; off the loop where that takes long."""

from __future__ import annotations

from typing import Final

from tandemmq.broker.core.commands import Undeliverable
from tandemmq.broker.protocols.stomp.maps import write_json
from tandemmq.store.records.errors import RecordDamaged, RecordTooLarge
from tandemmq.store.records.frames import OpenedMessage
from tandemmq.store.records.message import BodyKind, Message
from tandemmq.store.records.properties import decode_properties

#: Longest body that is inflated on the loop.
QUICK_BYTES_MAX: Final = 128 * 1024
#: Longest map that is written there.
QUICK_MAP_BYTES_MAX: Final = 16 * 1024


class TakesLong(Exception):
    """Work that takes too long for the event loop."""


class Payloads:
    """Payloads of the messages for one client, made one after the other.

    TakesLong from ``of``: call ``prepare`` on another thread, and then ``of`` again, before ``of`` is called for
    another message.
    """

    __slots__ = ("_prepared",)

    def __init__(self) -> None:
        self._prepared: tuple[Message, bytes | Undeliverable] | None = None

    def of(self, message: Message, bytes_max: int) -> bytes:
        """Return the payload. Raises TakesLong, and Undeliverable as ``payload_of`` does."""
        prepared = self._prepared
        if prepared is None or prepared[0] is not message:
            return payload_of(message, bytes_max, is_quick=True)
        self._prepared = None
        made = prepared[1]
        if isinstance(made, Undeliverable):
            raise made
        return made

    def drop(self) -> None:
        """Forget what was prepared."""
        self._prepared = None

    def prepare(self, message: Message, bytes_max: int) -> None:
        """Prepare the payload, on any thread."""
        try:
            self._prepared = message, payload_of(message, bytes_max, is_quick=False)
        except Undeliverable as reason:
            self._prepared = message, reason


def payload_of(message: Message, bytes_max: int, *, is_quick: bool) -> bytes:
    """Return the body of a message; of a map as JSON, of Java's objects and streams the content as it stands.

    With ``is_quick`` TakesLong is raised for a body that is compressed and long. Undeliverable: it is damaged, or
    inflated it would have more than ``bytes_max`` bytes.
    """
    if not isinstance(message, OpenedMessage) or (message.body_kind is BodyKind.BYTES and not message.is_compressed):
        return message.body
    limit = min(bytes_max, QUICK_BYTES_MAX) if is_quick and message.is_compressed else bytes_max
    if is_quick and not (
        message.is_quick and (message.body_kind is not BodyKind.MAP or message.size <= QUICK_MAP_BYTES_MAX)
    ):
        raise TakesLong
    try:
        body = message.inflated(limit)
        if message.body_kind is BodyKind.MAP:
            return write_json(decode_properties(body) if body else {})
    except RecordTooLarge as error:
        if is_quick and limit < bytes_max:
            raise TakesLong from None
        raise Undeliverable(str(error)) from None
    except (RecordDamaged, ValueError) as error:
        raise Undeliverable(str(error)) from None
    return body
