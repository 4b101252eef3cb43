"""An object for each pair of objects counts exactly, until the first of the two ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tandemmq.broker.core import memory
from tandemmq.broker.core.commands import AckMode, AddProducer, Move
from tandemmq.broker.core.memory import Kind
from tandemmq.broker.core.policies import AbortSlow, DestinationPolicy, Policies, PolicyEntry
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.slices import at_once
from tandemmq.broker.core.topics.matching import Watching
from tandemmq.broker.engine.inventory import Query
from tandemmq.broker.engine.subscribe import Subscriber
from tandemmq.store.records.altered import altered
from tandemmq.store.records.message import Destination, DestinationKind

from .conftest import Client, Harness, advisor, shorten_steps

pytestmark = pytest.mark.promise("memory-is-counted")


@pytest.fixture(autouse=True)
def nothing_but_messages_takes_memory() -> None:
    """Here the rest does, too."""


def topic(name: str) -> Destination:
    return Destination(DestinationKind.TOPIC, name)


def queue(name: str) -> Destination:
    return Destination(DestinationKind.QUEUE, name)


NAMES = [f"a.{number}" for number in range(4)]
ALL, BOTH = "a.>", "a.0,a.1"
SUBSCRIPTION = memory.SUBSCRIPTION_BYTES + memory.ID_BYTES
PATTERN = SUBSCRIPTION + memory.WATCH_BYTES + memory.NAME_BYTES * len(ALL)
TOPIC = memory.TOPIC_BYTES + memory.NAME_BYTES * len("a.0")
QUEUE = memory.DESTINATION_BYTES + memory.NAME_BYTES * len("a.0")
# Of "a.0" to "a.3": one node for "a", and one for each.
NODES = 5 * memory.NODE_BYTES


def make_topics(harness: Harness) -> None:
    for name in NAMES:
        harness.destinations.topic(topic(name), None).subscribers  # noqa: B018  # who publishes asks for them


def make_queues(harness: Harness) -> None:
    for name in NAMES:
        harness.destinations.begin_queue(queue(name), None)


def end_destinations(harness: Harness) -> None:
    for each in list(harness.destinations.by_name.values()):
        harness.destinations.remove(each)


def subscribe(where: Destination, **options: Any) -> Callable[[Harness, Client], None]:
    def make(harness: Harness, client: Client) -> None:
        for id in "xyz":
            client.subscribe(id, where, AckMode.CLIENT, **options)

    return make


def both(first: Callable[[Harness], None], second: Callable[[Harness, Client], None]) -> Any:
    """Return both orders of the two actions."""
    return [
        lambda harness, client: (first(harness), second(harness, client), first(harness)),
        lambda harness, client: (second(harness, client), first(harness)),
    ]


def send(harness: Harness, client: Client) -> None:
    for name in NAMES:
        client.send("x", topic(name), persistent=False)


def produce(harness: Harness, client: Client) -> None:
    for name in NAMES:
        client.handle(AddProducer(name, topic(name)))


def group(harness: Harness, client: Client) -> None:
    client.subscribe("x", queue("a.0"), AckMode.AUTO)
    sender = harness.client()
    for name in NAMES:
        sender.send("x", queue("a.0"), persistent=False, group_id=name)
    sender.vanish()


def browse(harness: Harness, client: Client) -> None:
    sender = harness.client()
    for _ in range(4):
        sender.send("x", queue("a.0"), persistent=False)
    sender.vanish()
    client.subscribe("x", queue("a.0"), AckMode.CLIENT, is_browser=True, prefetch=1)


AUDIENCE = memory.AUDIENCE_BYTES + 3 * memory.MEMBER_BYTES
SENDERS = 4 * (memory.SENDER_BYTES + 3)
PRODUCERS = 4 * (memory.PRODUCER_BYTES + 3 * memory.ID_BYTES + 3 * memory.NAME_BYTES)
CASES = {
    "topics": (both(make_topics, subscribe(topic(ALL))), 3 * PATTERN + 4 * TOPIC + AUDIENCE),
    "queues": (
        both(make_queues, subscribe(queue(ALL))),
        3 * PATTERN + 4 * QUEUE + NODES + 12 * memory.QUEUE_LINK_BYTES,
    ),
    "named-topics": (
        [subscribe(topic(BOTH))],
        3 * (SUBSCRIPTION + memory.NAMED_BYTES + 2 * memory.TOPIC_LINK_BYTES) + 2 * TOPIC,
    ),
    "named-queues": (
        [subscribe(queue(BOTH))],
        3 * (SUBSCRIPTION + memory.NAMED_BYTES + 2 * memory.QUEUE_LINK_BYTES) + 2 * QUEUE,
    ),
    "senders": ([send], SENDERS + 4 * TOPIC),
    "producers": ([produce], PRODUCERS + SENDERS + 4 * TOPIC),
    "groups": (
        [group],
        SUBSCRIPTION + memory.QUEUE_LINK_BYTES + QUEUE + 4 * (memory.GROUP_BYTES + 3),
    ),
    "browsers": ([browse], SUBSCRIPTION + QUEUE + 4 * memory.BROWSED_BYTES),
    "selectors": (
        [subscribe(queue("a.0"), selector="b = 'c d'")],
        QUEUE + memory.CHOICE_BYTES + 3 * (SUBSCRIPTION + memory.QUEUE_LINK_BYTES + memory.TAKER_BYTES)
        + 3 * (len("b = 'c d'") * memory.ID_BYTES + 3 * memory.WORD_BYTES),
    ),
    "regular-expressions": (  # a{3} and MATCH
        [subscribe(queue("a.0"), selector="REGEX('a{3}', b)")],
        QUEUE + memory.CHOICE_BYTES + 3 * (SUBSCRIPTION + memory.QUEUE_LINK_BYTES + memory.TAKER_BYTES)
        + 3 * (len("REGEX('a{3}', b)") * memory.ID_BYTES + 6 * memory.WORD_BYTES + 4 * memory.INSTRUCTION_BYTES),
    ),
}  # fmt: skip


@pytest.mark.parametrize("is_client_first", [True, False])
@pytest.mark.parametrize(
    ("make", "expected"),
    [pytest.param(make, expected, id=name) for name, (makes, expected) in CASES.items() for make in makes],
)
def test_each_pair_counts_until_it_ends(make_harness: Any, make: Any, expected: int, is_client_first: bool) -> None:
    harness = make_harness()
    client = harness.client()
    state = harness.engine.memory.by_kind
    before = state[Kind.STATE]
    make(harness, client)
    harness.turn()
    assert state[Kind.STATE] - before == expected
    ends = [client.vanish, lambda: end_destinations(harness)]
    for end in ends if is_client_first else reversed(ends):
        end()
        harness.turn()
    end_destinations(harness)  # what a refused pattern left
    assert not harness.engine.memory.used


@pytest.mark.parametrize("end", [Client.commit, Client.abort, lambda client: client.vanish()])
def test_a_transaction_counts_until_it_ends(make_harness: Any, end: Any) -> None:
    harness = make_harness()
    client = harness.client()
    transactions = harness.engine.memory.by_kind
    client.begin("t")
    assert transactions[Kind.TRANSACTIONS] == memory.TRANSACTION_BYTES + 1
    end(client)
    harness.turn()
    assert transactions[Kind.TRANSACTIONS] == 0


def test_of_durable_subscriptions_each_part_counts(make_harness: Any) -> None:
    harness = make_harness()
    client = harness.client("c")
    state = harness.engine.memory.by_kind
    before = state[Kind.STATE]
    client.subscribe("x", topic(ALL), durable_name="d").turn()
    names = memory.NAME_BYTES * len("cd" + ALL)
    assert state[Kind.STATE] - before == SUBSCRIPTION + memory.DURABLE_BYTES + names
    before = state[Kind.STATE]
    make_topics(harness)
    harness.turn()
    assert state[Kind.STATE] - before == 4 * (TOPIC + memory.PART_BYTES + memory.QUEUE_LINK_BYTES)
    client.unsubscribe("x", durable_name="d").turn()
    end_destinations(harness)
    client.vanish()
    assert not harness.engine.memory.used


@pytest.mark.parametrize(
    ("prepare", "where", "options", "refused"),
    [
        (make_queues, queue(ALL), {}, "matches more queues than there is memory for"),
        (make_topics, topic(ALL), {"durable_name": "d"}, "needs more memory than is free"),
        (make_topics, topic(ALL), {"durable_name": "d", "share": "g"}, "needs more memory than is free"),
    ],
)
def test_a_subscription_with_too_many_pairs_is_refused_and_leaves_nothing(
    make_harness: Any, prepare: Any, where: Destination, options: dict[str, str], refused: str
) -> None:
    harness = make_harness()
    client = harness.client("c")
    prepare(harness)
    budget = harness.engine.memory
    before = budget.used
    harness.patch.setattr(memory, "HELD_BYTES_MIN", 0)
    # There is room for the pattern and two places; or for the durable subscription and two parts.
    budget.limit = before + client.holder.by_kind[Kind.STATE] + 2 * (PATTERN + 2 * memory.QUEUE_LINK_BYTES) + NODES
    if options:
        budget.limit = 2 * before + 3 * memory.PART_BYTES
    client.subscribe("x", where, **options).turn()
    assert [refused in each for each in client.errors] == [True]
    assert client.is_connected
    budget.limit = 1 << 30
    made = NODES if where.kind is DestinationKind.QUEUE else 0
    assert budget.used - before == made
    client.subscribe("x", where, **options).turn()
    assert len(client.errors) == 1


def test_messages_keep_out_no_consumer_that_would_take_them(make_harness: Any) -> None:
    harness = make_harness()
    client, sender = harness.client(), harness.client()
    make_queues(harness)
    sender.send("x" * 400_000, queue("a.0"), persistent=False).turn()
    harness.patch.setattr(memory, "HELD_BYTES_MIN", memory.CONNECTION_BYTES)
    harness.engine.memory.limit = harness.engine.memory.used
    client.subscribe("x", queue(ALL), AckMode.AUTO).turn()
    assert (client.errors, len(client.bodies)) == ([], 1)


def test_without_memory_topics_find_their_subscribers_for_each_message(make_harness: Any) -> None:
    harness = make_harness()
    client, sender = harness.client(), harness.client()
    asked = harness.count(Subscriber, "_may_read")
    client.subscribe("x", topic(ALL), AckMode.AUTO)
    make_topics(harness)
    budget = harness.engine.memory
    before, budget.limit = budget.used, 1
    client.subscribe("y", topic(ALL), AckMode.AUTO)
    asked.count = 0
    assert [len(harness.destinations.topic(topic("a.0"), None).subscribers) for _ in "123"] == [2, 2, 2]
    assert asked.count == 3, "only the one that came since is asked about"
    for number in range(3):
        sender.send(f"{number}", topic("a.0"), persistent=False)
    harness.turn()
    assert client.bodies == ["0", "0", "1", "1", "2", "2"]
    budget.limit = 1 << 30
    client.vanish()
    sender.vanish()
    end_destinations(harness)
    assert (budget.used, before > 0) == (0, True)


def test_topics_with_many_subscribers_are_a_step_of_the_figures_each(make_harness: Any) -> None:
    harness = make_harness()
    client = harness.client()
    make_topics(harness)
    harness.patch.setattr("tandemmq.broker.core.slices.ITEMS", 10)
    steps = len(list(harness.engine.statistics()))
    for number in range(640):
        client.subscribe(f"{number}", topic(ALL), AckMode.AUTO)
    assert len(list(harness.engine.statistics())) == steps + len(NAMES)


def test_topics_with_the_same_subscribers_share_one_audience(make_harness: Any) -> None:
    harness = make_harness()
    client, other = harness.client(), harness.client()
    client.subscribe("x", topic(ALL), AckMode.AUTO)
    other.subscribe("y", topic("a.0,a.*"), AckMode.AUTO)
    make_topics(harness)
    topics = [harness.destinations.topic(topic(name), None) for name in NAMES]
    assert [len(each.subscribers) for each in topics] == [2, 2, 2, 2]
    assert topics[1].subscribers is topics[2].subscribers is topics[3].subscribers
    shorten_steps(harness.patch, 1)
    client.lose_socket()
    assert harness.works, "it leaves audiences in steps"
    harness.make_steps()
    assert topics[1].subscribers is topics[3].subscribers
    assert [len(each.subscribers) for each in topics] == [1, 1, 1, 1]


@pytest.mark.parametrize(("own", "leaving"), [("{0}.>", 1), ("*.{0},>", 60)], ids=["alone", "together"])
def test_a_client_that_leaves_visits_only_its_own_audiences_once(make_harness: Any, own: str, leaving: int) -> None:
    """The end of a client does not visit all audiences, also if many subscriptions end with it."""
    harness = make_harness()
    clients = [harness.client() for _ in range(60 if leaving == 1 else 1)]
    for number in range(60):
        clients[number % len(clients)].subscribe(f"{number}", topic(own.format(number)), AckMode.AUTO)
        harness.destinations.topic(topic(f"{number}.x"), None).subscribers  # noqa: B018
        harness.destinations.topic(topic(f"x.{number}"), None).subscribers  # noqa: B018
    shorten_steps(harness.patch, 1)
    steps = harness.count(Harness, "step")
    clients[0].vanish()
    assert steps.count <= (10 if leaving == 1 else 200)
    left = [len(each.subscribers) for each in harness.destinations.topics()]
    assert sum(left) == (59 if leaving == 1 else 0)


def test_a_subscription_that_joins_one_topic_leaves_the_places_of_the_others_as_they_are(make_harness: Any) -> None:
    """Otherwise each new subscription costs as much as all existing ones, each time the topic is read."""
    harness = make_harness()
    client = harness.client()
    target = harness.destinations.topic(topic("a.0"), None)
    left = harness.count(Watching, "_left")
    for number in range(60):
        client.subscribe(f"{number}", topic(ALL), AckMode.AUTO)
        assert len(target.subscribers) == number + 1
    assert left.count == 0


def test_a_message_lost_by_a_subscription_with_wildcards_counts_once_for_its_topic(make_harness: Any) -> None:
    harness = make_harness(topic_pending_messages=2)
    client, sender = harness.client(), harness.client()
    client.subscribe("x", topic(ALL), AckMode.AUTO)
    make_topics(harness)
    client.has_space = False
    for name in ("a.0", "a.1", "a.1", "a.2", "a.2"):
        sender.send("x", topic(name), persistent=False)
    lost = {each.destination.name: each.dropped for each in harness.destinations.topics()}
    assert lost == {"a.0": 0, "a.1": 1, "a.2": 2, "a.3": 0}
    client.vanish().turn()
    assert harness.counts["topic_messages_dropped_total"] == 3


@pytest.mark.parametrize("pattern", [ALL, "a.1"])
def test_a_slow_subscription_with_wildcards_is_cut_off_by_the_policy_of_its_pattern_or_of_a_topic(
    make_harness: Any, pattern: str
) -> None:
    entry = PolicyEntry(DestinationKind.TOPIC, pattern, DestinationPolicy(abort_slow=AbortSlow(max_slow_duration=1)))
    harness = make_harness(Policies((entry,)))
    client, sender = harness.client(), harness.client()
    client.subscribe("x", topic(ALL), AckMode.CLIENT, prefetch=1)
    for name in ("a.0", "a.1"):
        sender.send("x", topic(name), persistent=False)
    rows = at_once(harness.engine.inventory.consumers(Query(10), topic("a.1"))).rows
    assert [row["destinations"] for row in rows] == [["topic://a.>"]]
    assert not at_once(harness.engine.inventory.consumers(Query(10), topic("b"))).rows
    harness.wait(4)
    assert ("closed", "x") in client.session.events


def test_work_for_a_client_that_left_counts_nothing_for_it(make_harness: Any) -> None:
    """Sends that wait for room go on without it."""
    harness = make_harness()
    sender, reader = harness.client(), harness.client()
    budget = harness.engine.memory
    make_queues(harness)
    harness.patch.setattr(memory, "HELD_BYTES_MIN", 0)  # so it is not remembered that it may send there
    whole, budget.limit = budget.limit, 1
    for name in NAMES:
        sender.send("x", queue(name), persistent=False).turn()
    sender.vanish()
    budget.limit = whole
    reader.subscribe("x", queue(ALL), AckMode.AUTO)
    harness.wait(2)
    assert len(reader.bodies) == 4
    reader.vanish()
    end_destinations(harness)
    harness.turn()
    assert not budget.used


def send_later(client: Client) -> None:
    client.send("m", topic("a.0"), properties={"AMQ_SCHEDULED_DELAY": 1_000})


def move(client: Client) -> None:
    client.subscribe("x", queue("a.0"), AckMode.CLIENT).send("m", queue("a.0")).turn()
    found = client.last("m")
    client.handle(Move("x", found.tag, altered(found.message, destination=queue("a.1")), "r")).unsubscribe("x")


@pytest.mark.parametrize("do", [send_later, move])
def test_finished_work_for_a_client_counts_nothing(make_harness: Any, do: Any) -> None:
    harness = make_harness()
    client = harness.client()
    states = []
    for _ in "123":
        do(client)
        harness.wait(2)
        states.append(harness.engine.memory.by_kind[Kind.STATE])
    assert states[0] == states[1] == states[2]


def test_a_selector_of_a_queue_counts_for_its_first_client_and_then_for_none(make_harness: Any) -> None:
    harness = make_harness()
    first, second = clients = [harness.client(), harness.client()]
    for client in clients:
        client.subscribe("x", queue("a.0"), AckMode.AUTO, selector="b = 1").turn()
    state = [client.holder.by_kind[Kind.STATE] for client in clients]
    assert state[0] - state[1] == memory.CHOICE_BYTES
    before = harness.engine.memory.used
    first.vanish().turn()
    assert before - harness.engine.memory.used == state[1]
    assert second.holder.by_kind[Kind.STATE] == state[1]
    second.vanish().turn()
    end_destinations(harness)
    assert not harness.engine.memory.used


@pytest.mark.parametrize(
    ("persistent", "is_inside", "refused"), [(False, False, 1), (False, True, 0), (True, False, 0)]
)
def test_a_client_that_is_no_operator_browses_within_its_memory(
    make_harness: Any, persistent: bool, is_inside: bool, refused: int
) -> None:
    """The broker does not keep stored messages in memory for a browser."""
    harness = make_harness()
    engine = harness.engine
    opened = partial(engine.opened_as, principal=Principal("o")) if is_inside else engine.opened
    client, sender = Client(harness, "ID:o", opened), harness.client()
    for number in range(4):
        sender.send(f"{number}", queue("a.0"), persistent=persistent).turn()
    harness.patch.setattr(memory, "HELD_BYTES_MIN", memory.CONNECTION_BYTES + memory.BROWSED_BYTES)
    harness.engine.memory.limit = 1
    client.subscribe("x", queue("a.0"), AckMode.CLIENT, is_browser=True).turn()
    assert ["all free memory" in each for each in client.errors] == [True] * refused


def test_a_browser_that_leaves_while_it_releases_entries_releases_them_once(make_harness: Any) -> None:
    harness = make_harness()
    client, sender = harness.client(), harness.client()
    sender.send_all(range(40), queue("a.0"), persistent=False).turn()
    budget = harness.engine.memory
    before = budget.used - client.holder.by_kind[Kind.STATE]
    shorten_steps(harness.patch, 1)
    client.subscribe("x", queue("a.0"), AckMode.AUTO, is_browser=True, prefetch=100)
    while len(client.bodies) < 40:
        harness.turn(1)
    harness.turn(8)
    assert not client.session.nothings, "it lets go in steps"
    client.vanish()
    assert budget.used == before


def test_a_durable_subscription_that_may_not_begin_again_still_exists(make_harness: Any) -> None:
    harness = make_harness()
    client = harness.client("c")
    client.subscribe("x", topic("a.0"), durable_name="d").turn()
    client.unsubscribe("x").turn()
    client.send("m", topic("a.0")).turn()
    limit, harness.engine.memory.limit = harness.engine.memory.limit, 1
    client.subscribe("x", topic("a.0"), durable_name="d", selector="b = 1").turn()
    assert ["needs more memory than is free" in each for each in client.errors] == [True]
    harness.engine.memory.limit = limit
    client.subscribe("x", topic("a.0"), AckMode.AUTO, durable_name="d").turn()
    assert client.bodies == ["m"]


def test_advisories_lost_by_a_listener_count_for_their_topic(make_harness: Any) -> None:
    harness = make_harness(advisor=advisor(), topic_pending_messages=2)
    make_queues(harness)
    client = harness.client()
    client.has_space = False
    client.subscribe("x", topic("ActiveMQ.Advisory.Queue"), AckMode.AUTO).turn()
    assert harness.counts["topic_messages_dropped_total"] == 2
