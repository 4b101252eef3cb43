"""Trace commands around the records of a take-over: `TANDEMMQ-TAKEOVER begin` and `TANDEMMQ-TAKEOVER end`. Pure.

A crash between them leaves only some of the records in the journal. The next take-over starts from the same db.data and
must skip those records, because it makes all of them again. If the end mark exists, the journal has all facts of
db.data. ActiveMQ ignores traces.
"""

from __future__ import annotations

from tandemmq.store.records.commands import encode_trace

_MARK = b"TANDEMMQ-TAKEOVER "

BEGIN = encode_trace("TANDEMMQ-TAKEOVER begin")
END = encode_trace("TANDEMMQ-TAKEOVER end")


def is_mark(payload: bytes) -> bool:
    """Return whether a record's payload is one of the two marks."""
    return _MARK in payload[:32]
