"""Topics and durable subscriptions."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import AckMode, RemoveDestination
from tandemmq.broker.core.names import PATTERNS
from tandemmq.broker.core.slices import at_once
from tandemmq.store.operations import AddMessage, AddSubscription
from tandemmq.store.records.acknowledgements import SubscriptionInfo
from tandemmq.store.records.commands import Subscription, encode, encode_add, encode_subscription
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.openwire import encode_message
from tests.unit.broker.engine.conftest import ORDERS, PRICES, XA

pytestmark = pytest.mark.promise("durable-subscription-kept")

NEWS = Destination(DestinationKind.TOPIC, "news")
ALL = Destination(DestinationKind.TOPIC, "stock.>")
STOCK_A, STOCK_B = (Destination(DestinationKind.TOPIC, f"stock.{name}") for name in "AB")
BOTH = Destination(DestinationKind.TOPIC, "stock.A, topic://prices")
OTHER_TWO = Destination(DestinationKind.TOPIC, "stock.B,prices")


def test_a_topic_that_was_removed_and_begins_again_gets_what_is_sent(harness):
    sender, reader, admin = harness.client(), harness.client(), harness.client()
    sender.send("a", PRICES)
    sender.send("b", PRICES)  # its topic is known by now
    admin.handle(RemoveDestination(PRICES)).turn()
    reader.subscribe("s", PRICES, AckMode.AUTO)
    sender.send("c", PRICES).send("d", PRICES, persistent=False).turn()
    assert reader.bodies == ["c", "d"]


@pytest.mark.parametrize("count", [1, 3])
def test_each_durable_subscription_gets_what_it_selects_and_a_restart_knows_it(harness, count):
    """The result is the same whether or not the sender knows the topic."""
    sender, reds, alls = harness.client(), harness.client("red"), harness.client("all")
    reds.subscribe("s", PRICES, durable_name="red", selector="colour = 'red'")
    alls.subscribe("s", PRICES, durable_name="all")
    harness.store.appended = added = []
    for number in range(count):
        sender.send(f"blue {number}", PRICES, properties={"colour": "blue"})
        sender.send(f"red {number}", PRICES, properties={"colour": "red"})
    harness.turn()
    assert reds.bodies == [f"red {number}" for number in range(count)]
    assert alls.bodies == [f"{colour} {number}" for number in range(count) for colour in ("blue", "red")]
    passed_over = [len(each.unmatched_acks) for each in added if isinstance(each, AddMessage)]
    assert passed_over == [1, 0] * count


def test_a_message_that_nobody_gets_is_counted(harness):
    sender = harness.client()
    for _ in range(3):
        sender.send("x", PRICES)
    (figures,) = at_once(harness.engine.statistics())["topics"]
    assert (figures["name"], figures["enqueued"]) == ("prices", 3)


@pytest.mark.parametrize("durable_name", [None, "d"])
def test_a_no_local_subscriber_gets_the_messages_of_others(harness, durable_name):
    client, other = harness.client("me"), harness.client("you")
    client.subscribe("s", PRICES, durable_name=durable_name, no_local=True)
    other.subscribe("s", PRICES, durable_name=durable_name).turn()
    client.send("a", PRICES).send("b", PRICES, persistent=False)
    other.store("c", destination=PRICES)
    assert (client.bodies, sorted(other.bodies)) == (["c"], ["a", "b", "c"])


@pytest.mark.parametrize("is_known_again", [False, True])
def test_a_durable_subscription_without_local_keeps_nothing_of_its_client_id_while_it_is_away(harness, is_known_again):
    """Jakarta Messaging 3.1, createDurableConsumer: no messages of connections with its client id, now or later."""
    client = harness.client("me")
    client.subscribe("s", PRICES, durable_name="d", no_local=True).turn()
    client.unsubscribe("s").send("a", PRICES).send("b", PRICES, persistent=False).turn()
    client.vanish()
    if is_known_again:
        harness.fail_over()
    again = harness.client("me")
    again.send("c", PRICES).send("d", PRICES, persistent=False).turn()
    harness.client("you").send("theirs", PRICES).turn()
    again.subscribe("s", PRICES, durable_name="d", no_local=True).turn()
    assert again.bodies == ["theirs"]


@pytest.mark.parametrize("bound", [{"topic_pending_messages": 2}, {"topic_pending_bytes": 10_000}], ids=str)
def test_a_slow_subscriber_loses_its_oldest_messages_and_holds_back_nobody(make_harness, bound):
    harness = make_harness(**bound)
    sender, slow, fast = harness.client(), harness.consumer("s", PRICES, AckMode.AUTO), harness.client()
    fast.subscribe("s", PRICES, AckMode.AUTO)
    slow.has_space = False
    sender.send_all([letter * 4_000 for letter in "abcd"], PRICES)
    slow.regain_space()
    assert [body[0] for body in fast.bodies] == ["a", "b", "c", "d"]
    assert [body[0] for body in slow.bodies] == ["c", "d"]
    assert harness.counts["topic_messages_dropped_total"] == 2


def test_acknowledgements_give_a_topic_subscriber_credit(harness):
    client = harness.consumer("s", PRICES, AckMode.CLIENT, prefetch=2)
    harness.client().send_all("abcd", PRICES)
    assert client.bodies == ["a", "b"]
    client.ack("b", receipt="r")
    assert (client.bodies, client.receipts) == (["a", "b", "c", "d"], ["r"])


def test_a_durable_subscription_is_served_when_it_is_stored(harness):
    client = harness.consumer("s", PRICES, durable_name="d", receipt="sub", client_id="me")
    assert client.receipts == []
    client.send("a", PRICES, receipt="r").turn()
    assert client.session.events[1:] == [("receipt", "sub"), ("receipt", "r"), ("message", "a")]


@pytest.mark.parametrize(("asked", "topics"), [(PRICES, [PRICES]), (ALL, [STOCK_A, STOCK_B])])
def test_the_terms_of_a_durable_subscription_outlive_the_engine(harness, asked, topics):
    """With a pattern, the second engine does not know the last topic yet; the third one does."""
    terms = {"durable_name": "d", "selector": "colour = 'red'", "client_id": "me"}
    harness.consumer("s", asked, **terms)
    harness.client().store("before", destination=topics[0], properties={"colour": "blue"})
    for _ in range(2):
        harness.fail_over()
        for topic in topics:
            for colour in ("blue", "red"):
                harness.client().store(f"{colour} {topic.name}", destination=topic, properties={"colour": colour})
    assert harness.stored() == 2 * len(topics)
    client = harness.consumer("s", asked, **terms).turn()
    assert sorted(client.bodies) == sorted(f"red {topic.name}" for topic in topics for _ in range(2))


@pytest.mark.parametrize("change", [{"selector": "colour = 'blue'"}, {"selector": None}, {"no_local": True}])
def test_another_selector_or_no_local_is_another_subscription_after_a_failover_too(harness, change):
    client = harness.client("me")
    asked = {"selector": "colour = 'red'", "no_local": False}
    client.subscribe("s", PRICES, durable_name="d", **asked)
    client.send("red", PRICES, properties={"colour": "red"}).turn()
    harness.fail_over()
    client = harness.consumer("s", PRICES, durable_name="d", **(asked | change), client_id="me").turn()
    assert (client.bodies, harness.stored()) == ([], 0)


@pytest.mark.parametrize("no_local", [False, True])
def test_of_a_record_older_than_openwire_11_no_local_is_what_its_consumer_says(harness, no_local):
    """ActiveMQ does not compare it there, either (TopicRegion.hasDurableSubChanged): nothing that waits is lost."""
    info = SubscriptionInfo("me", PRICES, "d", subscribed_destination=PRICES, no_local=None)
    owner = harness.store.subscription("me", "d", PRICES)
    harness.store.append(AddSubscription(owner, encode(Subscription(PRICES, "me:d", info))))
    harness.fail_over()
    harness.client().send("a", PRICES).turn()
    harness.fail_over()
    client = harness.consumer("s", PRICES, durable_name="d", no_local=no_local, client_id="me").turn()
    client.send("own", PRICES).turn()
    assert client.bodies == (["a"] if no_local else ["a", "own"])


def test_an_invalid_stored_selector_takes_every_message(harness):
    owner = harness.store.subscription("me", "d", PRICES)
    harness.store.append(AddSubscription(owner, encode_subscription(PRICES, "me", "d", "XPATH '//x' ((")))
    harness.fail_over()
    harness.client().send("a", PRICES).turn()
    assert harness.stored() == 1


@pytest.mark.parametrize(
    ("client_id", "destinations", "error"),
    [
        (None, [PRICES], "A durable subscription needs a client id"),
        ("me", [ORDERS], "queue://orders is not a topic"),
        ("me", [PRICES] * 2, "Durable consumer is in use for client: me and subscriptionName: d"),
        ("me", [ALL] * 2, "Durable consumer is in use for client: me and subscriptionName: d"),
    ],
)
def test_an_invalid_durable_subscription_is_refused(harness, client_id, destinations, error):
    client = harness.client(client_id)
    for number, destination in enumerate(destinations):
        client.subscribe(str(number), destination, durable_name="d").turn()
    assert client.errors == [error]
    assert client.is_closed is (len(destinations) > 1)


@pytest.mark.parametrize(
    ("old", "new", "bodies", "left"),
    [
        (PRICES, NEWS, ["prices 0", "news 1"], {NEWS}),
        (ALL, STOCK_A, ["stock.A 0", "stock.B 0", "stock.A 1"], {STOCK_A}),
        (BOTH, OTHER_TWO, ["prices 0", "stock.A 0", "prices 1", "stock.B 1"], {STOCK_B, PRICES}),
    ],
)
def test_another_destination_under_the_same_name_is_another_subscription(harness, old, new, bodies, left):
    client, sender = harness.client("me"), harness.client()
    for number, destination in enumerate((old, new)):
        client.subscribe("s", destination, durable_name="d").turn()
        for topic in (PRICES, NEWS, STOCK_A, STOCK_B):
            sender.store(f"{topic.name} {number}", destination=topic)
        client.unsubscribe("s")
    assert client.bodies == bodies
    assert {owner.destination for owner in harness.store.owners()} == left


def test_unsubscribe_with_its_name_closes_and_deletes_a_durable_subscription(harness):
    client = harness.consumer("s", PRICES, durable_name="d", client_id="me")
    client.store("a", destination=PRICES).unsubscribe("s", durable_name="d", receipt="r")
    assert client.receipts == []
    client.store("b", destination=PRICES)
    assert (client.receipts, harness.store.owners(), harness.counts["memory_stored_bytes"]) == (["r"], [], 0)
    assert harness.counts["memory_non_persistent_bytes"] == 0


def test_a_subscription_deleted_while_a_message_is_on_its_way_is_left_out(harness):
    client, plain = harness.consumer("s", PRICES, durable_name="d", client_id="me"), harness.client()
    plain.subscribe("p", PRICES, AckMode.AUTO).turn()
    client.send("a", PRICES, receipt="1").unsubscribe(None, durable_name="d", receipt="2").turn()
    assert (client.receipts, plain.bodies, client.bodies) == (["1", "2"], ["a"], [])


def test_a_pattern_that_matches_topics_at_its_beginning_has_no_additional_record(harness):
    client, sender = harness.client("me"), harness.client()
    sender.send("nobody's", STOCK_A)
    client.subscribe("s", ALL, durable_name="d").turn()
    assert [owner.destination for owner in harness.store.owners()] == [STOCK_A]


def test_the_topic_of_pattern_records_cannot_be_written_or_matched(harness):
    client, other = harness.client("me"), harness.client("other")
    client.subscribe("s", Destination(DestinationKind.TOPIC, ">"), durable_name="d")
    other.subscribe("s", ALL, durable_name="e").turn()
    harness.fail_over()
    harness.client().send("a", PATTERNS)
    harness.client().send("b", STOCK_A).turn()
    assert {owner.destination: owner.count for owner in harness.store.owners()} == {PATTERNS: 0, STOCK_A: 1}
    assert [topic.destination for topic in harness.destinations.topics()] == [STOCK_A]


def test_messages_left_pending_by_activemq_that_a_selector_skips_are_released(harness):
    client = harness.client()
    owner = harness.store.subscription("me", "d", PRICES)
    harness.store.append(AddSubscription(owner, encode_subscription(PRICES, "me", "d", "colour = 'red'")))
    for number in range(900):  # several pages, some of them without any that is wanted
        colour = "red" if number % 400 == 0 else "blue"
        message = client.message(str(number), PRICES, properties={"colour": colour})
        harness.store.append(AddMessage(message, (owner,), encode_add(message, encode_message(message))))
    harness.fail_over(is_sudden=True)
    client = harness.consumer("s", PRICES, durable_name="d", selector="colour = 'red'", client_id="me").turn()
    assert (client.bodies, harness.stored()) == (["0", "400", "800"], 3)
    assert at_once(harness.engine.statistics())["subscriptions"][0]["messages"] == 3


RED = {"colour": "red"}
BLUE = {"colour": "blue"}


@pytest.mark.parametrize("fails_over", [True, False])
def test_a_prepared_send_reaches_subscribers_that_came_before_its_commit(harness, fails_over):
    for name, selector in (("red", "colour = 'red'"), ("blue", "colour = 'blue'")):
        client = harness.consumer("s", PRICES, durable_name="d", selector=selector, client_id=name).turn()
        client.vanish()
    sender = harness.client().begin_branch()
    for colours in (RED, BLUE):
        sender.send(colours["colour"], PRICES, transaction=XA.key, properties=colours)
    sender.prepare().turn()
    assert sender.receipts == ["p"]
    if fails_over:
        harness.fail_over()
    late = harness.consumer("s", PRICES, durable_name="d", selector="colour = 'red'", client_id="late").turn()
    harness.client().commit_branch().turn()
    assert late.bodies == ["red"]
    late.ack("red").turn()
    assert {owner.client_id: owner.count for owner in harness.store.owners()} == {"red": 1, "blue": 1, "late": 0}
    for name in ("red", "blue"):
        client = harness.consumer("s", PRICES, durable_name="d", selector=f"colour = '{name}'", client_id=name).turn()
        assert client.bodies == [name]


def test_a_prepared_send_is_not_for_a_later_subscription_without_local_of_its_client_id(harness):
    other = harness.consumer("s", PRICES, durable_name="d", client_id="you").turn()
    sender = harness.client("me").begin_branch().send("mine", PRICES, transaction=XA.key).prepare().turn()
    sender.subscribe("s", PRICES, durable_name="d", no_local=True).turn()
    sender.commit_branch().turn()
    assert (sender.bodies, other.bodies, harness.stored()) == ([], ["mine"], 1)


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_durable_subscription_of_several_topics_outlives_the_engine(harness, fails_over):
    client, sender = harness.client("me"), harness.client()
    client.subscribe("s", BOTH, durable_name="d", receipt="sub").turn()
    assert client.receipts == ["sub"]
    client.vanish()
    if fails_over:  # neither topic had a message yet
        harness.fail_over()
        sender = harness.client()
    for body, topic in (("a", STOCK_A), ("b", STOCK_B), ("price", PRICES)):
        sender.send(body, topic)
    harness.turn()
    client = harness.consumer(
        "s", Destination(DestinationKind.TOPIC, "stock.A,prices"), durable_name="d", client_id="me"
    ).turn()
    assert sorted(client.bodies) == ["a", "price"]
    for body in client.bodies:
        client.ack(body)
    client.unsubscribe("s", durable_name="d", receipt="r").turn()
    assert (client.receipts, harness.store.owners()) == (["r"], [])


def test_a_durable_list_with_patterns_gets_each_message_once(harness):
    client, sender = harness.client("me"), harness.client()
    several = Destination(DestinationKind.TOPIC, f"{STOCK_A.name},{ALL.name},prices")
    client.subscribe("s", several, durable_name="d")
    for body, topic in (("a", STOCK_A), ("b", STOCK_B), ("price", PRICES)):
        sender.send(body, topic)
    harness.turn()
    assert sorted(client.bodies) == ["a", "b", "price"]


@pytest.mark.parametrize("name", ["stock.A,queue://orders", "stock.A," + "x" * 510])
def test_a_list_that_cannot_be_kept_is_refused(harness, name):
    client = harness.consumer("s", Destination(DestinationKind.TOPIC, name), durable_name="d", client_id="me").turn()
    assert (len(client.errors), harness.store.owners()) == (1, [])


def test_a_wildcard_consumer_of_a_virtual_topic_gets_what_came_while_away(harness):
    """As in ActiveMQ, a queue with the name of the pattern keeps the messages."""
    sender, consumer, exact = harness.client(), harness.client(), harness.client()
    wild = Destination(DestinationKind.QUEUE, "Consumer.g.VirtualTopic.X.>")
    deep = Destination(DestinationKind.TOPIC, "VirtualTopic.X.A.IT")
    consumer.subscribe("s", wild, AckMode.AUTO)
    for number in range(3):
        sender.send(f"live {number}", deep)
    harness.turn()
    consumer.unsubscribe("s")
    for number in range(3):
        sender.send(f"away {number}", deep)
    sender.send("other", Destination(DestinationKind.TOPIC, "VirtualTopic.Y"))
    harness.fail_over()
    consumer, sender = harness.consumer("s", wild, AckMode.AUTO), harness.client()
    harness.turn()
    assert consumer.bodies == [f"away {number}" for number in range(3)]
    exact.vanish()
    exact = harness.consumer("s", Destination(DestinationKind.QUEUE, "Consumer.g.VirtualTopic.X.A.IT"), AckMode.AUTO)
    sender.send("both", deep).send("both", deep).turn()
    assert len(consumer.bodies) + len(exact.bodies) == 3 + 4
