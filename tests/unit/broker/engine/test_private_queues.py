"""Internal queues of the broker are closed to all clients, except operators and the session that a queue belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.broker.core.access import Operation, PrivateAccess
from tandemmq.broker.core.commands import (
    AckMode,
    AddDestination,
    AddProducer,
    ClientError,
    Connect,
    ErrorKind,
    RemoveDestination,
)
from tandemmq.broker.core.names import MQTT_PRIVATE, MQTT_RETAINED, MQTT_SESSION
from tandemmq.broker.core.policies import DeadLetterKind, DeadLetterStrategy, DestinationPolicy, Policies, PolicyEntry
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.virtual_destinations import Composite, Forward, Mirrored, VirtualDestinations, VirtualTopic
from tandemmq.broker.security.rights import EVERYBODY, Grant, Rights
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import ORDERS, PRICES, Client, advisor

QUEUE, TOPIC = DestinationKind.QUEUE, DestinationKind.TOPIC
STATE = Destination(QUEUE, f"{MQTT_SESSION}me")
OPERATOR = Principal("admin", may_everything=True)


def queue(name: str) -> Destination:
    return Destination(QUEUE, name)


def session(harness: Any, id: str = "me") -> Any:
    """An MQTT session of that client id, connected."""
    harness.clients += 1
    client = Client(harness, f"ID:mqtt-1-{harness.clients}")
    client.handle(Connect(id, state=queue(f"{MQTT_SESSION}{id}"))).turn()
    assert client.is_connected
    return client


def operator(harness: Any) -> Any:
    harness.clients += 1
    client = Client(harness, f"ID:operator-1-{harness.clients}")
    client.vanish()
    client.is_closed = False
    harness.engine.opened_as(client, OPERATOR)
    return client


@pytest.fixture
def owner(harness: Any) -> Any:
    """A session with one record in its state, and one retained message."""
    client = session(harness)
    client.send("record", STATE, receipt="r").send("retained", MQTT_RETAINED, receipt="r").turn()
    assert client.receipts == ["r", "r"]
    return client


ATTEMPTS: dict[str, Callable[[Any, Destination], object]] = {
    "send": lambda client, to: client.send("bad", to),
    "send, not persistent": lambda client, to: client.send("bad", to, persistent=False),
    "send in a composite": lambda client, to: client.send("bad", queue(f"orders,{to.name}")),
    "send to a topic in a composite": lambda client, to: client.send(
        "bad", Destination(TOPIC, f"prices,queue://{to.name}")
    ),
    "send with options": lambda client, to: client.send("bad", queue(f"{to.name}?a=b")),
    "send in a transaction": lambda client, to: client.begin().send("bad", to, transaction="t").abort(),
    "send later": lambda client, to: client.send("bad", to, properties={"AMQ_SCHEDULED_DELAY": 1_000}),
    "send with it as the reply's address": lambda client, to: client.send("bad", reply_to=to),
    "send with it in the reply's address": lambda client, to: client.send("bad", reply_to=queue(f"a,{to.name}")),
    "produce": lambda client, to: client.handle(AddProducer("p", to)),
    "subscribe": lambda client, to: client.subscribe("s", to),
    "subscribe in a composite": lambda client, to: client.subscribe("s", queue(f"orders,{to.name}")),
    "subscribe to a pattern of them": lambda client, to: client.subscribe("s", queue(f"{MQTT_PRIVATE}>")),
    "browse": lambda client, to: client.subscribe("s", to, is_browser=True),
    "create": lambda client, to: client.handle(AddDestination(to)),
    "delete": lambda client, to: client.handle(RemoveDestination(to)),
}
# What another session may do: it sends retained messages.
ITS = {"send", "send, not persistent", "send in a composite", "send to a topic in a composite", "send with options"}
ITS |= {"send in a transaction", "send later", "produce"}


def state_of(harness: Any, destination: Destination) -> list[str]:
    """Return the content, as an operator sees it."""
    client = operator(harness)
    client.subscribe("b", destination, is_browser=True, prefetch=10).turn()
    return list(client.bodies)


@pytest.mark.parametrize(
    ("destination", "who", "attempt"),
    [
        (destination, who, attempt)
        for destination in (STATE, queue(f"{MQTT_SESSION}nobody"), MQTT_RETAINED)
        for who in ("stranger", "another session")
        for attempt in ATTEMPTS
        if who == "stranger" or destination != MQTT_RETAINED or attempt not in ITS
    ],
)
def test_other_clients_are_refused(harness: Any, owner: Any, attempt: str, who: str, destination: Destination) -> None:
    client = session(harness, "another") if who == "another session" else harness.client()
    ATTEMPTS[attempt](client, destination)
    harness.turn()
    harness.wait(5)
    assert [error.kind for error in client.session.errors] == [ErrorKind.SECURITY]
    assert "is reserved for the broker" in client.errors[0]
    assert (client.bodies, state_of(harness, STATE)) == ([], ["record"])
    assert state_of(harness, MQTT_RETAINED) == ["retained"]
    assert not harness.destinations.exists(queue(f"{MQTT_SESSION}nobody"))


@pytest.mark.parametrize("attempt", sorted(ITS))
def test_a_session_may_send_what_is_retained(harness: Any, attempt: str) -> None:
    client = session(harness, "another")
    ATTEMPTS[attempt](client, MQTT_RETAINED)
    assert client.errors == []


@pytest.mark.parametrize("operation", Operation)
def test_rights_on_everything_are_no_rights_on_them(operation: Operation) -> None:
    all_of_it = frozenset((EVERYBODY,))
    access = PrivateAccess(Everything(Rights((Grant(QUEUE, ">", *[all_of_it] * 4),))))
    access.check(Principal("ann"), operation, ORDERS)
    access.check(OPERATOR, operation, STATE)
    assert [access.may(each, operation, STATE) for each in (OPERATOR, Principal("ann"))] == [True, False]
    with pytest.raises(ClientError, match="is reserved for the broker") as caught:
        access.check(Principal("ann"), operation, STATE)
    assert (caught.value.kind, caught.value.is_fatal) == (ErrorKind.SECURITY, False)


class Everything:
    """Access with these rights."""

    def __init__(self, rights: Rights) -> None:
        self.check, self.may = rights.check, rights.may
        self.has_rights = rights.has_rights

    def connect(self, credentials: Any, then: Any) -> None:
        raise AssertionError("nobody connects")

    look = reload = close = lambda self: None


def test_the_session_may_read_create_and_delete_its_own(harness: Any, owner: Any) -> None:
    owner.subscribe("s", STATE).turn()
    assert owner.bodies == ["record"]
    owner.ack("record").unsubscribe("s").handle(RemoveDestination(STATE, "removed"))
    owner.handle(AddDestination(STATE, "added")).turn()
    assert (owner.errors, sorted(owner.receipts[2:])) == ([], ["added", "removed"])


def test_operators_may(harness: Any, owner: Any) -> None:
    client = operator(harness)
    client.send("more", STATE).subscribe("s", STATE).turn()
    assert client.bodies == ["record", "more"]
    with pytest.raises(ClientError, match="is reserved for the broker"):
        harness.engine.pause(Principal("ann"), STATE.name, consumers=True)
    harness.engine.pause(OPERATOR, STATE.name, consumers=True)


@pytest.mark.parametrize("pattern", [">", "*.*.*.*", "ActiveMQ.>", "*.MQTT.Session.*"])
@pytest.mark.parametrize("who", ["stranger", "operator"])
def test_no_pattern_of_others_means_them(harness: Any, owner: Any, pattern: str, who: str) -> None:
    client = operator(harness) if who == "operator" else harness.client()
    client.subscribe("s", queue(pattern)).send("visible", queue("ActiveMQ.not.private.one"))
    late = session(harness, "late")
    late.send("record", queue(f"{MQTT_SESSION}late")).turn()
    assert client.errors == []
    assert set(client.bodies) <= {"visible"}
    harness.fail_over()
    again = harness.consumer("s", queue(pattern)).turn()
    assert set(again.bodies) <= {"visible"}


def test_virtual_destinations_do_not_forward_from_or_to_them(make_harness: Any) -> None:
    virtual = VirtualDestinations(
        (
            Composite(QUEUE, ">", (Forward(queue("copies")),), forward_only=False),
            Composite(TOPIC, "t", (Forward(STATE),)),
        ),
        (Mirrored(">"),),
        (VirtualTopic(">", MQTT_SESSION),),
    )
    harness = make_harness(virtual_destinations=virtual)
    client = session(harness)
    client.subscribe("copies", queue("copies")).subscribe("mirror", Destination(TOPIC, ">"), AckMode.AUTO)
    client.store("record", destination=STATE)
    assert client.bodies == []
    for sender in (harness.client(), client, operator(harness)):
        sender.send("bad", Destination(TOPIC, "t"))
        sender.send("bad", Destination(TOPIC, "me"))  # the virtual topic of the queue that is STATE
        harness.turn()
        assert [error.kind for error in sender.session.errors] == [ErrorKind.SECURITY]
    assert state_of(harness, STATE) == ["record"]


def test_policies_do_not_hold_for_them(make_harness: Any) -> None:
    policy = DestinationPolicy(
        auto_create=False,
        max_destinations=0,
        max_message_size=1,
        ttl_ceiling=1_000,
        zero_expiration_override=1_000,
        all_consumers_exclusive_by_default=True,
        consumers_before_dispatch_starts=7,
        gc_inactive_destinations=True,
        inactive_timeout_before_gc=1_000,
        dead_letter=DeadLetterStrategy(DeadLetterKind.SHARED),
    )
    harness = make_harness(Policies([PolicyEntry(QUEUE, ">", policy)], policy))
    client = session(harness)
    client.send("record", STATE).send("to be over", STATE, expiration=harness.now + 1_000).turn()
    assert client.errors == []
    harness.wait(60)
    client.subscribe("s", STATE).turn()
    assert client.bodies == ["record", "to be over"], "what is kept there does not expire, nor end with its queue"
    client.nack("record").turn()
    assert not harness.destinations.exists(queue("ActiveMQ.DLQ"))


@pytest.mark.parametrize("kind", [DeadLetterKind.INDIVIDUAL, DeadLetterKind.SHARED])
def test_no_dead_letter_comes_to_them(make_harness: Any, kind: DeadLetterKind) -> None:
    strategy = DeadLetterStrategy(kind, STATE.name, "ActiveMQ.")
    harness = make_harness(DestinationPolicy(dead_letter=strategy))
    client = harness.consumer("s", queue("MQTT.Session.me"))
    client.send("bad", queue("MQTT.Session.me")).turn().nack("bad").turn()
    assert state_of(harness, queue("ActiveMQ.DLQ")) == ["bad"]
    assert not harness.destinations.exists(STATE)


def test_there_are_no_advisories_about_them(make_harness: Any) -> None:
    policy = DestinationPolicy(
        advisory_for_consumed=True,
        advisory_for_delivery=True,
        advisory_for_dispatched=True,
        send_advisory_if_no_consumers=True,
        advisory_when_full=True,
    )
    harness = make_harness(policy, advisor())

    def listen() -> Any:
        return harness.consumer("l", Destination(TOPIC, "ActiveMQ.Advisory.>"), AckMode.AUTO).turn()

    listener = listen()
    client = session(harness)
    client.subscribe("s", STATE).handle(AddProducer("p", STATE)).send("record", STATE)
    client.send("volatile", STATE, persistent=False).turn()
    later = listen()
    client.ack("record").unsubscribe("s").handle(RemoveDestination(STATE)).turn()
    heard = [each.message for each in (*listener.session.delivered, *later.session.delivered)]
    assert heard, "of connections"
    assert [each for each in heard if MQTT_PRIVATE in each.destination.name or MQTT_PRIVATE.encode() in each.raw] == []


def test_a_session_learns_who_its_client_is_and_whether_there_is_state_of_it(harness: Any) -> None:
    def connected() -> tuple[Any, Connect]:
        command = Connect("me", login="anna", state=STATE, steals_client_id=True)
        return harness.client().handle(command).turn(), command

    client, command = connected()
    assert client.is_connected
    assert command.principal == Principal("anna", is_proved=False)
    assert command.may_read(PRICES)
    assert not command.has_state
    client.send("kept", STATE).turn().vanish()
    assert connected()[1].has_state
    harness.fail_over()
    assert connected()[1].has_state
