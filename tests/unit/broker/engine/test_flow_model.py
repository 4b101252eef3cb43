"""Each message that is sent while limits come and go arrives once, in its producer's order, and no receipt precedes
it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.policies import DestinationPolicy, Policies, PolicyEntry
from tandemmq.store.records.message import Destination, DestinationKind

QUEUES = [Destination(DestinationKind.QUEUE, name) for name in ("narrow", "wide")]
NARROW = PolicyEntry(DestinationKind.QUEUE, "narrow", DestinationPolicy(memory_limit=2_000))

_number = st.integers(0, 1)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), _number, _number, st.booleans()),
        st.tuples(st.just("send in a transaction"), _number, _number, st.booleans()),
        st.tuples(st.just("commit"), _number),
        st.tuples(st.just("take"), _number),
        st.tuples(st.just("store is full"), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([0.001, 0.02, 1])),
        st.tuples(st.just("turn")),
    ),
    max_size=60,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # it makes harnesses, and has none
@given(_steps)
# A commit, and what its client sends behind it, wait for the store and for memory, and change lines.
@example(
    [
        ("send in a transaction", 1, 0, False), ("store is full", True), ("send in a transaction", 1, 0, False),
        ("send in a transaction", 1, 1, True), ("send in a transaction", 1, 0, False),
        ("send in a transaction", 0, 1, False), ("send", 1, 0, False), ("send", 0, 1, True), ("send", 0, 1, False),
    ]
)  # fmt: skip
# What waits takes all of the budget, while nothing is in its queue any more.
@example([("send", 0, 0, False)] * 9)
# The transaction fills the broker's memory, and its commit waits behind a send that waits for that memory.
@example([("send", 0, 0, False)] * 4 + [("send in a transaction", 0, 0, False)] * 5)
@example([("send", 1, 0, False)] * 4 + [("send in a transaction", 0, 0, False)] * 5)
def test_no_message_is_lost_doubled_or_overtaken(
    make_harness: Callable[..., Any], steps: list[tuple[Any, ...]]
) -> None:
    harness = make_harness(Policies([NARROW]), memory_limit=4_000)
    producers = [harness.client(), harness.client()]
    consumer = harness.client()
    sent: dict[tuple[int, int, bool], list[str]] = defaultdict(list)  # producer, queue, persistent
    opened: dict[int, list[tuple[tuple[int, int, bool], str]]] = {}
    count = 0

    def take(queue: int) -> None:
        consumer.subscribe(f"s{queue}", QUEUES[queue], AckMode.AUTO).turn().unsubscribe(f"s{queue}")

    def commit(number: int) -> None:
        for line, body in opened.pop(number):
            sent[line].append(body)
        producers[number].commit(f"t{number}", receipt=f"commit {count}")

    for step in steps:
        count += 1
        if step[0].startswith("send"):
            _, number, queue, is_persistent = step
            if step[0] != "send" and number in opened:
                # What is not stored becomes visible with what is: later than what is sent after it without.
                is_persistent = opened[number][0][0][2]
            body = f"{number} {queue} {is_persistent} {count}".ljust(300)
            transaction = None
            if step[0] == "send":
                sent[number, queue, is_persistent].append(body)
            else:
                transaction = f"t{number}"
                if number not in opened:
                    producers[number].begin(transaction)
                opened.setdefault(number, []).append(((number, queue, is_persistent), body))
            producers[number].send(
                body, QUEUES[queue], persistent=is_persistent, transaction=transaction, receipt=f"{count}"
            )
        elif step[0] == "commit" and step[1] in opened:
            commit(step[1])
        elif step[0] == "take":
            take(step[1])
        elif step[0] == "store is full":
            harness.store.bytes_max = 0 if step[1] else 1 << 30
        elif step[0] == "wait":
            harness.wait(step[1])
        elif step[0] == "turn":
            harness.turn()

    harness.store.bytes_max = 1 << 30
    for number in list(opened):
        commit(number)
    for queue in (0, 1):
        consumer.subscribe(f"s{queue}", QUEUES[queue], AckMode.AUTO)
    harness.wait(len(steps) + 3)

    got: dict[tuple[int, int, bool], list[str]] = defaultdict(list)
    for body in consumer.bodies:
        number, queue, is_persistent, _ = body.split()
        got[int(number), int(queue), is_persistent == "True"].append(body)
    assert got == {line: bodies for line, bodies in sent.items() if bodies}
    assert [producer.errors for producer in producers] == [[], []]
    counts = harness.counts
    assert (counts["sends_waiting"], counts["sends_waiting_bytes"], counts["blocked_producers"]) == (0, 0, 0)
    assert counts["memory_non_persistent_bytes"] == counts["memory_stored_bytes"] == 0
    assert (counts["memory_transactions_bytes"], harness.engine.flow._lines) == (0, {})
