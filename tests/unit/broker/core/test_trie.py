"""What a trie finds is what a pattern matches, one name after the other."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core import slices
from tandemmq.broker.core.names import Pattern
from tandemmq.broker.core.trie import NameTrie, PatternTrie

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


def test_what_is_gone_leaves_nothing() -> None:
    names: NameTrie[int] = NameTrie()
    patterns: PatternTrie[int] = PatternTrie()
    for number, name in enumerate(("A.B.C", "A.B", "A.B.D", "X")):
        names.add(name, number)
        patterns.add(Pattern(f"{name}.>"), number)
    for number, name in enumerate(("A.B.C", "A.B", "A.B.D", "X")):
        names.remove(name, number)
        patterns.remove(Pattern(f"{name}.>"), number)
    assert names._root.is_empty
    assert patterns._root.is_empty
    names.remove("A.B", 1)
    with pytest.raises(KeyError):
        patterns.remove(Pattern("A.B.>"), 1)


def test_names_may_come_and_go_while_they_are_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
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
