"""Conversion of a row of ``messages`` to a SEND that creates the message again. Pure; no Spark, no Arrow.

STOMP preserves: destination, body to the byte, text or bytes, maps, correlation id, reply-to, type, priority,
persistence, time of sending, expiration, group. It does not preserve:

    properties            become texts, whatever type they had
    Java objects, streams, blobs, temporary destinations   cannot be sent at all: Unsendable
    a message without a body                               becomes an empty text
    a property with the name of a standard header          is left out (LEFT_OUT)
    user id, redeliveries, original destination            are set by the broker
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from tandemmq.broker.protocols.stomp import maps
from tandemmq.broker.protocols.stomp.destinations import write_destination
from tandemmq.broker.protocols.stomp.messages import SEND_ID
from tandemmq.store.records.errors import RecordDamaged, Unencodable
from tandemmq.store.records.message import SCHEMES, Destination
from tandemmq.store.records.properties import decode_properties, encode_properties

# Property with the id of the original message. If the message already has it, it is not changed, because it names the
# first original.
ORIGINAL_ID: Final = "originalMessageId"
# Names of headers: the broker would interpret a property with such a name as the header.
LEFT_OUT: Final = frozenset(
    (
        *("amq-msg-type", "content-length", "correlation-id", "destination", "expires", "message-id", "persistent"),
        *("priority", "receipt", "redelivered", "reply-to", "subscription", "timestamp", "transaction"),
        *("transformation", "type", "JMSXGroupID", "JMSXGroupSeq", "JMSXUserID", "AMQ_SCHEDULED_CRON"),
        *("AMQ_SCHEDULED_DELAY", "AMQ_SCHEDULED_PERIOD", "AMQ_SCHEDULED_REPEAT", "AMQ_SCHEDULER_ACTION", SEND_ID),
    )
)
SENT_KINDS: Final = ("text", "bytes", "map", "none")
SENT_TO: Final = ("queue", "topic")
_KINDS: Final = {scheme: kind for kind, scheme in SCHEMES.items()}


class Unsendable(ValueError):
    """STOMP cannot express this message."""


class Sending(NamedTuple):
    """Arguments for the client's ``send``."""

    destination: str
    headers: dict[str, str]
    body: bytes
    is_bytes: bool


def destination_of(text: str) -> Destination:
    """Parse ``queue://a``, ``topic://a`` or STOMP's form; a name alone is a queue. Raises ValueError for other
    texts."""
    for scheme in SENT_TO:
        for prefix in (f"{scheme}://", f"/{scheme}/"):
            if text.startswith(prefix) and len(text) > len(prefix):
                return Destination(_KINDS[scheme], text.removeprefix(prefix))
    if not text or "://" in text or text.startswith("/"):
        raise ValueError(f"{text!r}: a queue's name is expected, queue://NAME or topic://NAME")
    return Destination(_KINDS["queue"], text)


def sending_of(row: Mapping[str, Any], send_id: str, *, to: str | None = None, is_unending: bool = False) -> Sending:
    """Return the SEND for a row with the columns of ``messages``, and ``sent_ms`` and ``expires_ms`` in milliseconds.

    ``send_id``: value of the header tandemmq-send-id. ``to``: another destination, in STOMP's form. ``is_unending``:
    the message does not expire. Raises Unsendable.
    """
    if row["destination_type"] not in SENT_TO:
        raise Unsendable(f"{row['destination_type']} destinations end with the connection that made them")
    own = Destination(_KINDS[row["destination_type"]], row["destination"])
    headers = {SEND_ID: send_id, **_properties(row["properties"])}
    headers.setdefault(ORIGINAL_ID, row["message_id"])
    for name, column in _FIELDS:
        if row[column] is not None:
            headers[name] = str(row[column])
    headers["persistent"] = "true" if row["persistent"] else "false"
    if row["reply_to"] is not None:
        headers["reply-to"] = write_destination(_named(row["reply_to"]))
    if row["group_id"] is not None:
        headers["JMSXGroupSeq"] = str(row["group_sequence"] or 0)
    if row["expires_ms"] is not None and not is_unending:
        headers["expires"] = str(row["expires_ms"])
    body, kind = row["body"] or b"", row["body_kind"]
    if kind == "map":
        headers["transformation"], body = _map(body)
    elif kind not in SENT_KINDS:
        raise Unsendable(f"STOMP has no message with a body of the kind {kind}")
    elif kind != "bytes" and b"\0" in body:
        headers["amq-msg-type"] = "text"
    return Sending(to or write_destination(own), headers, body, kind == "bytes")


_FIELDS: Final = (
    ("correlation-id", "correlation_id"),
    ("type", "type"),
    ("priority", "priority"),
    ("timestamp", "sent_ms"),
    ("JMSXGroupID", "group_id"),
)


def _properties(found: Mapping[str, str | None] | Iterable[tuple[str, str | None]] | None) -> dict[str, str]:
    """Return the properties to send. (Arrow returns a map as pairs.)"""
    return {name: value for name, value in dict(found or ()).items() if value is not None and name not in LEFT_OUT}


def _named(qualified: str) -> Destination:
    scheme, _, name = qualified.partition("://")
    return Destination(_KINDS[scheme], name)


Form = tuple[str, Callable[[dict[str, Any]], bytes], Callable[[bytes], dict[str, Any]]]
# Forms of maps, tried in order. JSON loses the order of a list's items of different types; XML cannot contain control
# characters.
_FORMS: Final[tuple[Form, ...]] = (
    ("jms-map-json", maps.write_json, maps.read_json),
    ("jms-map-xml", maps.write_xml, maps.read_xml),
)


def _map(content: bytes) -> tuple[str, bytes]:
    """Return a map in the first form that preserves its values and their types."""
    try:
        entries = decode_properties(content) if content else {}
        wanted = encode_properties(entries)
    except (RecordDamaged, Unencodable) as error:
        raise Unsendable(f"the map cannot be read: {error}") from None
    for name, write, read in _FORMS:
        body = write(entries)
        try:
            if encode_properties(read(body)) == wanted:
                return name, body
        except (ValueError, Unencodable):
            continue
    raise Unsendable("STOMP cannot express all values of this map")
