"""Trace commands by which a master tells its successors what it does to whole files. Pure.

`TANDEMMQ-GONE {"files": [[first, last], ...]}` stands, synced, in the journal before the named files are unlinked:
so a file that was reclaimed differs for ever from one that was lost (safety.md 4).

`TANDEMMQ-SETTLED {"subscription": key, "topic": name}` ends the move of a durable subscription: all that it
holds stands behind its newest record now, so that the older ones are not needed (safety.md 5). ActiveMQ ignores traces.

`TANDEMMQ-CONNECTIONS [[connection id, user], ...]` says whose connection ids are (store.connections): one that is met
for the first time; all that are remembered, before files are removed.

`TANDEMMQ-CLOCK <milliseconds since 1970>` says what time the master's clock showed when the batch was made: for people
who read journals, since records carry no time; it decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from store.connections import decode_pairs, encode_pairs
from store.headers import ranges
from store.records.commands import Trace, decode, encode_trace
from store.records.message import Destination

# So every trace of ours begins, but for the header of a file (store.headers).
OUR_TRACES = "TANDEMMQ-"
# Behind the end of a file that a rotation left (store.damage).
NEXT = "TANDEMMQ-NEXT "
_GONE = "TANDEMMQ-GONE "
_GONE_BYTES = _GONE.encode()
_SETTLED = "TANDEMMQ-SETTLED "
_SETTLED_BYTES = _SETTLED.encode()
_CONNECTIONS = "TANDEMMQ-CONNECTIONS "
_CONNECTIONS_BYTES = _CONNECTIONS.encode()
_CLOCK = "TANDEMMQ-CLOCK "


def encode_gone(files: Iterable[int]) -> bytes:
    """The payload of the record that precedes the removal of ``files``."""
    return encode_trace(_GONE + json.dumps({"files": ranges(files)}, separators=(",", ":")))


def decode_gone(payload: bytes) -> tuple[int, ...]:
    """The files that a trace command's payload gives up; empty for every other trace."""
    if _GONE_BYTES not in payload[:32]:
        return ()
    command = decode(payload)
    text = command.message if isinstance(command, Trace) else None
    if text is None or not text.startswith(_GONE):
        return ()
    body = json.loads(text[len(_GONE) :])
    return tuple(file for first, last in body["files"] for file in range(first, last + 1))


def encode_settled(topic: Destination, subscription_key: str) -> bytes:
    """The payload of the record that follows the last copy of what a moved subscription holds."""
    said = {"subscription": subscription_key, "topic": topic.name}
    return encode_trace(_SETTLED + json.dumps(said, separators=(",", ":")))


def decode_settled(payload: bytes) -> tuple[str | None, str] | None:
    """The topic and the key of the subscription that a trace command's payload settles; None for every other trace.

    The topic is None in those of before: a key stood for one subscription of one topic then.
    """
    if _SETTLED_BYTES not in payload[:32]:
        return None
    command = decode(payload)
    text = command.message if isinstance(command, Trace) else None
    if text is None or not text.startswith(_SETTLED):
        return None
    said = json.loads(text[len(_SETTLED) :])
    return said.get("topic"), str(said["subscription"])


def encode_connections(pairs: Iterable[tuple[str, str]]) -> bytes:
    """The payload of the record that says whose connection ids are: (id, user)."""
    return encode_trace(_CONNECTIONS + encode_pairs(pairs))


def decode_connections(payload: bytes) -> list[tuple[str, str]]:
    """(connection id, user) of what a trace command's payload says of them; nothing for every other trace."""
    if _CONNECTIONS_BYTES not in payload[:32]:
        return []
    command = decode(payload)
    text = command.message if isinstance(command, Trace) else None
    if text is None or not text.startswith(_CONNECTIONS):
        return []
    return decode_pairs(text[len(_CONNECTIONS) :])


def encode_clock(milliseconds: int) -> bytes:
    """The payload of the record that says what time it is: of wall time, since 1970."""
    return encode_trace(f"{_CLOCK}{milliseconds}")


def clock_of(text: str) -> int | None:
    """The milliseconds that the text of a trace command shows; None for every other trace."""
    if not text.startswith(_CLOCK):
        return None
    said = text[len(_CLOCK) :]
    return int(said) if said.isdecimal() and said.isascii() else None
