"""Comments leave blanks, and no text makes the reading slow."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.core.selector import compile_selector, grammar
from tandemmq.broker.core.selector.grammar import TOKENS_MAX, without_comments

# How Classic's scanner would have it, character by character: what stands in quotes first, then comments.
CLASSIC = re.compile(r"'[^']*'|(--[^\n\r]*(?:\r\n|\n|\r)|/\*[\s\S]*?\*/)")


def as_classic(text: str) -> str:
    open_text = re.search(r"^(?:[^']|'[^']*')*'(?=[^']*$)", text)
    assert open_text is None
    return CLASSIC.sub(lambda found: " " * len(found[0]) if found[1] else found[0], text)


@given(st.text(st.sampled_from("a'-/*\n\r "), max_size=40).filter(lambda text: text.count("'") % 2 == 0))
def test_what_stands_in_a_comment_is_blank_and_nothing_else_is(text: str) -> None:
    try:
        expected = as_classic(text)
    except AssertionError:
        return  # a comment has one of its quotes
    assert without_comments(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a --b\n= 1", "a     = 1"),
        ("a --b\r\n= 1", "a      = 1"),
        ("a = --1", "a = --1"),
        ("a /* it's */ = 1", "a            = 1"),
        ("a = '--' --'\n", "a = '--'     "),
        ("/*/ a */ b", "         b"),
        ("a /* 1", "a /* 1"),
    ],
)
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
