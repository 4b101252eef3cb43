"""Amounts and the ticks of an axis; needs no Spark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.pipeline.scale import amount, ticks


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (1536, "bytes", "1.5 KiB"),
        (0, "ms", "0 ms"),
        (0.25, "ms", "0.2 ms"),
        (2300, "ms", "2.3 s"),
        (60_000, "ms", "1 min"),
        (5_400_000, "ms", "1.5 h"),
        (3 * 86_400_000, "ms", "3 d"),
        (1200, "messages", "1,200 messages"),
        (1.25, "messages/s", "1.2 messages/s"),
    ],
)
def test_an_amount_is_in_the_unit_that_fits(value: float, unit: str, expected: str) -> None:
    assert amount(value, unit) == expected


def test_ticks_are_round_in_their_unit() -> None:
    assert [text for _, text in ticks(5 << 30, "bytes", 6)] == [f"{number} GiB" for number in range(6)]
    assert [text for _, text in ticks(100_000, "ms", 6)] == ["0 s", "20 s", "40 s", "60 s", "80 s", "100 s"]
    assert [text for _, text in ticks(12_345, "messages", 3)] == ["0", "5,000", "10,000"]


@given(st.floats(1, 1e18), st.sampled_from(("bytes", "ms", "messages")), st.integers(1, 12))
def test_there_are_no_more_ticks_than_have_room(greatest: float, unit: str, most: int) -> None:
    values = [value for value, _ in ticks(greatest, unit, most)]
    assert values[0] == 0
    assert values == sorted(set(values))
    assert values[-1] <= greatest
    assert len(values) <= most + 1
