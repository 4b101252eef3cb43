"""Escapes of the three versions, and back."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.protocols.stomp.dialects import V10, V11, V12, Dialect


def one_by_one(dialect: Dialect, text: str) -> str | None:
    """Return ``text`` without escapes, by the rules of the specification; None: a sequence is undefined."""
    known = {"\\": "\\", "n": "\n", "c": ":"} | ({"r": "\r"} if dialect is V12 else {})
    found = ""
    signs = iter(text)
    for sign in signs:
        if sign == "\\":
            escaped = known.get(next(signs, ""))
            if escaped is None:
                return None
            sign = escaped
        found += sign
    return found


@pytest.mark.parametrize("dialect", [V11, V12], ids=lambda dialect: dialect.version)
@given(text=st.text("\\ncr:x", max_size=12))
def test_escapes_are_undone_from_left_to_right(dialect: Dialect, text: str) -> None:
    expected = one_by_one(dialect, text)
    if expected is not None:
        assert dialect.unescape(text) == expected
        return
    with pytest.raises(ClientError, match="Undefined escape sequence"):
        dialect.unescape(text)


def test_very_many_escapes_are_undone_by_few_calls() -> None:
    text = r"\n\c\\" * 10_000
    calls = 0

    def count(frame: object, event: str, what: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        V12.unescape(text)
    finally:
        sys.setprofile(None)
    assert calls < 30


@pytest.mark.parametrize("dialect", [V10, V11, V12], ids=lambda dialect: dialect.version)
@given(value=st.text(max_size=20))
def test_no_value_can_add_a_header_or_end_the_frame(dialect: Dialect, value: str) -> None:
    assert not set(dialect.escape(value)) & {"\n", "\0"}


@pytest.mark.parametrize("dialect", [V10, V11, V12], ids=lambda dialect: dialect.version)
@pytest.mark.parametrize(
    "id", ["ID:a\\b\n:1", "ID:a:7", "ID:a:8", "7", ":7", "ID:a:", "ID:a:\0", "ID:a:1\r", "ID:a:\u0667", ""]
)
def test_an_id_is_escaped_as_any_other_value(dialect: Dialect, id: str) -> None:
    for _ in range(2):
        assert dialect.message_id(id) == dialect.escape(id)
