"""Marks: trace commands with facts for later readers of the journal. ActiveMQ ignores traces. Pure.

`TANDEMMQ-GONE {"files": [[first, last], ...]}`: these files are removed. It is written and synced before they are
unlinked, so a reclaimed file can be distinguished from a lost file.

`TANDEMMQ-SETTLED {"subscription": key, "topic": name}`: a compaction has copied a durable subscription. All its pending
messages are after its newest record, so its older records are not needed.

`TANDEMMQ-CONNECTIONS [[connection id, user], ...]`: users of connection ids (store.records.connection_owners). It is
written for each new id, and for all ids before files are removed.

`TANDEMMQ-CLOCK <milliseconds since 1970>`: time by the master's clock when the batch was made. It is only information
for readers of the journal, because other records have no time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tandemmq.store.records.commands import Trace, decode, encode_trace
from tandemmq.store.records.headers import ranges
from tandemmq.store.records.message import Destination

# Prefix of all marks. The header of a file has another prefix (store.records.headers).
OUR_TRACES = "TANDEMMQ-"
# End marker, which a rotation writes after the end of a file (store.damage.report).
NEXT = "TANDEMMQ-NEXT "
_GONE = "TANDEMMQ-GONE "
_SETTLED = "TANDEMMQ-SETTLED "
_CONNECTIONS = "TANDEMMQ-CONNECTIONS "
_CLOCK = "TANDEMMQ-CLOCK "


def encode_mark(mark: str, body: object) -> bytes:
    """Return the payload of a trace command with ``mark``, followed by ``body`` as JSON."""
    return encode_trace(mark + json.dumps(body, separators=(",", ":")))


def decode_mark(mark: str, payload: bytes) -> Any:
    """Return the JSON value after ``mark`` in a trace command's payload, or None if it has another text."""
    if mark.encode() not in payload[:32]:
        return None
    command = decode(payload)
    text = command.message if isinstance(command, Trace) else None
    return None if text is None or not text.startswith(mark) else json.loads(text[len(mark) :])


def encode_gone(files: Iterable[int]) -> bytes:
    """Return the payload of the record that is written before ``files`` are removed."""
    return encode_mark(_GONE, {"files": ranges(files)})


def decode_gone(payload: bytes) -> tuple[int, ...]:
    """Return the removed files in a trace command's payload; empty for any other trace."""
    body = decode_mark(_GONE, payload)
    return () if body is None else tuple(file for first, last in body["files"] for file in range(first, last + 1))


def encode_settled(topic: Destination, subscription_key: str) -> bytes:
    """Return the payload of the record that follows the copies of a subscription and of all its pending messages."""
    return encode_mark(_SETTLED, {"subscription": subscription_key, "topic": topic.name})


def decode_settled(payload: bytes) -> tuple[str | None, str] | None:
    """Return (topic, key of the subscription) of a trace that marks a copied subscription, or None for any other trace.

    In old traces the topic is None, because a key then belonged to only one topic.
    """
    body = decode_mark(_SETTLED, payload)
    return None if body is None else (body.get("topic"), str(body["subscription"]))


def encode_connections(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Return the payload of the record with these pairs (connection id, user)."""
    return encode_mark(_CONNECTIONS, list(pairs))


def decode_connections(payload: bytes) -> list[tuple[str, str]]:
    """Return the pairs (connection id, user) in a trace command's payload; empty for any other trace."""
    return [(str(id), str(user)) for id, user in decode_mark(_CONNECTIONS, payload) or ()]


def encode_clock(milliseconds: int) -> bytes:
    """Return the payload of the record with this time, in milliseconds since 1970."""
    return encode_trace(f"{_CLOCK}{milliseconds}")


def clock_of(text: str) -> int | None:
    """Return the milliseconds since 1970 in the text of a trace command, or None for any other trace."""
    if not text.startswith(_CLOCK):
        return None
    digits = text[len(_CLOCK) :]
    return int(digits) if digits.isdecimal() and digits.isascii() else None
