"""A running broker against connections that say anything; ``python -m tests.fuzz.commands`` goes on longer."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.commands import run


@pytest.mark.timeout(120)
def test_a_broker_survives_any_commands() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    run(seed, 200)
