"""A message as the API shows it: values whose JSON has a limited length.

Long bodies, properties and other texts are cut. ``properties_left_out`` is the number of properties that do not fit.
An encoded message of AMQP is shown decoded, unless it is long.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from tandemmq.broker.engine.dead_letters import CAUSE_PROPERTY
from tandemmq.broker.protocols.encoded import decoded, is_encoded
from tandemmq.store.records.errors import RecordDamaged, RecordTooLarge
from tandemmq.store.records.frames import OpenedMessage
from tandemmq.store.records.message import BodyKind, Message

#: Limits of a body: of a single message, and of a message in a list.
BODY_BYTES_MAX: Final = 256 * 1024
PREVIEW_CHARACTERS_MAX: Final = 120
PREVIEW_BYTES_MAX: Final = 4 * PREVIEW_CHARACTERS_MAX
#: Limits of the properties of a message: their number, and the length of their JSON in a list and for a single message.
PROPERTIES_MAX: Final = 1_000
LISTED_BYTES_MAX: Final = 16 * 1024
PROPERTIES_BYTES_MAX: Final = 256 * 1024
#: Limit of other texts that the client chose: a property, a correlation id, a type.
TEXT_CHARACTERS_MAX: Final = 4_096
#: Longer encoded properties are not decoded: 64 KiB of short properties take 10 ms.
DECODED_BYTES_MAX: Final = 64 * 1024

Shown = dict[str, Any]


def headers_of(message: Message, bytes_max: int = PROPERTIES_BYTES_MAX) -> Shown:
    """Return all fields except the body. ``bytes_max``: limit of the JSON of the properties. Unreadable properties are
    logged and left out."""
    shown, left_out = _properties(message, bytes_max)
    return {
        "id": message.message_id,
        "destination": str(message.destination),
        "original_destination": None if message.original_destination is None else str(message.original_destination),
        "timestamp": _time(message.timestamp),
        "expiration": _time(message.expiration),
        "priority": message.priority,
        "persistent": message.persistent,
        "redelivery_counter": message.redelivery_counter,
        "correlation_id": _cut(message.correlation_id),
        "reply_to": None if message.reply_to is None else _cut(str(message.reply_to)),
        "type": _cut(message.type),
        "group_id": _cut(message.group_id),
        "group_sequence": message.group_sequence,
        "user_id": _cut(message.user_id),
        "size": message.size,
        "body_kind": message.body_kind.name.lower(),
        "properties": shown,
        "properties_left_out": left_out,
        "cause": shown.get(CAUSE_PROPERTY),
    }


def _properties(message: Message, bytes_max: int) -> tuple[Shown, int | None]:
    """Return the first properties that fit into ``bytes_max`` bytes of JSON, and the number of the others. The number
    is None if the properties are too long to be decoded. The cause of a dead letter comes first."""
    if isinstance(message, OpenedMessage) and message.properties_bytes > DECODED_BYTES_MAX:
        return {}, None
    properties = message.properties or {}
    shown: Shown = {}
    names = islice(properties, PROPERTIES_MAX)
    for name in (CAUSE_PROPERTY, *names) if CAUSE_PROPERTY in properties else names:
        value = _plain(properties[name])
        if name not in shown:
            bytes_max -= len(json.dumps(name[:TEXT_CHARACTERS_MAX])) + len(json.dumps(value)) + 4
            if bytes_max < 0:
                break
            shown[name[:TEXT_CHARACTERS_MAX]] = value
    return shown, len(properties) - len(shown)


def in_list(message: Message, position: int) -> Shown:
    """Return a row of a browse. ``position``: the place in the queue at that time, from 1."""
    size, message = message.size, _decoded(message)
    text = None
    if not _is_compressed(message):
        try:
            body, is_cut = _first_bytes(message, PREVIEW_BYTES_MAX)
            text = _text(message, body, is_cut=is_cut)
        except RecordDamaged:
            pass  # shown like a body that is not text
    preview = None if text is None else text[:PREVIEW_CHARACTERS_MAX]
    return {"position": position, **headers_of(message, LISTED_BYTES_MAX), "size": size, "preview": preview}


def whole(message: Message) -> Shown:
    """Return the message with its body: as text if it is text, otherwise in base64. ``problem``: why the body is not
    shown."""
    size, message = message.size, _decoded(message)
    body, is_cut, problem = b"", False, None
    try:
        if isinstance(message, OpenedMessage) and message.is_compressed:
            body = message.inflated(BODY_BYTES_MAX)
        else:
            body, is_cut = _first_bytes(message, BODY_BYTES_MAX)
    except (RecordDamaged, RecordTooLarge) as error:
        problem = str(error)
    text = _text(message, body, is_cut=is_cut)
    encoded = base64.b64encode(body).decode() if text is None else None
    shown = {**headers_of(message), "size": size, "body": text, "body_base64": encoded}
    return {**shown, "is_cut": is_cut, "problem": problem}


def _decoded(message: Message) -> Message:
    return (decoded(message, is_quick=True) or message) if is_encoded(message) else message


def _first_bytes(message: Message, bytes_max: int) -> tuple[bytes, bool]:
    """Return the first ``bytes_max`` bytes of the uncompressed body, and whether the body is longer. Raises
    RecordDamaged."""
    if isinstance(message, OpenedMessage):
        return message.beginning(bytes_max)
    return message.body[:bytes_max], len(message.body) > bytes_max


def _is_compressed(message: Message) -> bool:
    """Return whether the body is stored compressed, so that reading it takes time."""
    return isinstance(message, OpenedMessage) and message.is_compressed


def _text(message: Message, body: bytes, *, is_cut: bool) -> str | None:
    """Return the body as text; None: it is not text. ``is_cut``: it may end within a character."""
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
    """Return the value of a property in a form that JSON permits."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value[:TEXT_CHARACTERS_MAX])).decode()
    return str(value)[:TEXT_CHARACTERS_MAX]


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:TEXT_CHARACTERS_MAX]
