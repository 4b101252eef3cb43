"""The manifest of an archived file: its facts about batches, and manifests that are not trusted."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tandemmq.journal.format import END_RECORD, encode_batch
from tandemmq.store.damage.report import encode_next
from tandemmq.store.maintenance.manifest import CHUNK_BYTES, Manifest, Place, decode_manifest, describe, encode_manifest
from tandemmq.store.records.commands import encode_add, encode_remove, encode_trace
from tandemmq.store.records.headers import Header, encode_header
from tandemmq.store.records.marks import encode_clock
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tests.support.journal.in_memory import MemorySource

QUEUE = Destination(DestinationKind.QUEUE, "orders")
HEADER = Header(3, "a", "rotation", {11: 700}, (9, 10, 11, 12), length=1 << 16)


def add(number: int, time: int, body: bytes = b"x") -> bytes:
    message = Message(QUEUE, f"ID:p-1:1:1:{number}", body, BodyKind.BYTES, persistent=True, timestamp=time)
    return encode_add(message, encode_message(message))


def journal(*batches: list[bytes]) -> bytes:
    return b"".join(bytes(encode_batch(payloads)[0][: -len(END_RECORD)]) for payloads in batches) + END_RECORD


def described(content: bytes, **options: Any) -> Manifest:
    return describe(MemorySource(content), name="db-12.log", file=12, directory="/data", **options)


def test_a_manifest_has_the_counts_places_and_times() -> None:
    header = [encode_header(HEADER)]
    work = [encode_clock(1_000), add(1, 2_000), encode_remove(QUEUE, "ID:p-1:1:1:0")]
    last = [add(2, 5_000), encode_trace("a remark")]
    content = journal(header, work, last) + bytes(100)
    manifest = described(content, openwire=11)
    second = len(journal(header)) - 5
    third = len(journal(header, work)) - 5
    end = len(journal(header, work, last)) - 5
    assert manifest.header == HEADER
    assert (manifest.batches, manifest.records) == (3, 6)
    assert manifest.commands == {"TRACE": 3, "ADD_MESSAGE": 2, "REMOVE_MESSAGE": 1}
    assert manifest.first == Place(0, 28)
    assert manifest.last == Place(third, third + 28 + 5 + len(last[0]))
    assert second < third
    assert (manifest.first_time, manifest.last_time) == (1_000, 5_000)
    assert (manifest.bytes, manifest.counted, manifest.damaged) == (len(content), end, 0)
    assert manifest.sha256 == hashlib.sha256(content).hexdigest()
    assert manifest.counted_sha256 == hashlib.sha256(content[:end]).hexdigest()


def test_bytes_behind_the_end_that_a_later_file_names_do_not_count() -> None:
    kept = journal([add(1, 1_000)])[:-5]
    manifest = described(kept + journal([add(2, 2_000)]), end=len(kept))
    assert (manifest.records, manifest.counted, manifest.end) == (1, len(kept), len(kept))
    assert manifest.last_time == 1_000
    assert manifest.counted_sha256 == described(kept + bytes(200), end=len(kept)).counted_sha256


def test_the_end_marker_of_a_rotation_does_not_count() -> None:
    kept = journal([add(1, 1_000)])[:-5]
    content = kept + journal([encode_next(13)])
    assert described(content).counted == described(content, end=len(kept)).counted == len(kept)


def test_damage_is_measured_and_batches_after_it_count() -> None:
    content = bytearray(journal([add(1, 1_000)], [add(2, 2_000)], [add(3, 3_000)]))
    one = len(journal([add(1, 1_000)])) - 5
    content[one + 60] ^= 1
    manifest = described(bytes(content), openwire=11)
    assert (manifest.records, manifest.damaged, manifest.last_time) == (2, one, 3_000)


@pytest.mark.parametrize("content", [b"", b"nothing of a journal" * 10, bytes(100), journal([b"\0\xff\xff"])])
def test_a_file_that_is_no_journal_is_described_too(content: bytes) -> None:
    manifest = described(content)
    assert (manifest.bytes, manifest.header) == (len(content), None)
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_a_pause_is_offered_for_each_chunk() -> None:
    pauses: list[None] = []
    content = journal(*([add(number, 1, b"x" * 70_000)] for number in range(60)))
    described(content, pause=lambda: pauses.append(None))
    assert len(pauses) >= 2 * (len(content) // CHUNK_BYTES)


def test_a_manifest_is_read_again_and_later_fields_are_ignored() -> None:
    manifest = described(journal([encode_header(HEADER)], [add(1, 7)]), end=1_000, openwire=11)
    written = encode_manifest(manifest)
    assert decode_manifest(written) == manifest
    body = json.loads(written)
    assert (body["format"], body["broker"], body["epoch"]) == (1, "a", 3)
    assert decode_manifest(json.dumps({**body, "new": [1]}).encode()) == manifest


def test_other_json_is_no_manifest() -> None:
    body = json.loads(encode_manifest(described(journal([add(1, 7)]))))
    bad: list[bytes] = [b"", b"{", b"[]", b"null", b"\xff", json.dumps({**body, "format": 2}).encode()]
    bad += [
        json.dumps({name: value for name, value in body.items() if name != left}).encode() for left in ("end", "file")
    ]
    bad += [json.dumps({**body, "header": {"epoch": 1}}).encode(), json.dumps({**body, "first": 3}).encode()]
    for content in bad:
        assert decode_manifest(content) is None, content
