"""Which entry holds, and how redeliveries are delayed: what ActiveMQ's own classes say of thousands of cases."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tandemmq.broker.core.policies import DestinationPolicy, Policies, PolicyEntry, RedeliveryPolicy
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.prove import SEED

CASES = 3_000

Ask = Callable[[list[str]], list[str]]


@pytest.fixture(scope="module")
def ask(run_java: Callable[..., list[str]]) -> Ask:
    return lambda lines: run_java("Policies.java", input="".join(f"{line}\n" for line in lines))


@pytest.mark.service
def test_the_entry_that_holds_is_activemqs(ask: Ask) -> None:
    """Without "*": of patterns with it ActiveMQ takes one by chance (docs/policies.md)."""
    seed = SEED
    print(f"seed {seed} (TANDEMMQ_SEED)")
    dice = random.Random(seed)
    cases = []
    for _ in range(CASES):
        patterns = set()
        for _ in range(dice.randint(1, 6)):
            words = [dice.choice("AB") for _ in range(dice.randint(1, 4))]
            patterns.add(".".join([*words[:-1], ">"] if dice.random() < 0.4 else words))
        name = ".".join(dice.choice("AB") for _ in range(dice.randint(1, 4)))
        cases.append((name, sorted(patterns, key=lambda _: dice.random())))
    theirs = ask([f"entry {name} {' '.join(patterns)}" for name, patterns in cases])
    assert len(theirs) == CASES
    found = 0
    for (name, patterns), text in zip(cases, theirs, strict=True):
        ours = Policies(PolicyEntry(DestinationKind.QUEUE, each, DestinationPolicy()) for each in patterns)
        entry = ours.entry(Destination(DestinationKind.QUEUE, name))
        assert (entry.pattern if entry else "-") == text, f"{name} among {patterns}, seed {seed}"
        found += entry is not None
    assert found > CASES // 10


@pytest.mark.service
def test_delays_are_activemqs(ask: Ask) -> None:
    seed = SEED
    print(f"seed {seed} (TANDEMMQ_SEED)")
    dice = random.Random(seed)
    cases = []
    for _ in range(CASES):
        most = dice.choice([None, 100, 5_000])
        factor = dice.choice([0.5, 1.0, 1.5, 2.0, 5.0])
        delays = dice.choice([0, 10, 1_000]), dice.choice([1, 70, 1_000])
        cases.append(RedeliveryPolicy(6, *delays, dice.random() < 0.7, factor, most))
    lines = [
        f"delays {one.initial_redelivery_delay} {one.redelivery_delay} {str(one.use_exponential_back_off).lower()} "
        f"{one.back_off_multiplier} {-1 if one.maximum_redelivery_delay is None else one.maximum_redelivery_delay}"
        for one in cases
    ]
    for policy, text in zip(cases, ask(lines), strict=True):
        assert " ".join(str(policy.delay(n)) for n in range(8)) == text, f"{policy}, seed {seed}"
