"""The tables of the pipeline and their columns, defined once for Spark and for Arrow. Imports neither.

Every column may be null. Times are in UTC. Numbers of bytes and offsets are BIGINT. docs/pipeline-jobs.md explains
columns.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

Columns = tuple[tuple[str, str], ...]

RECORDS: Final = "records"
MESSAGES: Final = "messages"
ACKS: Final = "acks"
MARKS: Final = "marks"
BATCHES: Final = "batches"
FILES: Final = "files"

# Key columns: of a record, of a destination in one store, and of a destination among all stores.
PLACE: Final = ("store", "file", "offset")
NAME: Final = ("destination_type", "destination")
DESTINATION: Final = ("store", *NAME)

_PLACE: Final = "store STRING, file INT, offset BIGINT, "
_NAME: Final = "destination_type STRING, destination STRING, message_id STRING, "
_SCHEMAS: Final = {
    RECORDS: f"{_PLACE} length BIGINT, batch BIGINT, epoch INT, command STRING, {_NAME} transaction STRING, "
    "subscription STRING, priority INT, body_bytes INT, broker_in TIMESTAMP, is_sound BOOLEAN",
    MESSAGES: f"{_PLACE} command STRING, {_NAME} producer_id STRING, producer_sequence BIGINT, transaction STRING, "
    "original_destination STRING, correlation_id STRING, reply_to STRING, priority INT, persistent BOOLEAN, "
    "sent TIMESTAMP, broker_in TIMESTAMP, expires TIMESTAMP, redeliveries INT, type STRING, group_id STRING, "
    "group_sequence INT, user_id STRING, properties MAP<STRING, STRING>, body_kind STRING, body BINARY, text STRING, "
    "raw BINARY",
    ACKS: f"{_PLACE} {_NAME} transaction STRING, subscription STRING, ack_kind STRING",
    MARKS: f"{_PLACE} command STRING, text STRING, moved_from_file INT, moved_from_offset BIGINT, order_file INT, "
    "order_offset BIGINT, order_number INT",
    BATCHES: "store STRING, file INT, batch BIGINT, length BIGINT, records INT, checksum BIGINT, status STRING, "
    "detail STRING",
    FILES: "store STRING, file INT, path STRING, bytes BIGINT, records BIGINT, batches BIGINT, "
    "batch_header_bytes BIGINT, padding_bytes BIGINT, damaged_bytes BIGINT, state STRING, epoch INT",
}
_COLUMN: Final = re.compile(r"(\w+) (MAP<.+?>|\w+)")

# Columns of each table, in order: name and Spark type.
COLUMNS: Final[dict[str, Columns]] = {table: tuple(_COLUMN.findall(schema)) for table, schema in _SCHEMAS.items()}

TABLES: Final = tuple(COLUMNS)

# Values of ``records.command``. COPY is an UPDATE_MESSAGE with which compaction moves a message to a newer file.
# HEADER, MARK and CLOCK are traces that only this broker writes; ``broker_in`` of a CLOCK is its time. A record that
# cannot be decoded is UNREADABLE, and ``is_sound`` is false.
TRACE: Final = "TRACE"
HEADER: Final = "HEADER"
MARK: Final = "MARK"
CLOCK: Final = "CLOCK"
ADD_MESSAGE: Final = "ADD_MESSAGE"
COPY: Final = "COPY"
UPDATE_MESSAGE: Final = "UPDATE_MESSAGE"
REMOVE_MESSAGE: Final = "REMOVE_MESSAGE"
PREPARE: Final = "PREPARE"
COMMIT: Final = "COMMIT"
ROLLBACK: Final = "ROLLBACK"
REMOVE_DESTINATION: Final = "REMOVE_DESTINATION"
SUBSCRIPTION: Final = "SUBSCRIPTION"
UNSUBSCRIPTION: Final = "UNSUBSCRIPTION"
PRODUCER_AUDIT: Final = "PRODUCER_AUDIT"
ACK_MAP: Final = "ACK_MAP"
REWRITTEN: Final = "REWRITTEN"
UNREADABLE: Final = "UNREADABLE"

# Value of ``acks.ack_kind`` if the broker removed the message. The other values are the names in
# store.records.acknowledgements.
BY_BROKER: Final = "removed"

# Values of ``batches.status``. The ``length`` of a batch includes its header, 28 bytes.
OK: Final = "ok"
UNSUMMED: Final = "unsummed"  # whole, but without a checksum: ActiveMQ before 5.9
BAD_SUM: Final = "bad_sum"
GAP: Final = "gap"
TORN: Final = "torn"
BEHIND_THE_END: Final = "behind_the_end"  # written by a deposed master after the end of the file; it does not count
END: Final = "end"
PADDING: Final = "padding"
DAMAGED: Final = frozenset((BAD_SUM, GAP, TORN, BEHIND_THE_END))

CLOSED: Final = "closed"
CURRENT: Final = "current"


def ddl(table: str) -> str:
    """Return the schema of a table in Spark's DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS[table])


def arrow_schema(table: str) -> pa.Schema:
    """Return the Arrow schema of a table: the one that Spark makes from ``ddl`` in a session with the time zone UTC."""
    import pyarrow as pa

    return pa.schema([(name, arrow_type(kind)) for name, kind in COLUMNS[table]])


def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type for a Spark type name."""
    import pyarrow as pa

    types = {
        "STRING": pa.string(),
        "INT": pa.int32(),
        "BIGINT": pa.int64(),
        "DOUBLE": pa.float64(),
        "BOOLEAN": pa.bool_(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
        "BINARY": pa.binary(),
        "MAP<STRING, STRING>": pa.map_(pa.string(), pa.string()),
        "ARRAY<STRING>": pa.list_(pa.string()),
    }
    return types[kind]
