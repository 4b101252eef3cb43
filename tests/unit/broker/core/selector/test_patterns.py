"""Regular expressions that cannot be made slow: they find what Python's own engine finds."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.broker.core.selector.patterns import Pattern, TooMuchWork
from tandemmq.broker.core.selector.syntax import PatternInvalid

_atoms = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "\\d", "\\w", "\\b", "^", "$", "[a-c1]", "\\.", "(?:)"])


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeats = st.sampled_from(["", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,1}?", "{1,}"])
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda ways: f"({'|'.join(ways)})"),
        st.tuples(inner, repeats).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    )


patterns = st.recursive(_atoms, _grown, max_leaves=6)
texts = st.text(alphabet="abc1. \n", max_size=8)


@settings(deadline=None)
@given(patterns, texts)
def test_it_finds_what_python_finds(pattern: str, text: str) -> None:
    ours = next(Pattern(pattern).spans(text), None)
    found = re.compile(pattern, re.ASCII).search(text)
    # a repetition of what may be empty is where engines differ about the end, never about whether and where it begins
    assert (ours is None) is (found is None)
    assert Pattern(pattern).is_in(text) is (found is not None)
    if ours is not None and found is not None:
        assert ours[0] == found.start()


@settings(deadline=None)
@given(st.sampled_from(["a", "a+", "ab|a", "a|ab", "[ab]+?", "b*", "a{2}", "(a|b)(b|c)", "\\b"]), texts)
def test_it_finds_all_that_python_finds(pattern: str, text: str) -> None:
    assert list(Pattern(pattern).spans(text)) == [found.span() for found in re.finditer(pattern, text, re.ASCII)]


@settings(deadline=None)
@given(st.text(alphabet="ab()[]{}*+?|^$\\.-,09di&:", max_size=12))
def test_any_text_is_a_pattern_or_refused_with_words(text: str) -> None:
    try:
        pattern = Pattern(text)
    except PatternInvalid:
        return
    pattern.is_in("ab1")


@pytest.mark.parametrize(
    ("pattern", "text", "is_found"),
    [
        ("a.c", "a\nc", False),
        ("c$", "abc\n", True),
        ("c$", "abc\n\n", False),
        ("c\\Z", "abc\r\n", True),
        ("c\\z", "abc\n", False),
        ("\\Ab", "ab", False),
        ("\\x41\\u0042\\t", "AB\t", True),
        ("[\\d\\-x]", "-", True),
        ("[a-]", "-", True),
        ("[^\\w]", "é", True),
        ("\\S\\D\\W", "ab-", True),
        ("a\\Bb", "ab", True),
        ("(?i)STRASSE[a-c]", "strasseB", True),
        ("x{0}y", "y", True),
        ("", "", True),
    ],
)
def test_what_java_says(pattern: str, text: str, is_found: bool) -> None:
    assert Pattern(pattern).is_in(text) is is_found


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(a*)*b", ".*.*.*x", "(.*a){15}x"])
def test_what_takes_others_years_is_cheap_or_given_up(pattern: str) -> None:
    evil = Pattern(pattern)
    assert not evil.is_in("a" * 100 + "!")
    with pytest.raises(TooMuchWork):
        evil.is_in("a" * 100_000 + "!")


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "(" * 60 + ")" * 60,
            "(a{1000}){1000}",
            "((a{30}){30}){30}",
            "a{5000}",
            "a{2,1}",
            "(",
            ")",
            "(?<n>a)",
            "(?m)a",
        ),
        *("[", "[]", "[b-a]", "[[a]]", "[a&&b]", "*", "a**", "a{", "\\", "\\x4", "\\p{L}", "\\Qa\\E"),
    ],
)
def test_what_is_not_supported_is_refused(pattern: str) -> None:
    with pytest.raises(PatternInvalid):
        Pattern(pattern)
