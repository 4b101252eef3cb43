"""Entry that applies to a destination, and its effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandemmq.broker.core import policies
from tandemmq.broker.core.policies import (
    DeadLetterKind,
    DeadLetterStrategy,
    DestinationPolicy,
    Policies,
    PolicyEntry,
    RedeliveryPolicy,
)
from tandemmq.store.records.message import Destination, DestinationKind

QUEUE, TOPIC = DestinationKind.QUEUE, DestinationKind.TOPIC
DEFAULT = DestinationPolicy()


def entry(pattern: str, kind: DestinationKind = QUEUE) -> PolicyEntry:
    return PolicyEntry(kind, pattern, replace(DEFAULT, memory_limit=len(pattern)))


def queue(name: str) -> Destination:
    return Destination(QUEUE, name)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("A.B", "A.B"), ("A.C", "A.*"), ("B.B", "*.B"), ("B.C.D", ">"), ("A.B.C", "A.>"), ("A", "A.>"),
        ("A.C.D", "A.>"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("step", [1, -1])
def test_the_most_specific_entry_holds_whatever_the_order(name: str, pattern: str, step: int) -> None:
    entries = [entry(each) for each in (">", "A.>", "A.*", "*.B", "A.B")][::step]
    found = Policies(entries).entry(queue(name))
    assert found is not None
    assert found.pattern == pattern


def test_an_entry_holds_for_its_kind_alone_and_the_default_for_what_has_none() -> None:
    of = Policies([entry("A", TOPIC)], replace(DEFAULT, queue_prefetch=7)).of
    assert (of(queue("A")).queue_prefetch, of(Destination(TOPIC, "A")).memory_limit) == (7, 1)
    assert of(Destination(DestinationKind.TEMP_TOPIC, "A")).memory_limit is None


def test_the_cache_of_policies_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "REMEMBERED_MAX", 3)
    asked = Policies([entry("A.*")])
    for n in range(10):
        assert asked.of(queue(f"A.{n}")).memory_limit == 3
        assert len(asked._remembered) <= 3


# ---- dead letters


@pytest.mark.parametrize(
    ("strategy", "destination", "name"),
    [
        (DeadLetterStrategy(), queue("a"), "ActiveMQ.DLQ.Queue.a"),
        (DeadLetterStrategy(), Destination(TOPIC, "a"), "ActiveMQ.DLQ.Topic.a"),
        (DeadLetterStrategy(queue_prefix="D.", queue_suffix=".x"), queue("a"), "D.a.x"),
        (DeadLetterStrategy(DeadLetterKind.SHARED), Destination(TOPIC, "a"), "ActiveMQ.DLQ"),
        (DeadLetterStrategy(DeadLetterKind.SHARED, dead_letter_queue="D"), queue("a"), "D"),
        (DeadLetterStrategy(DeadLetterKind.DISCARDING), queue("a"), None),
    ],
)
def test_the_targets_of_dead_letters(strategy: DeadLetterStrategy, destination: Destination, name: str | None) -> None:
    assert strategy.target(destination) == (None if name is None else queue(name))


def test_a_strategy_says_what_is_worth_keeping() -> None:
    usual, all_of_it = DeadLetterStrategy(), DeadLetterStrategy(process_non_persistent=True)
    assert usual.wants(is_persistent=True, is_expired=True)
    assert not usual.wants(is_persistent=False, is_expired=False)
    assert all_of_it.wants(is_persistent=False, is_expired=False)
    assert not DeadLetterStrategy(process_expired=False).wants(is_persistent=True, is_expired=True)
    assert not DeadLetterStrategy(DeadLetterKind.DISCARDING).wants(is_persistent=True, is_expired=False)


# ---- redelivery: the delays are what org.apache.activemq.RedeliveryPolicy of 5.17 gives one after the other


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (RedeliveryPolicy(), [0, 0, 0]),
        (RedeliveryPolicy(6, 1000, 200), [1000, 200, 200]),
        (RedeliveryPolicy(6, 50, 700, True, 5.0, 100_000), [50, 250, 1250, 6250, 31_250, 100_000]),
        (RedeliveryPolicy(6, 0, 1000, True, 2.0), [0, 1000, 2000, 4000]),
        (RedeliveryPolicy(6, 10, 500, True, 100.0, 100), [10, 500, 500]),
        (RedeliveryPolicy(6, 10, 500, True, 1.0), [10, 500, 500]),
    ],
)
def test_delays_grow_as_activemqs(policy: RedeliveryPolicy, delays: list[int]) -> None:
    assert [policy.delay(n) for n in range(len(delays))] == delays


def test_a_delay_has_an_end_however_often_a_message_came_again() -> None:
    assert RedeliveryPolicy(None, 1, 1, True, 1e300).delay(1_000_000) == policies.DELAY_MAX


def test_redeliveries_end_or_do_not() -> None:
    assert not RedeliveryPolicy(2).is_over(1)
    assert RedeliveryPolicy(2).is_over(2)
    assert not RedeliveryPolicy(None).is_over(10**9)


# ---- lives and prefetch


@pytest.mark.parametrize(
    ("ceiling", "override", "value", "held"),
    [
        (0, 0, 0, 0), (0, 0, 1_500, 1_500),
        (100, 0, 0, 0),  # what is to live for ever is not ended by a ceiling
        (100, 0, 1_500, 1_100), (100, 0, 1_050, 1_050), (0, 200, 0, 1_200), (0, 200, 1_500, 1_500),
        (100, 200, 0, 1_100),
    ],
)  # fmt: skip
def test_a_messages_end_is_bounded(ceiling: int, override: int, value: int, held: int) -> None:
    policy = replace(DEFAULT, ttl_ceiling=ceiling, zero_expiration_override=override)
    assert policy.expiration(1_000, value) == held


def test_a_clients_wish_holds_but_not_what_it_says_unasked() -> None:
    policy = DestinationPolicy(queue_prefetch=1, queue_browser_prefetch=2, topic_prefetch=3, durable_topic_prefetch=4)
    assert [policy.prefetch(asked, is_topic=False) for asked in (None, 1000, 5, 0)] == [1, 1, 5, 0]
    assert [policy.prefetch(asked, is_topic=False, is_browser=True) for asked in (None, 500, 5)] == [2, 2, 5]
    assert [policy.prefetch(asked, is_topic=True) for asked in (None, 32_767, 5)] == [3, 3, 5]
    assert [policy.prefetch(asked, is_topic=True, is_durable=True) for asked in (None, 100, 5)] == [4, 4, 5]
