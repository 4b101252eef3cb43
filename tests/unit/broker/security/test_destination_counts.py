"""The destinations of one user leave space for other users. Advisory topics do not stay."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.access import OpenAccess
from tandemmq.broker.core.commands import Ack, AckMode, AddDestination, ErrorKind, RemoveDestination
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import PRICES, advisor
from tests.unit.broker.security.test_connection_ids import Secured, is_refused

LIMIT = 12


@pytest.fixture
def harness() -> Secured:
    return Secured(EngineSettings(destinations_max=LIMIT), advisor=advisor())


def queue(name: object) -> Destination:
    return Destination(DestinationKind.QUEUE, str(name))


def advisory(name: str) -> Destination:
    return Destination(DestinationKind.TOPIC, f"ActiveMQ.Advisory.{name}")


def count(harness: Secured) -> int:
    return len(harness.destinations.names())


@pytest.mark.parametrize("way", ["send", "subscribe", "create", "temporary", "topics", "advisories"])
def test_a_user_with_very_many_destinations_leaves_as_many_for_others(harness: Secured, way: str) -> None:
    mallory, ann = harness.user("mallory", "ID:m:1"), harness.user("ann", "ID:a:1")
    harness.turn()
    for number in range(2 * LIMIT):
        if way == "send":
            mallory.send("m", queue(number))
        elif way == "subscribe":
            mallory.subscribe(str(number), queue(number))
        elif way == "create":
            mallory.handle(AddDestination(queue(number)))
        elif way == "temporary":
            mallory.handle(AddDestination(Destination(DestinationKind.TEMP_QUEUE, f"ID:m:1:{number}")))
        elif way == "topics":
            mallory.subscribe(str(number), PRICES._replace(name=str(number)))
        else:
            mallory.subscribe(str(number), advisory(f"Nonsense.{number}"), AckMode.AUTO)
    harness.turn()
    assert count(harness) == LIMIT / 2
    assert {error.kind for error in mallory.session.errors} == {ErrorKind.RESOURCE}
    for number in range(3):
        ann.send("m", queue(f"ann's {number}"))
    harness.turn()
    assert ann.errors == []


def test_ended_destinations_do_not_count(harness: Secured) -> None:
    ann = harness.user("ann")
    harness.turn()
    for number in range(10 * LIMIT):
        ann.handle(AddDestination(queue(number)))
        ann.handle(RemoveDestination(queue(number)))
    harness.turn()
    assert ann.errors == []
    assert not harness.destinations._makers
    assert not harness.destinations._made_by


def test_without_users_anybody_may_use_all_destinations(harness: Secured) -> None:
    harness.access = OpenAccess(is_everywhere=True)
    harness.fail_over()
    ann = harness.user("ann")
    for number in range(LIMIT):
        ann.send("m", queue(number))
    harness.turn()
    assert ann.errors == []
    assert count(harness) == LIMIT


@pytest.mark.parametrize("is_together", [False, True])
def test_an_advisory_topic_exists_as_long_as_a_subscription_names_it(harness: Secured, is_together: bool) -> None:
    ann, bob = harness.user("ann", "ID:a:1"), harness.user("bob", "ID:b:1")
    harness.turn()
    ann.subscribe("n", advisory("Nonsense.X,topic://ActiveMQ.Advisory.Consumer.Queue.nowhere"), AckMode.AUTO)
    ann.subscribe("all", advisory(">"), AckMode.AUTO)
    if is_together:
        bob.subscribe("n", advisory("Nonsense.X"), AckMode.AUTO)
    harness.turn()
    assert count(harness) == 2
    ann.unsubscribe("n")
    harness.turn()
    assert count(harness) == is_together
    bob.vanish()
    harness.turn()
    assert count(harness) == 0


def test_a_listener_to_all_advisories_creates_no_topics(harness: Secured) -> None:
    """Otherwise other users could do nothing more, because there would be no room for the advisories about them."""
    monitor, ann = harness.user("root", "ID:r:1"), harness.user("ann", "ID:a:1")
    harness.turn()
    monitor.subscribe("all", advisory(">"), AckMode.AUTO)
    for number in range(10 * LIMIT):
        made = Destination(DestinationKind.TEMP_QUEUE, f"ID:a:1:{number}")
        ann.handle(AddDestination(made))
        ann.subscribe("s", made, AckMode.AUTO)
        ann.unsubscribe("s")
        ann.handle(RemoveDestination(made))
    harness.turn()
    assert ann.errors == []
    assert count(harness) == 0
    told = [each.message.destination.name for each in monitor.session.delivered]
    assert told.count("ActiveMQ.Advisory.Consumer.Queue.ID:a:1:7") == 2
    assert told.count("ActiveMQ.Advisory.TempQueue") == 20 * LIMIT


def test_clients_cannot_create_an_advisory_topic(harness: Secured) -> None:
    ann = harness.user("ann")
    harness.turn()
    ann.handle(AddDestination(advisory("Nonsense")))
    assert is_refused(ann)
    assert count(harness) == 0


def test_messages_for_a_pattern_stay_when_one_of_its_topics_ends(harness: Secured) -> None:
    ann, bob = harness.user("ann", "ID:a:1"), harness.user("bob", "ID:b:1")
    harness.turn()
    ann.subscribe("named", advisory("TempQueue"), AckMode.AUTO)
    bob.subscribe("all", advisory("*"), AckMode.INDIVIDUAL, prefetch=1)
    for number in (1, 2):
        ann.handle(AddDestination(Destination(DestinationKind.TEMP_QUEUE, f"ID:a:1:{number}")))
    ann.unsubscribe("named")
    harness.turn()
    for number in range(10):
        assert len(bob.session.delivered) >= min(number + 1, 4)
        bob.handle(Ack("all", bob.session.delivered[-1].tag, None, None))
        harness.turn()
    told = [each.message.destination.name.rpartition(".")[2] for each in bob.session.delivered]
    assert told.count("TempQueue") == 2
