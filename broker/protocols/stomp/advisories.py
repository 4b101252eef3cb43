"""Advisories as ActiveMQ sends them to STOMP clients: the command in them as JSON (jms-advisory-json). Pure.

    {"ConsumerInfo":{"commandId":0,"responseRequired":false,"consumerId":{"connectionId":"ID:a-1","sessionId":1,...

Names and shapes are those that XStream makes of ActiveMQ's classes. Fields that are not set are left out, and so are
the bytes of a message in an advisory: its body and its properties.

OpenWire's commands are imported with the first advisory, whose message needed them as well: a broker without OpenWire
starts without them.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from tandemmq.broker.core.names import is_advisory
from tandemmq.store.records.frames import frame_of
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message

TRANSFORMATION = "jms-advisory-json"
_CLASSES = {
    DestinationKind.QUEUE: "ActiveMQQueue",
    DestinationKind.TOPIC: "ActiveMQTopic",
    DestinationKind.TEMP_QUEUE: "ActiveMQTempQueue",
    DestinationKind.TEMP_TOPIC: "ActiveMQTempTopic",
}


def is_sent_as_json(message: Message, transformation: str | None) -> bool:
    """Return whether a subscription with ``transformation`` gets the advisory as JSON."""
    return (
        message.body_kind is BodyKind.NONE
        and transformation in (None, TRANSFORMATION, "jms-json")
        and is_advisory(message.destination)
    )


def json_of(message: Message) -> bytes:
    """Return the JSON body of an advisory; empty if its content is only in its properties."""
    from tandemmq.broker.protocols.openwire.codec import message_of
    from tandemmq.broker.protocols.openwire.errors import WireError

    try:
        structure = message_of(frame_of(message)).data_structure
    except WireError:
        return b""
    if structure is None:
        return b""
    found = {type(structure).__name__: _object(structure)}
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _object(structure: Any) -> dict[str, Any]:
    from tandemmq.broker.protocols.openwire.schema import RemoveInfo

    found: dict[str, Any] = {}
    for field in fields(structure):
        value = getattr(structure, field.name)
        if value is not None and not isinstance(value, bytes):
            found[_java_name(field.name)] = _value(value)
    if isinstance(structure, RemoveInfo):
        found["objectId"] = {"@class": type(structure.object_id).__name__, **found["objectId"]}
    return found


def _value(value: Any) -> Any:
    if isinstance(value, Destination):
        return {"@class": _CLASSES[value.kind], "string": value.name, "null": ""}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):  # an id
        return {_java_name(name): _value(part) for name, part in value._asdict().items() if part is not None}
    if isinstance(value, list | tuple):
        return [_value(each) for each in value]
    return value if isinstance(value, bool | int | float | str) else str(value)


def _java_name(name: str) -> str:
    first, *words = name.split("_")
    return first + "".join(map(str.capitalize, words))
