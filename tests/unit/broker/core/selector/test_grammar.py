"""Comments count as blanks. No selector is slow to parse, and no regular expression is slow to match."""

# proves: a-long-piece-takes-the-time-of-the-text

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.core.selector import compile_selector, grammar
from tandemmq.broker.core.selector.effort import EFFORT_MAX, Effort, TooMuchWork
from tandemmq.broker.core.selector.grammar import TOKENS_MAX, without_comments
from tandemmq.broker.core.selector.like import like
from tandemmq.broker.core.selector.patterns import CACHED_PATTERNS_MAX, TRANSITIONS_MAX, WAITING_MAX, Pattern
from tandemmq.broker.core.selector.syntax import PatternInvalid
from tests.support.compiled import REPLACES_A_METHOD

# How Classic's scanner would have it, character by character: what stands in quotes first, then comments.
CLASSIC = re.compile(r"'[^']*'|(--[^\n\r]*(?:\r\n|\n|\r)|/\*[\s\S]*?\*/)")


def as_classic(text: str) -> str:
    assert re.search(r"^(?:[^']|'[^']*')*'(?=[^']*$)", text) is None
    return CLASSIC.sub(lambda found: " " * len(found[0]) if found[1] else found[0], text)


@given(st.text(st.sampled_from("a'-/*\n\r "), max_size=40).filter(lambda text: text.count("'") % 2 == 0))
def test_only_comments_are_replaced_by_blanks(text: str) -> None:
    try:
        expected = as_classic(text)
    except AssertionError:
        return  # a comment has one of its quotes
    assert without_comments(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a --b\n= 1", "a     = 1"), ("a --b\r\n= 1", "a      = 1"), ("a = --1", "a = --1"),
        ("a /* it's */ = 1", "a            = 1"), ("a = '--' --'\n", "a = '--'     "), ("/*/ a */ b", "         b"),
        ("a /* 1", "a /* 1"),
    ],
)  # fmt: skip
def test_comments_end_with_their_line_or_with_their_sign(text: str, expected: str) -> None:
    assert without_comments(text) == expected


class Counting:
    """A compiled expression that counts the characters it looks at."""

    def __init__(self, expression: re.Pattern[str]) -> None:
        self.expression = expression
        self.seen = 0

    def search(self, text: str, position: int) -> re.Match[str] | None:
        found = self.expression.search(text, position)
        self.seen += (len(text) if found is None else found.end()) - position
        return found


class Text(str):
    """A text that counts the characters that are searched in it."""

    seen = 0

    def find(self, *arguments: str | int) -> int:  # type: ignore[override]
        found = str.find(self, *arguments)  # type: ignore[arg-type]
        self.seen += (len(self) if found < 0 else found) - int(arguments[1])
        return found


@pytest.mark.parametrize("piece", ["-", "/*", "--\n", "/**/", "'", "'--", "-/*\n", "--/*"])
def test_no_character_is_looked_at_more_than_a_few_times(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line_ends, beginnings = Counting(grammar._LINE_END), Counting(grammar._BEGINNINGS)
    monkeypatch.setattr(grammar, "_LINE_END", line_ends)
    monkeypatch.setattr(grammar, "_BEGINNINGS", beginnings)
    text = Text(piece * (60_000 // len(piece)))
    without_comments(text)
    assert line_ends.seen + beginnings.seen + text.seen <= 4 * len(text)


def test_a_selector_has_so_many_parts_at_most() -> None:
    compile_selector(f"a IN ({','.join(['1'.join(chr(39) * 2)] * (TOKENS_MAX // 2 - 2))})")
    with pytest.raises(
        ClientError, match=f"more than {TOKENS_MAX} words, texts and signs, at character {TOKENS_MAX + 1}"
    ):
        compile_selector("-" * 60_000)
    with pytest.raises(ClientError, match="more than"):
        compile_selector(f"a IN ({','.join(['1'.join(chr(39) * 2)] * TOKENS_MAX)})")


# ---- regular expressions


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
    ours = next(Pattern(pattern, Effort()).spans(text), None)
    found = re.compile(pattern, re.ASCII).search(text)
    # a repetition of what may be empty is where engines differ about the end, never about whether and where it begins
    assert (ours is None) is (found is None)
    compiled = Pattern(pattern, Effort())
    assert compiled.is_in(text) is (found is not None)
    assert compiled.is_in(text) is (found is not None), "what is remembered says the same"
    if ours is not None and found is not None:
        assert ours[0] == found.start()


@settings(deadline=None)
@given(st.sampled_from(["a", "a+", "ab|a", "a|ab", "[ab]+?", "b*", "a{2}", "(a|b)(b|c)", "\\b"]), texts)
def test_it_finds_all_that_python_finds(pattern: str, text: str) -> None:
    assert list(Pattern(pattern, Effort()).spans(text)) == [
        found.span() for found in re.finditer(pattern, text, re.ASCII)
    ]


@settings(deadline=None)
@given(st.text(alphabet="ab()[]{}*+?|^$\\.-,09di&:", max_size=12))
def test_any_text_is_a_pattern_or_refused_with_words(text: str) -> None:
    try:
        pattern = Pattern(text, Effort())
    except PatternInvalid:
        return
    pattern.is_in("ab1")


@pytest.mark.parametrize(
    ("pattern", "text", "is_found"),
    [
        ("a.c", "a\nc", False), ("c$", "abc\n", True), ("c$", "abc\n\n", False), ("c\\Z", "abc\r\n", True),
        ("c\\z", "abc\n", False), ("\\Ab", "ab", False), ("\\x41\\u0042\\t", "AB\t", True), ("[\\d\\-x]", "-", True),
        ("[a-]", "-", True), ("[^\\w]", "é", True), ("\\S\\D\\W", "ab-", True), ("a\\Bb", "ab", True),
        ("(?i)STRASSE[a-c]", "strasseB", True), ("x{0}y", "y", True), ("", "", True),
        ("^x{300}$", "x" * 300, True),
    ],
)  # fmt: skip
def test_a_pattern_matches_as_in_java(pattern: str, text: str, is_found: bool) -> None:
    assert Pattern(pattern, Effort()).is_in(text) is is_found


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(a*)*b", ".*.*.*x", "(.*a){15}x"])
def test_a_pattern_that_backtracks_takes_linear_time(pattern: str) -> None:
    effort = Effort()
    evil = Pattern(pattern, effort)
    evil.is_in("a" * 1_000)
    spent = []
    for length in (5_120, 7_680, 10_240):
        effort.begin()
        assert not evil.is_in("a" * length + "!")
        spent.append(EFFORT_MAX - left(effort))
    assert spent[2] - spent[1] == spent[1] - spent[0]
    effort.begin()
    with pytest.raises(TooMuchWork):
        evil.is_in("a" * 100_000 + "!")


@pytest.mark.parametrize("text", ["", "a{0}"])
def test_nested_repetitions_of_nothing_are_compiled_at_once(text: str) -> None:
    for _ in range(10):
        text = f"({text}){{1000}}"
    assert Pattern(f"^{text}x", Effort()).is_in("x")


def test_a_repetition_of_many_empty_groups_takes_no_work_for_them() -> None:
    text = f"^(x{'()' * 10_000}){{99}}y"
    assert calls_of(lambda: Pattern(text, Effort())) < 1_000_000, "they are read once, not 99 times"
    assert Pattern(text, Effort()).is_in("x" * 99 + "y")


def calls_of(function: Callable[[], object]) -> int:
    """Return how many calls the function and its callees make."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def left(effort: Effort) -> int:
    for spent in range(EFFORT_MAX + 1):
        try:
            effort.spend(1)
        except TooMuchWork:
            return spent
    raise AssertionError("there is no end to it")


def test_a_text_for_which_nothing_is_remembered_is_given_up() -> None:
    pattern = Pattern("(.*a){100}x", Effort())
    with pytest.raises(TooMuchWork):
        pattern.is_in("".join(chr(0x4E00 + number % (2 * TRANSITIONS_MAX)) + "a" for number in range(10_000)))


@pytest.mark.parametrize("flag", ["", "(?i)"])
def test_a_class_of_thousands_is_tried_like_one_character(flag: str) -> None:
    members = [chr(0x100 + 3 * number) for number in range(5_000)]
    pattern = Pattern(f"{flag}[{''.join(members)}\\d\\d-\\d]x", Effort())
    assert calls_of(lambda: pattern.is_in("\u0101" * 10)) < 2_000
    assert not pattern.is_in("\u0101" * 10)
    assert all(pattern.is_in(f"{each}x") for each in (*members[::500], members[-1], "7", "-"))
    assert not any(pattern.is_in(f"{chr(ord(each) + 1)}x") for each in members[::500])


def test_the_caches_are_bounded_for_each_pattern_and_for_all() -> None:
    many = [Pattern(f"(.*a){{{number % 50}}}x", Effort()) for number in range(CACHED_PATTERNS_MAX + 50)]
    for each in many:
        for start in range(0x4E00, 0x4E00 + 3 * TRANSITIONS_MAX, 500):
            each._effort.begin()
            with contextlib.suppress(TooMuchWork):
                each.is_in("".join(f"{chr(start + number)}a" for number in range(500)))
        assert sum(len(state.next) for state in each._states.values()) <= TRANSITIONS_MAX
        assert sum(len(state.waiting) for state in each._states.values()) <= 2 * WAITING_MAX
    assert [each for each in many if each._states] == many[-CACHED_PATTERNS_MAX:]


@REPLACES_A_METHOD
def test_str_find_has_no_piece_that_it_compares_at_every_place() -> None:
    class Text(str):
        def find(self, *given: object) -> int:
            raise AssertionError("it takes the product of both lengths")

    test = like("%aaabaaa%", None, Effort())
    assert test(Text("aaaaaaabaaaa"))
    assert not test(Text("aaaaaaa"))
    assert like("%ab%aaaaa%", None, Effort())("aabaabaaaaa")


@settings(deadline=None)
@given(st.text(alphabet="ab_", min_size=30, max_size=36), st.text(alphabet="ab", max_size=80))
def test_a_long_piece_is_found_where_a_regular_expression_finds_it(piece: str, text: str) -> None:
    """Shift-And."""
    expected = re.compile(piece.replace("_", ".")).search(text) is not None
    assert like(f"%{piece}%", None, Effort())(text) is expected


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
def test_unsupported_syntax_is_refused(pattern: str) -> None:
    with pytest.raises(PatternInvalid):
        Pattern(pattern, Effort())
