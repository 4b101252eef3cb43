"""What a second core gives: that each way reads, and is counted."""

from __future__ import annotations

import pytest

from tandemmq.bench.cores import WAYS
from tandemmq.bench.reading import FRAMES, read


@pytest.mark.parametrize("way", WAYS)
def test_two_at_once_have_a_rate(way: str) -> None:
    rate = WAYS[way](0.05)

    assert rate is None or rate > FRAMES


def test_one_reads_whole_rounds() -> None:
    assert read(0.01) % FRAMES == 0
