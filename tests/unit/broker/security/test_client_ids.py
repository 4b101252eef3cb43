"""A client id belongs to the user who has state under it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.broker.core.access import OpenAccess
from tandemmq.broker.core.commands import AckMode, ClientError, Connect, ErrorKind
from tandemmq.broker.core.destinations import Destinations
from tandemmq.broker.core.names import MQTT_SESSION
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.topics.shared import Holdings
from tandemmq.broker.security.rights import Grant
from tandemmq.broker.settings.engine import engine_settings
from tandemmq.config.load import load
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.core.counting import count_calls
from tests.unit.broker.engine.conftest import PRICES, Client
from tests.unit.broker.security.conftest import RuledAccess
from tests.unit.broker.security.test_connection_ids import Everybody, Secured

pytestmark = pytest.mark.promise("ids-have-owners")

EVERYBODY = frozenset({"*"})
ADMINS = frozenset({"admins"})
ORDERS_TOPIC = Destination(DestinationKind.TOPIC, "orders")
RIGHTS = [
    Grant(DestinationKind.TOPIC, ">", EVERYBODY, EVERYBODY, ADMINS),
    Grant(DestinationKind.QUEUE, ">", EVERYBODY, EVERYBODY, ADMINS),
]


class FakeSessions:
    """The sessions of MQTT clients, of which it is known at once, or when asked later, whose they are."""

    def __init__(self) -> None:
        self.users: dict[str, str | ClientError] = {}
        self.waiting: list[Callable[[], None]] | None = None

    def find_user(self, client_id: str, then: Callable[[str | ClientError | None], None]) -> None:
        if self.waiting is None:
            then(self.users.get(client_id))
        else:
            self.waiting.append(lambda: then(self.users.get(client_id)))


class Harness(Secured):
    access = RuledAccess({"root": ADMINS}, RIGHTS)
    sessions: FakeSessions

    def come(self, name: str) -> Any:
        client = self.user(name, None, client_id="till")
        self.turn()
        return client


def with_sessions(harness: Harness) -> Harness:
    harness.engine.know_sessions(harness.sessions)
    return harness


@pytest.fixture
def harness() -> Harness:
    harness = Harness(EngineSettings())
    harness.sessions = FakeSessions()
    return with_sessions(harness)


def durable(harness: Harness) -> None:
    harness.user("root", None, client_id="maker").send("", PRICES)  # the topic is there
    alice = harness.come("alice")
    alice.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    harness.turn()
    alice.vanish()
    harness.turn()


def session(harness: Harness) -> None:
    harness.sessions.users["till"] = "alice"


def nothing(harness: Harness) -> None:
    harness.come("alice").vanish()
    harness.turn()


STATES = {"a durable subscription": durable, "a session": session, "nothing": nothing}


@pytest.mark.parametrize("is_after_failover", [False, True])
@pytest.mark.parametrize("state", STATES)
def test_only_its_owner_and_admins_connect_with_it(harness: Harness, state: str, is_after_failover: bool) -> None:
    # proves: a-client-id-is-its-owners
    STATES[state](harness)
    if is_after_failover:
        harness.fail_over()
        with_sessions(harness)
    for name, may in (("mallory", state == "nothing"), ("alice", True), ("root", True)):
        client = harness.come(name)
        assert client.is_connected is may, name
        if not may:
            assert [(each.kind, each.is_fatal) for each in client.session.errors] == [(ErrorKind.SECURITY, True)]
        client.vanish()
        harness.turn()


@pytest.mark.parametrize("state", STATES)
def test_its_owner_comes_in_where_another_is_connected(harness: Harness, state: str) -> None:
    # proves: an-owner-gets-its-client-id
    STATES[state](harness)
    gives_way = state != "nothing"
    root, alice = harness.come("root"), harness.come("alice")
    assert alice.is_connected is gives_way
    assert root.is_closed is gives_way
    assert [each.kind for each in root.session.errors] == ([ErrorKind.TAKEN_OVER] if gives_way else [])
    texts = "".join(root.errors + alice.errors)
    assert "10.0.0.1" not in texts, "nobody learns the address of another user"
    if gives_way:
        assert not harness.come("root").is_connected, "the owner keeps it"


USES = {
    "another durable subscription": (PRICES, "mine", [ErrorKind.SECURITY]),
    "one in the place of the owner's": (ORDERS_TOPIC, "d", [ErrorKind.SECURITY]),
    "one that has no user": (PRICES, "unclaimed", []),
    "the owner's": (PRICES, "d", []),
}


@pytest.mark.parametrize("use", USES)
def test_an_operator_creates_no_state_under_the_client_id_and_gives_way(harness: Harness, use: str) -> None:
    # proves: a-guest-makes-no-durable, a-guest-claims-nothing
    topic, name, errors = USES[use]
    harness.access = OpenAccess(is_everywhere=True)  # from before users were set up
    harness.fail_over()
    harness.user("alice", None, client_id="till").subscribe("u", PRICES, AckMode.AUTO, durable_name="unclaimed")
    harness.turn()
    harness.access = Harness.access
    harness.fail_over()
    with_sessions(harness)
    durable(harness)
    root = harness.come("root")
    root.subscribe("s", topic, AckMode.INDIVIDUAL, durable_name=name)
    harness.turn()
    assert [each.kind for each in root.session.errors] == errors
    assert harness.come("alice").is_connected
    assert root.is_closed
    assert "root" not in [each.user for each in harness.store.owners()]


def test_an_operator_has_no_session_under_it(harness: Harness) -> None:
    # proves: a-guest-has-no-session
    durable(harness)
    root = Client(harness, harness.connection_id())
    root.handle(Connect("till", "root", state=Destination(DestinationKind.QUEUE, f"{MQTT_SESSION}till")))
    assert [each.kind for each in root.session.errors] == [ErrorKind.SECURITY]
    assert harness.come("alice").is_connected


@pytest.mark.parametrize("state", ["a durable subscription", "a session"])
def test_without_rights_no_user_is_an_operator(state: str) -> None:
    # proves: an-operator-was-granted-it
    harness = Harness(EngineSettings())
    harness.access = Everybody()
    harness.sessions = FakeSessions()
    harness.fail_over()
    with_sessions(harness)
    STATES[state](harness)
    assert not harness.come("root").is_connected
    assert harness.come("alice").is_connected


def test_another_owner_is_checked_before_anything_takes_effect(harness: Harness) -> None:
    session(harness)
    harness.sessions.waiting = []
    mallory = harness.user("mallory", None, client_id="till")
    mallory.send("too early", PRICES)
    assert not mallory.is_reading
    [answer] = harness.sessions.waiting
    answer()
    assert [each.kind for each in mallory.session.errors] == [ErrorKind.SECURITY]
    harness.sessions.users["till"] = ClientError("the store says nothing")
    harness.sessions.waiting = None
    assert harness.come("alice").errors == ["the store says nothing"]


def test_the_owner_comes_in_while_the_session_is_read_for_another(harness: Harness) -> None:
    """An MQTT client has its client id while it reads the session, which may turn out to be another user's."""
    session(harness)
    state = Destination(DestinationKind.QUEUE, f"{MQTT_SESSION}till")
    clients = {}
    for name in ("mallory", "alice"):
        clients[name] = client = Client(harness, harness.connection_id())
        client.handle(Connect("till", name, state=state))
    assert clients["mallory"].is_closed
    assert clients["alice"].is_connected
    assert not clients["alice"].is_closed


def test_it_is_free_again_when_its_last_subscription_was_deleted(harness: Harness) -> None:
    harness.user("root", None, client_id="maker").send("", PRICES)
    alice = harness.come("alice")
    for name in ("d", "e"):
        alice.subscribe(name, PRICES, AckMode.INDIVIDUAL, durable_name=name).turn()
    alice.subscribe("f", PRICES, share="#s", has_terms=True, durable_name="f").turn()
    alice.vanish()
    harness.fail_over()
    with_sessions(harness)
    for name in ("d", "e", "f"):
        assert not harness.come("mallory").is_connected, name
        alice = harness.come("alice").unsubscribe(None, durable_name=name).turn()
        alice.vanish()
        harness.turn()
    assert harness.come("mallory").is_connected


def test_its_other_subscriptions_are_not_examined_for_a_new_one(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.user("root", None, client_id="maker").send("", PRICES)
    alice = harness.come("alice")
    alice.subscribe("d", PRICES, AckMode.INDIVIDUAL, durable_name="d").turn()
    lists = [count_calls(monkeypatch, *each) for each in ((Destinations, "durable_names"), (Holdings, "of"))]
    alice.subscribe("e", PRICES, AckMode.INDIVIDUAL, durable_name="e", receipt="begun").turn()
    alice.vanish()
    harness.turn()
    assert alice.receipts == ["begun"]
    assert harness.come("alice").is_connected
    assert [each.count for each in lists] == [0, 0]


def test_a_client_that_hung_up_meanwhile_gets_nothing(harness: Harness) -> None:
    harness.sessions.waiting = []
    gone = harness.user("alice", None, client_id="till")
    gone.vanish()
    for answer in harness.sessions.waiting:
        answer()
    harness.sessions.waiting = None
    assert not gone.is_connected
    assert harness.come("bob").is_connected


def test_two_owners_may_both_come_and_the_first_stays(harness: Harness) -> None:
    """A journal of a former version may contain two owners."""
    durable(harness)
    session(harness)
    harness.sessions.users["till"] = "bob"
    bob = harness.come("bob")
    assert bob.is_connected
    assert not harness.come("alice").is_connected
    bob.vanish()
    harness.turn()
    assert harness.come("alice").is_connected


@pytest.mark.parametrize(
    ("client_id", "is_taken"),
    [
        ("ann", True),
        ("ann-1", True),
        ("ann/till", True),
        ("ann:1", True),
        ("anna", False),
        ("ann1", False),
        ("ann_1", True),
        ("till", False),
        ("bob-ann", False),
        ("ID:host-5001-1700000000000-0:1", True),  # what Java clients generate
        (None, True),
    ],
)
@pytest.mark.parametrize("is_set", [True, False])
def test_it_may_have_to_begin_with_the_name_of_its_user(client_id: str | None, is_taken: bool, is_set: bool) -> None:
    # proves: a-client-id-begins-with-its-user
    asked = load(None, {}, [f"security.client_id_begins_with_user={str(is_set).lower()}"])
    harness = Harness(engine_settings(asked))
    client = harness.user("ann", None, client_id=client_id)
    assert client.is_connected is (is_taken or not is_set)
    if not client.is_connected:
        assert [each.kind for each in client.session.errors] == [ErrorKind.CLIENT_ID]
