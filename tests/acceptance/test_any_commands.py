"""A running broker against connections that say anything, damaged or valid; ``python -m tests.support.fuzz.commands``
and ``python -m tests.support.fuzz.valid_frames`` go on longer."""

from __future__ import annotations

import random

import pytest

from tests.conftest import IS_THOROUGH
from tests.support.fuzz import commands, valid_frames

ROUNDS_MAX = 10


@pytest.mark.timeout(120)
def test_a_broker_survives_any_commands() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    commands.run(seed, 200)


@pytest.mark.timeout(600)
def test_valid_frames_in_any_order_lose_nothing_and_harm_nobody() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    examples, steps = (6, 60) if IS_THOROUGH else (2, 40)
    print(f"seed {seed}, {examples} examples, {steps} steps")
    wanted = {"stomp send", "stomp acknowledge", "openwire send", "openwire acknowledge"}
    for number in range(ROUNDS_MAX):  # chance may leave something out of a few short examples
        valid_frames.run(seed + number, examples, steps)
        done = {what for what in valid_frames.DONE if ":" not in what}
        if wanted <= done:
            break
    assert wanted <= done
