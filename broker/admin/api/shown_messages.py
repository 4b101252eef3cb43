"""A message as the API shows it: plain values. Bodies are cut at a bound, and say so."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any, Final

from tandemmq.broker.core.dead_letters import CAUSE_PROPERTY
from tandemmq.store.records.errors import RecordDamaged, RecordTooLarge
from tandemmq.store.records.frames import OpenedMessage
from tandemmq.store.records.message import BodyKind, Message

#: Of a body that is shown, and of one in a list.
BODY_BYTES_MAX: Final = 256 * 1024
PREVIEW_CHARACTERS_MAX: Final = 120
#: Of the properties of a message.
PROPERTIES_MAX: Final = 1_000
PROPERTY_CHARACTERS_MAX: Final = 4_096

Shown = dict[str, Any]


def headers_of(message: Message) -> Shown:
    """All but the body. Properties that cannot be read count as none (the log says so)."""
    properties = dict(list((message.properties or {}).items())[:PROPERTIES_MAX])
    return {
        "id": message.message_id,
        "destination": str(message.destination),
        "original_destination": None if message.original_destination is None else str(message.original_destination),
        "timestamp": _time(message.timestamp),
        "expiration": _time(message.expiration),
        "priority": message.priority,
        "persistent": message.persistent,
        "redelivery_counter": message.redelivery_counter,
        "correlation_id": message.correlation_id,
        "reply_to": None if message.reply_to is None else str(message.reply_to),
        "type": message.type,
        "group_id": message.group_id,
        "group_sequence": message.group_sequence,
        "user_id": message.user_id,
        "size": message.size,
        "body_kind": message.body_kind.name.lower(),
        "properties": {name: _plain(value) for name, value in properties.items()},
        "cause": _plain(properties.get(CAUSE_PROPERTY)),
    }


def in_list(message: Message, position: int) -> Shown:
    """A row of a browse. ``position``: its place in the queue then, from 1."""
    text = None if _is_compressed(message) else _text(message, message.body[:BODY_BYTES_MAX], is_cut=True)
    preview = None if text is None else text[:PREVIEW_CHARACTERS_MAX]
    return {"position": position, **headers_of(message), "preview": preview}


def whole(message: Message) -> Shown:
    """With the body: as text where it is one, else in base64. ``problem``: why it is not shown."""
    problem = None
    try:
        body = message.inflated(BODY_BYTES_MAX) if isinstance(message, OpenedMessage) else message.body
    except (RecordDamaged, RecordTooLarge) as error:
        body, problem = b"", str(error)
    is_cut = len(body) > BODY_BYTES_MAX
    body = body[:BODY_BYTES_MAX]
    text = _text(message, body, is_cut=is_cut)
    encoded = base64.b64encode(body).decode() if text is None else None
    return {**headers_of(message), "body": text, "body_base64": encoded, "is_cut": is_cut, "problem": problem}


def _is_compressed(message: Message) -> bool:
    """Whether it costs something to look at its body."""
    return isinstance(message, OpenedMessage) and message.is_compressed


def _text(message: Message, body: bytes, *, is_cut: bool) -> str | None:
    """The body as text; None: it is none. ``is_cut``: it may end within a character."""
    if message.body_kind not in (BodyKind.TEXT, BodyKind.BYTES):
        return None
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        return body[: error.start].decode() if is_cut and error.start >= len(body) - 3 else None


def _time(milliseconds: int) -> str | None:
    if milliseconds <= 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):
        return None


def _plain(value: Any) -> Any:
    """A property's value as JSON can say it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)[:PROPERTY_CHARACTERS_MAX]).decode()
    return str(value)[:PROPERTY_CHARACTERS_MAX]
