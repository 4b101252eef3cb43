"""What a broker writes for itself is a table: traces with their text, copies with the places that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.pipeline import columns
from tandemmq.pipeline.rows import FAILFAST, Malformed, rows
from tandemmq.pipeline.walk import JournalFile
from tandemmq.store.records.commands import UpdateMessage, decode, encode, encode_add, encode_remove, encode_trace
from tandemmq.store.records.hints import with_copy_hint, with_operation_hint
from tandemmq.store.records.marks import encode_clock, encode_gone
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId
from tests.support.pipeline.pipeline_journals import QUEUE, add, message, write_foreign

NAMES = [name for name, _ in columns.COLUMNS[columns.MARKS]]


def marks(path: Path) -> list[dict[str, object]]:
    file = JournalFile(str(path), "s", 7, path.stat().st_size, openwire=11)
    return [dict(zip(NAMES, row, strict=True)) for row in rows(file, columns.MARKS, FAILFAST)]


def test_traces_have_their_text_and_copies_the_places_that_they_name(tmp_path: Path) -> None:
    stored = message(1)
    transaction = LocalTransactionId("c", 1)
    update = encode(UpdateMessage(decode(add(1))))  # type: ignore[arg-type]
    copy = with_copy_hint(update, (3 << 32 | 400) << 32 | 5, 4 << 32 | 600)
    moved = with_operation_hint(encode_add(stored, encode_message(stored), transaction), 2 << 32 | 300)
    plain = [add(2), encode_remove(QUEUE, "ID:1"), encode_remove(QUEUE, "ID:1", transaction), update]
    path = tmp_path / "db-7.log"
    write_foreign(path, [[encode_trace("hello"), encode_clock(5), *plain], [copy, moved, encode_gone([1, 2])]])

    found = marks(path)

    nowhere: dict[str, object] = dict.fromkeys(NAMES[5:])
    assert [{name: row[name] for name in NAMES[3:]} for row in found] == [
        {**nowhere, "command": "TRACE", "text": "hello"},
        {**nowhere, "command": "CLOCK", "text": "TANDEMMQ-CLOCK 5"},
        {
            "command": "COPY",
            "text": None,
            "moved_from_file": 4,
            "moved_from_offset": 600,
            "order_file": 3,
            "order_offset": 400,
            "order_number": 5,
        },
        {**nowhere, "command": "ADD_MESSAGE", "text": None, "moved_from_file": 2, "moved_from_offset": 300},
        {**nowhere, "command": "MARK", "text": 'TANDEMMQ-GONE {"files":[[1,2]]}'},
    ]
    assert {row["store"] for row in found} == {"s"}
    assert {row["file"] for row in found} == {7}


def test_a_trace_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "db-7.log"
    write_foreign(path, [[bytes((0, 9, 0x0A, 0x50))]])
    with pytest.raises(Malformed, match=r"db-7\.log at"):
        marks(path)
