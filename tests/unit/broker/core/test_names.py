"""Composite names and wildcards, and the tries that find what matches."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core import slices
from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.core.names import NAME_BYTES_MAX, PARTS_MAX, Pattern, is_wildcard, split
from tandemmq.broker.core.trie import NameTrie, PatternTrie
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


@pytest.mark.parametrize("name", ["A.B", "x" * NAME_BYTES_MAX])
def test_a_plain_destination_is_given_back_as_it_is(name: str) -> None:
    plain = Destination(TOPIC, name)
    (found,) = split(plain)
    assert found is plain


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
        ("A.B", ["A.B"], ["A", "A.B.C", "A.b"]), ("A.>", ["A", "A.B", "A.B.C", "A."], ["AB", "B.A", ""]),
        ("A.*", ["A.B", "A."], ["A", "A.B.C"]), ("*.B", ["A.B", ".B"], ["B", "A.A.B"]),
        ("A.*.>", ["A.B", "A.B.C.D"], ["A", "B.B"]), ("A.>.>", ["A", "A.B.C"], ["B"]),
        ("A.>.B", ["A.>.B"], ["A.B", "A.C.B"]), (">", ["A", "A.B", ""], []), ("*", ["A", ""], ["A.B"]),
        ("A.*.C", ["A.B.C"], ["A.C"]), ("A*", ["A*"], ["AB"]),
    ],
)  # fmt: skip
def test_a_pattern_matches(pattern: str, fitting: list[str], others: list[str]) -> None:
    assert [name for name in fitting + others if Pattern(pattern).matches(name)] == fitting
    assert is_wildcard(pattern) is (pattern not in ("A.B", "A.>.B", "A*"))


def test_patterns_are_equal_by_their_names() -> None:
    assert (Pattern("A.>"), hash(Pattern("A.>"))) == (Pattern("A.>"), hash(Pattern("A.>")))
    assert Pattern("A.>") != Pattern("A.*")


@pytest.mark.parametrize(
    "name", ["x" * (NAME_BYTES_MAX + 1), "é" * 257, "a" + "\1" * 90 + "b", "a,b" + "x" * 600, "\ud800"]
)
def test_a_name_that_the_store_cannot_keep_is_refused(name: str) -> None:
    with pytest.raises(ClientError) as refused:
        split(Destination(DestinationKind.QUEUE, name))
    assert (refused.value.kind, refused.value.is_fatal) == (ErrorKind.DESTINATION, False)


# ---- tries: what is found is what a pattern matches


WORDS = st.sampled_from(["A", "B", "C", ""])
NAMES = st.lists(WORDS, min_size=1, max_size=4).map(".".join)
PATTERNS = st.one_of(
    NAMES,
    st.builds(
        lambda words, end: ".".join([*words, *end]) or ">",
        st.lists(st.sampled_from(["A", "B", "*", ">"]), max_size=4),
        st.sampled_from([[], [">"], [">", ">"]]),
    ),
)


@given(names=st.lists(NAMES, max_size=20), gone=st.sets(NAMES, max_size=10), pattern=PATTERNS)
def test_names_are_found_by_a_pattern(names: list[str], gone: set[str], pattern: str) -> None:
    trie: NameTrie[str] = NameTrie()
    for name in names:
        trie.add(name, name)
    for name in gone.intersection(names):
        trie.remove(name, name)
    found = list(chain.from_iterable(trie.matching(Pattern(pattern))))
    assert sorted(found) == sorted({name for name in names if name not in gone and Pattern(pattern).matches(name)})


@given(patterns=st.lists(PATTERNS, max_size=20), gone=st.sets(PATTERNS, max_size=10), name=NAMES)
def test_patterns_are_found_by_a_name(patterns: list[str], gone: set[str], name: str) -> None:
    trie: PatternTrie[str] = PatternTrie()
    for pattern in patterns:
        trie.add(Pattern(pattern), pattern)
    for pattern in gone.intersection(patterns):
        trie.remove(Pattern(pattern), pattern)
    found = trie.matching(name)
    assert sorted(found) == sorted({each for each in patterns if each not in gone and Pattern(each).matches(name)})


def test_an_ended_destination_leaves_nothing() -> None:
    names: NameTrie[int] = NameTrie()
    patterns: PatternTrie[int] = PatternTrie()
    for number, name in enumerate(("A.B.C", "A.B", "A.B.D", "X")):
        names.add(name, number)
        patterns.add(Pattern(f"{name}.>"), number)
    names.add(".".join("Y" * 250), 4)
    assert names.count == 5, "a long name has one node, and one more where another leaves it"
    names.remove(".".join("Y" * 250), 4)
    for number, name in enumerate(("A.B.C", "A.B", "A.B.D", "X")):
        names.remove(name, number)
        patterns.remove(Pattern(f"{name}.>"), number)
    assert names._root.is_empty
    assert patterns._root.is_empty
    assert (names.count, patterns.count) == (0, 0)
    names.remove("A.B", 1)
    with pytest.raises(KeyError):
        patterns.remove(Pattern("A.B.>"), 1)


def test_names_may_be_added_and_removed_during_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "ITEMS", 7)
    trie: NameTrie[int] = NameTrie()
    for number in range(100):
        trie.add(f"A.{number}", number)
    found = []
    for numbers in trie.matching(Pattern("A.>")):
        found += numbers
        assert len(numbers) <= 7
        for number in numbers:
            trie.add(f"A.x.{number}", 1000 + number)
            if number < 1000:
                trie.remove(f"A.{number}", number)
    assert [number for number in found if number < 1000] == list(range(100))
    names: NameTrie[int] = NameTrie()
    for number in range(100):
        names.add(f"{number}.a", number)
    assert len(list(names.matching(Pattern("*.b")))) > 100 // 7, "what is not found takes steps, too"
