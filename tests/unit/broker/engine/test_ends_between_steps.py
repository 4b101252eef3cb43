"""A queue that ends between the routing steps of a message for it begins again. The results of these steps also decide
for which operations a transaction must wait.
"""

# proves: a-queue-that-ended-begins-again

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import RemoveDestination
from tandemmq.broker.core.selector import compile_selector
from tandemmq.broker.core.virtual_destinations import Composite, Forward, VirtualDestinations
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import ORDERS, PRICES, Harness, MakeHarness
from tests.unit.broker.engine.test_steps_by_the_clock import AT_ONCE_MAX, SLOW, WANTED, Slow

SLOWLY = tuple(
    Forward(Destination(DestinationKind.QUEUE, f"slow{number}"), compile_selector(SLOW)) for number in range(20)
)
INNER = Destination(DestinationKind.QUEUE, "inner")
ALL = Destination(DestinationKind.QUEUE, "all")
#: Routing to ORDERS and to INNER takes several steps. ALL forwards to FIRST and to INNER.
FIRST = Destination(DestinationKind.QUEUE, "first")
VIRTUAL = VirtualDestinations(
    (
        Composite(DestinationKind.QUEUE, ORDERS.name, SLOWLY, forward_only=False),
        Composite(DestinationKind.QUEUE, ALL.name, (Forward(FIRST), Forward(INNER))),
        Composite(DestinationKind.QUEUE, INNER.name, SLOWLY),
    )
)


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("transaction", [None, "t"])
@pytest.mark.parametrize(
    ("to", "gone"), [(ORDERS, ORDERS), (ALL, FIRST), (Destination(DestinationKind.QUEUE, "first,orders"), FIRST)]
)
def test_a_confirmed_message_is_stored(
    make_harness: MakeHarness,
    monkeypatch: pytest.MonkeyPatch,
    to: Destination,
    gone: Destination,
    transaction: str | None,
    persistent: bool,
) -> None:
    Slow(monkeypatch)
    harness = make_harness(virtual_destinations=VIRTUAL)
    sender = harness.client()
    harness.client().subscribe("s", gone).turn().vanish()
    if transaction is not None:
        sender.begin(transaction)
    sender.send("1", to, persistent=persistent, receipt="r", transaction=transaction)
    if transaction is not None:
        sender.commit(transaction, "end")
    harness.turn(3)
    queue = harness.destinations.by_name[gone]
    harness.client().handle(RemoveDestination(gone))
    harness.turn()
    assert queue.is_dropped, "it ended in between"
    assert sender.receipts[-1:] == ["r" if transaction is None else "end"]
    assert harness.client().subscribe("s", gone).turn().bodies == ["1"]


def test_a_full_store_concerns_no_transaction_of_which_it_keeps_nothing(harness: Harness) -> None:
    """The earlier steps have evaluated the selector of the durable subscription."""
    harness.client("c").subscribe("d", PRICES, durable_name="d", selector=SLOW).vanish()
    harness.store.bytes_max = 0
    for properties, expected in ({"a": "nothing"}, ["end"]), (WANTED, []):
        sender = harness.client().begin("t").send("1", PRICES, transaction="t", properties=properties)
        sender.commit("t", "end").turn()
        assert sender.receipts == expected


def test_while_a_queue_is_paused_no_end_asks_all_its_forwards_at_once(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    harness = make_harness(virtual_destinations=VIRTUAL)
    harness.client().store("x", destination=FIRST)
    harness.destinations.closed_to_producers.add(FIRST)
    sender = harness.client().begin("t")
    for number in range(3):
        sender.send(str(number), ORDERS, transaction="t", properties={"a": "nothing"})
    assert slow.most(harness, lambda: sender.commit("t", "end")) <= AT_ONCE_MAX
    assert sender.receipts == ["end"]
