"""Composite names and wildcards."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.core.names import NAME_BYTES_MAX, PARTS_MAX, Pattern, is_wildcard, split
from tandemmq.store.records.message import Destination, DestinationKind

QUEUE, TOPIC, TEMP_QUEUE, TEMP_TOPIC = DestinationKind


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A", [(QUEUE, "A")]),
        ("A,B", [(QUEUE, "A"), (QUEUE, "B")]),
        ("B,topic://A", [(QUEUE, "B"), (TOPIC, "A")]),
        (
            "topic://A, queue://A ,temp-queue://ID:1,temp-topic://ID:1",
            [(TOPIC, "A"), (QUEUE, "A"), (TEMP_QUEUE, "ID:1"), (TEMP_TOPIC, "ID:1")],
        ),
        ("A,queue://A,A", [(QUEUE, "A")]),
        (",A,,B,", [(QUEUE, "A"), (QUEUE, "B")]),
        ("A?consumer.prefetchSize=1,B", [(QUEUE, "A")]),
        ("A,topic://B?consumer.prefetchSize=1", [(QUEUE, "A"), (TOPIC, "B")]),
        (" A ", [(QUEUE, "A")]),
        ("topic://A", [(QUEUE, "topic://A")]),
        ("A.>,B.*", [(QUEUE, "A.>"), (QUEUE, "B.*")]),
    ],
)
def test_a_name_says_where(name: str, expected: list[tuple[DestinationKind, str]]) -> None:
    assert list(split(Destination(QUEUE, name))) == [Destination(*each) for each in expected]


def test_a_part_has_the_kind_of_the_whole() -> None:
    assert split(Destination(TOPIC, "A,queue://B")) == (Destination(TOPIC, "A"), Destination(QUEUE, "B"))


def test_a_plain_destination_is_given_back_as_it_is() -> None:
    plain = Destination(TOPIC, "A.B")
    assert split(plain)[0] is plain


@pytest.mark.parametrize(
    "name", ["", " ", ",", "?x=1", "A,topic://", "A,queue:// ", ",".join(map(str, range(PARTS_MAX + 1)))]
)
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ClientError) as caught:
        split(Destination(QUEUE, name))
    assert caught.value.kind is ErrorKind.DESTINATION
    assert not caught.value.is_fatal


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("A.B", ["A.B"], ["A", "A.B.C", "A.b"]),
        ("A.>", ["A", "A.B", "A.B.C", "A."], ["AB", "B.A", ""]),
        ("A.*", ["A.B", "A."], ["A", "A.B.C"]),
        ("*.B", ["A.B", ".B"], ["B", "A.A.B"]),
        ("A.*.>", ["A.B", "A.B.C.D"], ["A", "B.B"]),
        ("A.>.>", ["A", "A.B.C"], ["B"]),
        ("A.>.B", ["A.>.B"], ["A.B", "A.C.B"]),
        (">", ["A", "A.B", ""], []),
        ("*", ["A", ""], ["A.B"]),
        ("A.*.C", ["A.B.C"], ["A.C"]),
        ("A*", ["A*"], ["AB"]),
    ],
)
def test_a_pattern_matches(pattern: str, fitting: list[str], others: list[str]) -> None:
    assert [name for name in fitting + others if Pattern(pattern).matches(name)] == fitting
    assert is_wildcard(pattern) is (pattern not in ("A.B", "A.>.B", "A*"))


def test_patterns_are_equal_by_their_names() -> None:
    assert Pattern("A.>") == Pattern("A.>")
    assert hash(Pattern("A.>")) == hash(Pattern("A.>"))
    assert Pattern("A.>") != Pattern("A.*")


@pytest.mark.parametrize(
    "name", ["x" * (NAME_BYTES_MAX + 1), "é" * 257, "a" + "\1" * 90 + "b", "a,b" + "x" * 600, "\ud800"]
)
def test_a_name_that_the_store_cannot_keep_is_refused(name: str) -> None:
    with pytest.raises(ClientError) as refused:
        split(Destination(DestinationKind.QUEUE, name))
    assert (refused.value.kind, refused.value.is_fatal) == (ErrorKind.DESTINATION, False)


def test_the_longest_name_is_kept() -> None:
    longest = Destination(DestinationKind.QUEUE, "x" * NAME_BYTES_MAX)
    assert split(longest) == (longest,)
