"""Times and sizes as operators write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.config.units import count, milliseconds, show_milliseconds, show_size, size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (5000, 5000),
        ("5000", 5000),
        ("250ms", 250),
        ("5s", 5000),
        ("1.5s", 1500),
        ("2min", 120_000),
        (" 5 S ", 5000),
        ("1h", 3_600_000),
    ],
)
def test_a_time_is_read(text: object, value: int) -> None:
    assert milliseconds(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (1024, 1024),
        ("1024", 1024),
        ("64kb", 65_536),
        ("32mb", 33_554_432),
        ("32 MB", 33_554_432),
        ("1MiB", 1 << 20),
        ("0.5kb", 512),
    ],
)
def test_a_size_is_read(text: object, value: int) -> None:
    assert size(text) == value


@pytest.mark.parametrize(
    "text", ["", "soon", "5 parsecs", "-1", -1, "1.5", 1.5, True, None, "5s5s", "s", "1e3", [], "٣s"]
)
@pytest.mark.parametrize("read", [milliseconds, size, count])
def test_what_cannot_be_meant_is_refused_with_what_was_expected(read, text: object) -> None:
    with pytest.raises(ValueError, match=r"^a (time|size|whole number)"):
        read(text)


@pytest.mark.parametrize("text", ["5s", "1kb"])
def test_a_count_has_no_unit(text: str) -> None:
    with pytest.raises(ValueError, match="a whole number"):
        count(text)


@given(st.integers(0, 1 << 50))
def test_what_is_shown_reads_back_as_the_same(value: int) -> None:
    assert milliseconds(show_milliseconds(value)) == value
    assert size(show_size(value)) == value
