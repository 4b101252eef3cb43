"""Trace commands by which a master records its actions on whole files for its successors. Pure.

`TANDEMMQ-GONE {"files": [[first, last], ...]}` is written and synced before the named files are unlinked: so a
reclaimed file always differs from a lost one (safety.md 4).

`TANDEMMQ-SETTLED {"subscription": key, "topic": name}` ends the move of a durable subscription: all that it
holds is after its newest record now, so that the older ones are not needed (safety.md 5). ActiveMQ ignores traces.

`TANDEMMQ-CONNECTIONS [[connection id, user], ...]` names the users of connection ids (store.records.connection_owners).
It is written for each new id, and for all known ids before files are removed.

`TANDEMMQ-CLOCK <milliseconds since 1970>` is the time of the master's clock when the batch was made: for people who
read journals, because records carry no time; no decision depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tandemmq.store.records.commands import Trace, decode, encode_trace
from tandemmq.store.records.headers import ranges
from tandemmq.store.records.message import Destination

# Prefix of all our traces, except the header of a file (store.records.headers).
OUR_TRACES = "TANDEMMQ-"
# Mark that a rotation writes after the end of a file (store.damage.report).
NEXT = "TANDEMMQ-NEXT "
_GONE = "TANDEMMQ-GONE "
_SETTLED = "TANDEMMQ-SETTLED "
_CONNECTIONS = "TANDEMMQ-CONNECTIONS "
_CLOCK = "TANDEMMQ-CLOCK "


def encode_mark(mark: str, body: object) -> bytes:
    """Return the payload of a trace command: ``body`` as JSON after the mark."""
    return encode_trace(mark + json.dumps(body, separators=(",", ":")))


def decode_mark(mark: str, payload: bytes) -> Any:
    """Return the value after the mark in a trace command's payload; None for every other trace."""
    if mark.encode() not in payload[:32]:
        return None
    command = decode(payload)
    text = command.message if isinstance(command, Trace) else None
    return None if text is None or not text.startswith(mark) else json.loads(text[len(mark) :])


def encode_gone(files: Iterable[int]) -> bytes:
    """Return the payload of the record that precedes the removal of ``files``."""
    return encode_mark(_GONE, {"files": ranges(files)})


def decode_gone(payload: bytes) -> tuple[int, ...]:
    """Return the files that a trace command's payload gives up; empty for every other trace."""
    body = decode_mark(_GONE, payload)
    return () if body is None else tuple(file for first, last in body["files"] for file in range(first, last + 1))


def encode_settled(topic: Destination, subscription_key: str) -> bytes:
    """Return the payload of the record that follows the last copy of a moved subscription's messages."""
    return encode_mark(_SETTLED, {"subscription": subscription_key, "topic": topic.name})


def decode_settled(payload: bytes) -> tuple[str | None, str] | None:
    """Return the topic and the key of the subscription that a trace command's payload settles; None for every other
    trace.

    The topic is None in old traces: a key was unique to one subscription of one topic then.
    """
    body = decode_mark(_SETTLED, payload)
    return None if body is None else (body.get("topic"), str(body["subscription"]))


def encode_connections(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Return the payload of the record of connection ids and their users: (id, user)."""
    return encode_mark(_CONNECTIONS, list(pairs))


def decode_connections(payload: bytes) -> list[tuple[str, str]]:
    """Return (connection id, user) of a trace command's payload; empty for every other trace."""
    return [(str(id), str(user)) for id, user in decode_mark(_CONNECTIONS, payload) or ()]


def encode_clock(milliseconds: int) -> bytes:
    """Return the payload of the record with the wall time since 1970."""
    return encode_trace(f"{_CLOCK}{milliseconds}")


def clock_of(text: str) -> int | None:
    """Return the milliseconds in the text of a trace command; None for every other trace."""
    if not text.startswith(_CLOCK):
        return None
    output_text = text[len(_CLOCK) :]
    return int(output_text) if output_text.isdecimal() and output_text.isascii() else None
