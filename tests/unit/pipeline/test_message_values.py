"""Values of messages as docs/pipeline.md has them, by both decoders. Needs no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandemmq.broker.protocols.encoded import NATIVE
from tandemmq.pipeline.rows import rows
from tandemmq.pipeline.stores import journal_files
from tandemmq.store.records.commands import encode_add
from tandemmq.store.records.message import BodyKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.properties import Float, Short
from tests.support.broker import amqp_wire as amqp
from tests.support.pipeline.pipeline_journals import add, message, write_foreign

pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra local")

NULL_TEXT = b"\0\0\0\0"


def read(directory: Path, payload: bytes) -> dict[str, Any]:
    """The first message, by the decoder of single rows, which must say the same as the one of many."""
    from tandemmq.pipeline.arrow import record_batches

    write_foreign(directory / "db-1.log", [[payload, add(2)]])
    [file] = journal_files([str(directory)], is_tail_wanted=True)
    [batch] = record_batches(file, "messages")
    first = batch.to_pylist()[0]
    assert [dict(each) if name == "properties" else each for name, each in first.items()] == [
        dict(each) if name == "properties" else each
        for name, each in zip(first, _naive(next(rows(file, "messages")), first), strict=True)
    ]
    return {**first, "properties": dict(first["properties"])}


def _naive(row: Any, first: dict[str, Any]) -> list[Any]:
    """Times as Arrow gives them."""
    return [
        first[name] if name in ("sent", "broker_in", "expires") else each for name, each in zip(first, row, strict=True)
    ]


def without_text(number: int) -> bytes:
    """A text message that never got a text: its frame has no content (ActiveMQTextMessage.storeContent)."""
    stored: Message = message(number, b"")
    frame = encode_message(stored)
    return encode_add(stored, _shorter(frame.replace(b"\1\0\0\0\4" + NULL_TEXT, b"\0", 1)))


def _shorter(frame: bytes) -> bytes:
    return (len(frame) - 4).to_bytes(4, "big") + frame[4:]


@pytest.mark.parametrize(
    ("payload", "body", "text"),
    [
        (add(1, b"x"), b"x", "x"),
        (add(1, b""), None, ""),
        (without_text(1), None, None),
        (add(1, b"", body_kind=BodyKind.BYTES), None, None),
        (add(1, b"", body_kind=BodyKind.NONE), None, None),
        (add(1, b"y", body_kind=BodyKind.BYTES), b"y", None),
    ],
)
def test_an_empty_message_has_no_body(tmp_path: Path, payload: bytes, body: bytes | None, text: str | None) -> None:
    found = read(tmp_path, payload)
    assert (found["body"], found["text"]) == (body, text)


@pytest.mark.parametrize(
    ("encoded", "kind", "body", "text"),
    [
        (amqp.value("tëxt"), "text", "tëxt".encode(), "tëxt"),
        (amqp.section(0x75, b"\xff"), "bytes", b"\xff", None),
        (amqp.value(5), "bytes", amqp.value(5), None),
    ],
)
def test_encoded_messages_of_amqp_are_decoded(
    tmp_path: Path, encoded: bytes, kind: str, body: bytes, text: str | None
) -> None:
    found = read(tmp_path, add(1, encoded, body_kind=BodyKind.BYTES, properties={NATIVE: True, "a": "b"}))
    assert (found["body_kind"], found["body"], found["text"]) == (kind, body, text)
    assert found["properties"]["a"] == "b"


def test_properties_are_texts_as_java_prints_them(tmp_path: Path) -> None:
    values: dict[str, tuple[Any, str | None]] = {
        "small": (0.00001, "1.0E-5"),
        "edge": (0.001, "0.001"),
        "whole": (3.0, "3.0"),
        "large": (1e7, "1.0E7"),
        "float": (Float(0.1), "0.1"),
        "nan": (float("nan"), "NaN"),
        "endless": (float("-inf"), "-Infinity"),
        "yes": (True, "true"),
        "short": (Short(7), "7"),
        "none": (None, None),
        "bytes": (b"\1\xff", "01ff"),
        "map": ({"a": 1e-9, "b": [None, False]}, "{a=1.0E-9, b=[null, false]}"),
    }
    found = read(tmp_path, add(1, properties={name: value for name, (value, _) in values.items()}))
    assert found["properties"] == {name: text for name, (_, text) in values.items()}
