"""Work for an absent client stops when the client connects."""

# proves: will-ends-with-its-record
# proves: session-of-a-client-that-came-back, time-to-come-back, wills-with-the-rights-of-now

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tandemmq.broker.core.commands import AckMode, ClientError, Connect, Send, Subscribe
from tandemmq.broker.core.memory import Kind as Held
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.slices import ITEMS
from tandemmq.broker.engine.in_process import InProcessClient
from tandemmq.broker.mqtt.session_expiry import AWAY_BYTES, GRACE_SECONDS
from tandemmq.broker.protocols.mqtt.conversation import ConnectionEnd
from tandemmq.broker.protocols.mqtt.messages import bytes_of, properties_of
from tandemmq.broker.protocols.mqtt.packets import Filter, Will
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tandemmq.broker.protocols.mqtt.session_records import NEVER, Kind, SessionRecord, SubscriptionRecord, queue_of
from tandemmq.broker.protocols.mqtt.topics import destination_of
from tandemmq.broker.security.rights import EVERYBODY, Grant
from tandemmq.store.records.message import DestinationKind, Message
from tests.unit.broker.mqtt.conftest import Terms
from tests.unit.broker.security.conftest import RuledAccess

pytestmark = pytest.mark.promise("mqtt-sessions-end", "mqtt-wills")

WILL = Will("wills/one", b"gone", 1, False, NONE)
SOMEONE = Principal("someone", is_proved=False)


class Watcher(InProcessClient):
    """Sees all wills."""

    def __init__(self, terms: Terms) -> None:
        self.seen: list[Message] = []
        super().__init__(terms.engine, SOMEONE, "watcher", "watcher")
        terms.engine.handle(self, Subscribe("w", destination_of("wills/#"), AckMode.AUTO))

    def deliver(self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode) -> None:
        self.seen.append(message)


@pytest.fixture
async def watcher(terms: Terms) -> AsyncIterator[Watcher]:
    watcher = Watcher(terms)
    yield watcher
    terms.engine.closed(watcher)


async def _store(terms: Terms, client_id: str, *, expiry: int, left_at: int = 0, will: Will | None = None) -> None:
    """Store the state that a session leaves behind."""
    queue = queue_of(client_id)
    kept = SessionRecord(expiry, None, frozenset(), will=will, left_at=left_at)
    name = "AT_LEAST_ONCE:a/#"
    subscription = SubscriptionRecord(Filter("a/#", 1, False, False, 0), name)
    client = terms.client(client_id)
    await client.enter(Connect(client_id, state=queue))
    await client.do(Subscribe("1", destination_of("a/#"), AckMode.INDIVIDUAL, durable_name=name))
    for body, kind in ((kept.encode(), Kind.SESSION), (subscription.encode(), Kind.SUBSCRIPTION)):
        await client.do(Send(terms.message(queue, body, kind)))
    terms.engine.closed(client)


def _left(
    client_id: str, *, expiry: int, will: Will | None = None, is_stored: bool = True, will_bytes: int = 0
) -> ConnectionEnd:
    return ConnectionEnd(
        client_id, SOMEONE, will, queue_of(client_id) if is_stored else None, expiry, will_bytes=will_bytes
    )


async def test_an_expired_session_leaves_nothing_in_the_store(terms: Terms) -> None:
    await _store(terms, "one", expiry=0)
    terms.clients.client_connected("one", is_resumed=True)
    terms.clients.client_left(_left("one", expiry=0))
    await terms.until(lambda: terms.store.owners() == [])
    assert terms.clients.counts["mqtt_sessions_expired_total"] == 1


async def test_a_client_that_is_there_keeps_its_session(terms: Terms) -> None:
    await _store(terms, "one", expiry=NEVER)
    there = terms.client("one")
    await there.enter(Connect("one", state=queue_of("one")))
    stand_in = terms.client("one")
    with pytest.raises(ClientError):
        await stand_in.enter(Connect("one", state=queue_of("one")))


async def test_a_connecting_client_replaces_the_broker_that_acts_for_it(terms: Terms) -> None:
    stand_in = terms.client("one")
    await stand_in.enter(Connect("one", state=queue_of("one")))
    waiting = asyncio.ensure_future(stand_in.await_answer(stand_in._is_shown))
    other = InProcessClient(terms.engine, Principal("another"), "real", "real")
    terms.engine.handle(other, Connect("one", receipt="r"))
    await terms.until(lambda: other.client is not None and other.client.id == "one")
    with pytest.raises(ClientError):
        await waiting


async def test_a_new_term_ends_sessions_and_publishes_wills_whose_time_has_come(terms: Terms) -> None:
    hour = 3_600_000
    with_will = Will("wills/due", b"", 1, False, Properties(will_delay=60))
    await _store(terms, "over", expiry=60, left_at=terms.now)
    await _store(terms, "due", expiry=7_200, left_at=terms.now, will=with_will)
    await _store(terms, "stays", expiry=7_200, left_at=terms.now)
    await _store(terms, "for-ever", expiry=NEVER, left_at=terms.now)
    terms.now += hour
    terms.again()
    watcher = Watcher(terms)
    await terms.until(lambda: terms.stored(queue_of("over")) == 0 and watcher.seen)
    assert [message.destination.name for message in watcher.seen] == ["wills.due"]
    await terms.until(lambda: terms.stored(queue_of("due")) == 3)  # a record without the will
    # It is not published again by the next one.
    terms.again()
    watcher = Watcher(terms)
    await _store(terms, "marker", expiry=1, left_at=terms.now - hour, will=Will("wills/marker", b"", 0, False, NONE))
    terms.again()
    watcher = Watcher(terms)
    await terms.until(lambda: watcher.seen)
    assert [message.destination.name for message in watcher.seen] == ["wills.marker"]
    names = {owner.destination for owner in terms.store.owners()}
    assert {queue_of("stays"), queue_of("for-ever"), queue_of("due")} <= names


@pytest.mark.parametrize("change", ["none", "right", "user"])
async def test_a_will_needs_the_right_that_its_user_has_when_it_is_published(
    terms: Terms, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    all_may, writers = frozenset({EVERYBODY}), frozenset({"writers"})
    groups = {"ann": writers}
    terms.access = RuledAccess(groups, [Grant(DestinationKind.TOPIC, ">", all_may, writers, all_may)])
    terms.again()
    watcher = Watcher(terms)
    if change == "user":
        del groups["ann"]
    elif change == "right":
        groups["ann"] = frozenset()
    owner = Principal("ann", writers)  # as it was when the client connected
    terms.clients.client_left(ConnectionEnd("one", owner, WILL, None, 0))
    is_refused = lambda: "the will of MQTT client one is not published" in caplog.text  # noqa: E731
    await terms.until(is_refused if change != "none" else lambda: watcher.seen)
    assert len(watcher.seen) == (change == "none")


async def test_a_client_that_comes_back_within_the_grace_has_no_will(terms: Terms) -> None:
    await _store(terms, "one", expiry=NEVER, will=WILL)
    terms.again()
    watcher = Watcher(terms)
    await asyncio.sleep(GRACE_SECONDS / 2)
    terms.clients.client_connected("one", is_resumed=True)
    await _time_passes()
    assert watcher.seen == []
    terms.again()  # who does not come back has one
    watcher = Watcher(terms)
    await asyncio.sleep(GRACE_SECONDS / 2)
    assert watcher.seen == []
    await _time_passes()
    assert [message.destination.name for message in watcher.seen] == ["wills.one"]


async def test_a_new_term_gives_every_client_time_to_come_back(terms: Terms) -> None:
    await _store(terms, "one", expiry=1)
    terms.again()
    await asyncio.sleep(GRACE_SECONDS / 2)
    assert terms.stored(queue_of("one")) == 2
    await terms.until(lambda: terms.store.owners() == [])


async def test_a_session_whose_client_returned_and_left_meanwhile_does_not_end(terms: Terms) -> None:
    await _store(terms, "one", expiry=60)
    terms.clients.client_connected("one", is_resumed=True)
    terms.clients.client_left(_left("one", expiry=60))
    term = terms.clients._term
    assert term is not None
    endings = term.sessions
    endings._end_soon(endings._away["one"])  # its time is over
    terms.clients.client_connected("one", is_resumed=True)
    terms.clients.client_left(_left("one", expiry=60))
    await asyncio.sleep(1)
    assert terms.stored(queue_of("one")) == 2


async def test_a_will_without_delay_is_published_though_its_client_comes_back(terms: Terms, watcher: Watcher) -> None:
    terms.clients.client_connected("one", is_resumed=False)
    terms.clients.client_left(_left("one", expiry=NEVER, will=WILL))
    terms.clients.client_connected("one", is_resumed=True)
    await terms.until(lambda: watcher.seen)
    assert watcher.seen[0].body == b"gone"
    assert terms.stored(queue_of("one")) == 0  # what it wrote itself is newer


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_will_is_published_when_its_session_ends(terms: Terms, watcher: Watcher, is_stored: bool) -> None:
    """MQTT-3.1.2-8. A session that is not stored ends with its connection."""
    will = Will("wills/one", b"gone", 1, False, Properties(will_delay=NEVER - 1))
    if is_stored:
        await _store(terms, "one", expiry=5)
    terms.clients.client_connected("one", is_resumed=is_stored)
    terms.clients.client_left(_left("one", expiry=5, will=will, is_stored=is_stored))
    await terms.until(lambda: watcher.seen and not terms.stored(queue_of("one")))
    assert [message.destination.name for message in watcher.seen] == ["wills.one"]


async def test_a_client_that_reconnects_often_has_one_timer(terms: Terms) -> None:
    before = terms.engine.memory.used
    later = Will("wills/one", b"x" * 1_000, 1, False, Properties(will_delay=3_000))
    for number in range(4 * ITEMS):
        assert terms.clients.may_have_will(SOMEONE, bytes_of(later))
        terms.clients.client_connected("one", is_resumed=number > 0)
        terms.clients.client_left(_left("one", expiry=1_000_000, will=later, will_bytes=bytes_of(later)))
    term = terms.clients._term
    assert term is not None
    endings = term.sessions
    assert len(endings._due) < 2 * ITEMS
    assert terms.engine.memory.used - before == AWAY_BYTES + bytes_of(later)
    terms.clients.client_connected("one", is_resumed=True)
    assert terms.engine.memory.used == before


async def test_nobodys_wills_have_more_memory_than_is_left(terms: Terms, watcher: Watcher) -> None:
    memory = terms.engine.memory
    memory.limit = memory.used + (2 << 20)
    will = Will("wills/large", b"x" * 50_000, 1, False, Properties(will_delay=3_000))
    size = bytes_of(will)
    eve, alice = Principal("eve"), Principal("alice")
    clients = 0
    while terms.clients.may_have_will(eve, size):
        clients += 1
        name = f"eve {clients}"
        terms.clients.client_connected(name, is_resumed=False)
        queue = queue_of(name)
        terms.clients.client_left(ConnectionEnd(name, eve, will, queue, 3_000, will_bytes=size))
    assert (1 << 20) - size <= clients * size <= 1 << 20
    assert terms.clients.may_have_will(alice, size)
    terms.clients.release_will(alice, size)
    for number in range(clients):  # a new session begins: the will of the former one is published
        terms.clients.client_connected(f"eve {number + 1}", is_resumed=False)
    await terms.until(lambda: len(watcher.seen) == clients)
    await terms.until(lambda: terms.clients.may_have_will(eve, size))
    terms.clients.release_will(eve, size)
    await terms.until(lambda: not memory.by_kind[Held.WAITING_SENDS])


async def test_a_will_that_may_not_be_published_is_given_back(terms: Terms) -> None:
    before = terms.engine.memory.used
    forbidden = Will("ActiveMQ/Advisory/Connection", b"x" * 1_000, 1, False, NONE)
    assert terms.clients.may_have_will(SOMEONE, 1_000)
    terms.clients.client_connected("one", is_resumed=False)
    terms.clients.client_left(_left("one", expiry=0, will=forbidden, is_stored=False, will_bytes=1_000))
    await terms.until(lambda: terms.engine.memory.used == before)
    assert terms.clients.counts["mqtt_wills_published_total"] == 0


async def test_the_user_properties_of_a_will_keep_their_order(terms: Terms) -> None:
    """MQTT-3.1.3-10 of 5.0; of a stored session by its record, too."""
    user = (("b", "1"), ("a", "2"), ("b", "0"))
    will = Will("wills/one", b"gone", 1, False, Properties(user=user))
    await _store(terms, "one", expiry=0, left_at=terms.now - 1, will=will)
    terms.again()
    watcher = Watcher(terms)
    await terms.until(lambda: watcher.seen)
    assert properties_of(watcher.seen[0], terms.now).user == user


@pytest.mark.parametrize(("delay", "is_resumed", "is_published"), [(0, True, True), (9, True, False), (9, False, True)])
async def test_a_take_over_that_is_told_late(
    terms: Terms, watcher: Watcher, delay: int, is_resumed: bool, is_published: bool
) -> None:
    will = Will("wills/one", b"", 1, False, Properties(will_delay=delay))
    terms.clients.client_connected("one", is_resumed=False)
    terms.clients.client_connected("one", is_resumed=is_resumed)
    terms.clients.client_left(_left("one", expiry=NEVER, will=will))
    last = Will("wills/last", b"", 1, False, NONE)
    terms.clients.client_connected("two", is_resumed=False)
    terms.clients.client_left(_left("two", expiry=0, will=last, is_stored=False))
    await terms.until(lambda: any(each.destination.name == "wills.last" for each in watcher.seen))
    await terms.until(lambda: terms.clients.counts["mqtt_wills_published_total"] == 1 + is_published)
    assert (len(watcher.seen), terms.clients.counts["mqtt_clients"]) == (1 + is_published, 1)


async def _time_passes() -> None:
    """Let enough time pass that absent clients are noted."""
    await asyncio.sleep(GRACE_SECONDS + 1)


@pytest.mark.parametrize("is_told", [True, False])
async def test_the_time_of_a_client_that_was_cut_off_goes_on_over_terms(terms: Terms, is_told: bool) -> None:
    """``is_told``: it was cut off in this term; else it was there when the former one ended, and did not come back."""
    hour = 3_600_000
    will = Will("wills/one", b"gone", 1, False, Properties(will_delay=3_600))
    await _store(terms, "one", expiry=7_200, will=will)
    if is_told:
        terms.clients.client_connected("one", is_resumed=True)
        terms.clients.client_left(_left("one", expiry=7_200, will=will))
    else:
        terms.again()
    await _time_passes()
    await terms.until(lambda: terms.stored(queue_of("one")) == 3)
    await _time_passes()  # once is enough
    terms.now += hour
    terms.again()
    watcher = Watcher(terms)
    await terms.until(lambda: watcher.seen)
    assert [message.destination.name for message in watcher.seen] == ["wills.one"]
    await terms.until(lambda: terms.stored(queue_of("one")) == 4)  # a record without the will
    terms.now += hour
    terms.again()
    await terms.until(lambda: terms.store.owners() == [])


async def test_a_client_that_returns_soon_or_left_in_order_is_not_noted(terms: Terms) -> None:
    for client_id in ("back", "ordered", "cut"):
        await _store(terms, client_id, expiry=60)
        terms.clients.client_connected(client_id, is_resumed=True)
    terms.clients.client_left(_left("back", expiry=60))
    terms.clients.client_connected("back", is_resumed=True)
    terms.clients.client_left(ConnectionEnd("ordered", SOMEONE, None, queue_of("ordered"), 60, is_noted=True))
    terms.clients.client_left(_left("cut", expiry=60))
    await _time_passes()
    await terms.until(lambda: terms.stored(queue_of("cut")) == 3)
    assert terms.stored(queue_of("back")) == terms.stored(queue_of("ordered")) == 2


async def test_a_noted_absence_is_older_than_the_clients_own_record(terms: Terms) -> None:
    """The client connects while its absence is noted: from then on nothing may be noted."""
    await _store(terms, "one", expiry=60)
    terms.clients.client_connected("one", is_resumed=True)
    terms.clients.client_left(_left("one", expiry=60))
    there = terms.client("one")
    await there.enter(Connect("one", state=queue_of("one")))
    await _time_passes()
    assert terms.stored(queue_of("one")) == 2
    terms.engine.closed(there)
    await _time_passes()  # it tries again
    assert terms.stored(queue_of("one")) == 3
