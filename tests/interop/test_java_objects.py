"""The Java objects of KahaDB's journal: ActiveMQ's own classes read what we write, and write what we read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.store.kahadb.java_objects import AuditImage, decode_audit, encode_audit
from tests.support.interop.java_programs import program

pytestmark = pytest.mark.service


Ask = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def ask(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Ask:
    run = program(require_service, tmp_path_factory.mktemp("classes"), "Audit")

    def answers(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        return [json.loads(line) for line in run(text=lines).splitlines()]

    return answers


def test_the_same_bytes_both_ways(ask: Ask) -> None:
    audits: list[dict[str, Any]] = [
        {"depth": 2048, "producers": 64, "ids": [f"ID:a-{n % 70}-1:1:1:{n * 37}" for n in range(1000)]},
        {"depth": 100, "producers": 3, "ids": [f"ID:é-{n % 2}-1:1:1:{n * 3}" for n in range(1000)]},
        {"depth": 2048, "producers": 64, "ids": [f"p:{n}" for n in range(3000)]},
        {"depth": 0, "producers": 0, "ids": []},
    ]
    written = ask([{"do": "write audit", **a} for a in audits])
    payloads = [bytes.fromhex(answer["bytes"]) for answer in written]
    for audit, payload in zip(audits, payloads, strict=True):
        image = decode_audit(payload)
        assert (image.depth, image.producers_max) == (audit["depth"], audit["producers"])
        assert encode_audit(image) == payload
    first, last = decode_audit(payloads[2]).windows["p"]
    assert [first + bit for bit in range(last.bit_length()) if not last >> bit & 1] == []
    assert first + last.bit_length() == 3000


def test_activemq_reads_an_audit_of_ours(ask: Ask) -> None:
    image = AuditImage(500, 8, {"ID:x-1:1:1": (640, 0b1011), "ID:ü-2:1:1": (64, (1 << 300) - 1)})
    (audit,) = ask([{"do": "read audit", "bytes": encode_audit(image).hex()}])
    assert (audit["depth"], audit["producers"]) == (500, 8)
    assert [(name, first, last) for name, first, _, last in audit["windows"]] == [
        ("ID:x-1:1:1", 640, 643),
        ("ID:ü-2:1:1", 64, 363),
    ]
