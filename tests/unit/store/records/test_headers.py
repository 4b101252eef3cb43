"""Facts of all headers of a journal together: the newest first, and none that is after an end."""

# proves: headers

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tandemmq.store.records.commands import encode_trace
from tandemmq.store.records.headers import (
    LINEAGE_MAX,
    MARK,
    NODE_NAME_MAX,
    VOTERS_MAX,
    EpochHistory,
    Header,
    SetHeader,
    decode_header,
    encode_header,
    header_body,
    read_epoch_history,
)


def header(epoch: int, ends: Mapping[int, int], *, reason: str = "promotion") -> Header:
    return Header(epoch, "a", reason, ends, (*sorted(ends), max(ends, default=0) + 1))


def epoch_history(headers: Mapping[int, Header], files: int) -> EpochHistory:
    return read_epoch_history(range(1, files + 1), headers.get)


def test_the_newest_header_that_names_a_file_says_where_it_ends() -> None:
    """Two promotions read file 1, and the late bytes of a zombie were there for one of them only."""
    told = epoch_history({1: header(1, {}), 2: header(2, {1: 300}), 3: header(3, {1: 80, 2: 500})}, 3)
    assert told.ends == {1: 80, 2: 500}
    told = epoch_history({1: header(1, {}), 2: header(2, {1: 70}), 3: header(2, {2: 40}, reason="rotation")}, 3)
    assert told.ends == {1: 70, 2: 40}, "one that nothing hides says what newer ones do not"


def test_a_header_behind_an_end_does_not_exist() -> None:
    """The writer of file 3 was suspended until another broker had read the file as empty; its later write has no
    effect."""
    told = epoch_history({1: header(1, {}), 3: header(2, {1: 900, 2: 900}), 4: header(2, {1: 50, 2: 60, 3: 0})}, 4)
    assert told.ends == {1: 50, 2: 60, 3: 0}
    assert sorted(told.headers) == [1, 4]
    assert told.epoch_at(3) == 1


@pytest.mark.parametrize(("file", "is_first"), [(1, True), (2, False), (3, True), (4, True), (5, True)])
def test_the_possible_fences_of_epochs_are_known(file: int, is_first: bool) -> None:
    """File 3 has no header and ends at 0: a promotion failed there. File 5, the last one, belongs to no epoch yet."""
    headers = {1: header(1, {}), 2: header(1, {1: 10}, reason="rotation"), 4: header(3, {2: 20, 3: 0})}
    assert epoch_history({**headers, 5: header(4, {4: 30})}, 5).first_of_epoch(file) is is_first


def test_a_file_of_activemq_fences_off_nobody() -> None:
    assert not epoch_history({3: header(1, {2: 40})}, 3).first_of_epoch(1)
    assert not epoch_history({3: header(1, {2: 40})}, 3).first_of_epoch(2)


def test_a_header_is_read_as_it_was_written() -> None:
    written = header(7, {1: 5, 2: 0})
    assert decode_header(encode_header(written)) == written


STORES = tuple(f"{number:032x}" for number in (0xA1, 0xB2, 0xC3))
SET = SetHeader("00" * 16, STORES, dict(zip(STORES, ("b1", "b2", "b3"), strict=True)), ((0, 3, 1042), (4, 9, 88123)))


def test_the_set_in_a_header_is_read_as_written() -> None:
    written = replace(header(12, {9: 88123}), set=SET)
    assert decode_header(encode_header(written)) == written
    assert header_body(written)["set"] == {
        "id": "00" * 16,
        "voters": list(STORES),
        "names": dict(SET.names),
        "lineage": [[0, 3, 1042], [4, 9, 88123]],
    }


def test_a_header_of_no_set_has_the_bytes_that_it_always_had() -> None:
    said = '{"epoch":7,"holder":"a","why":"promotion","ends":{"1":5},"files":[[1,2]],'
    said += '"openwire":11,"sync":"always","length":0}'
    assert encode_header(header(7, {1: 5})) == encode_trace(MARK + said)


def test_of_a_long_lineage_the_newest_ends_are_kept() -> None:
    lineage = tuple((epoch, epoch, 100) for epoch in range(LINEAGE_MAX + 7))
    decoded = decode_header(encode_header(replace(header(2_000, {}), set=replace(SET, lineage=lineage))))
    assert decoded is not None
    assert decoded.set == replace(SET, lineage=lineage[7:])


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "00"},
        {"id": 7},
        {"id": "g" * 32},
        {"voters": []},
        {"voters": [STORES[0], STORES[0]]},
        {"voters": [STORES[0] + "0"]},
        {"voters": [f"{number:032x}" for number in range(VOTERS_MAX + 1)]},
        {"voters": None},
        {"names": {"b1": STORES[0]}},
        {"names": {STORES[0]: "n" * (NODE_NAME_MAX + 1)}},
        {"names": {f"{number:032x}": "n" for number in range(VOTERS_MAX + 1)}},
        {"names": []},
        {"lineage": [[1, 1]]},
        {"lineage": [[2, 1, 1], [2, 2, 2]]},
        {"lineage": [[number, number, 1] for number in range(LINEAGE_MAX + 1)]},
    ],
)
def test_an_impossible_set_is_no_header(wrong: dict[str, object]) -> None:
    body = header_body(replace(header(12, {}), set=SET))
    payload = encode_trace(MARK + json.dumps(body | {"set": body["set"] | wrong}))
    assert decode_header(encode_trace(MARK + json.dumps(body))) is not None
    assert decode_header(payload) is None
