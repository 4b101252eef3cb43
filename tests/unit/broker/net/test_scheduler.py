"""Scheduled messages with a store in memory, and a clock that the test controls."""

from __future__ import annotations

import random
import zlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.broker.core.client import Client, Connection
from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.core.memory import Holder, Memory
from tandemmq.broker.core.operations import encode_payload
from tandemmq.broker.core.scheduling.scheduled_message import PENDING
from tandemmq.broker.core.slices import ITEMS, Pace, Work, begin
from tandemmq.broker.engine import scheduler as module
from tandemmq.broker.engine.part import Loop
from tandemmq.broker.engine.scheduler import MANAGEMENT, PUT_OFF_MS, REQUESTS_MAX, Scheduler
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.codec import STORED
from tandemmq.broker.protocols.openwire.types import MessageId
from tandemmq.store.operations import AddMessage, Atomic, Operation, Page, RemoveMessage
from tandemmq.store.records.commands import AddMessage as AddRecord
from tandemmq.store.records.commands import decode
from tandemmq.store.records.frames import accept_frame, open_message
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.properties import encode_properties
from tests.support.protocols.openwire.peer import PRODUCER
from tests.support.store.memory_store import MemoryStore

ORDERS = Destination(DestinationKind.QUEUE, "orders")
REPLIES = Destination(DestinationKind.TEMP_QUEUE, "ID:c:1")
MINUTE = 60_000
START = 1_700_000_000_000 // MINUTE * MINUTE


class Harness:
    """Parts of an engine that the scheduler needs. ``sent``: messages that it sent, when durable."""

    def __init__(self) -> None:
        self.now = START
        self.chance = random.Random(7)
        self.soon: deque[Callable[[], None]] = deque()
        self.store = MemoryStore(self.soon.append)
        self.pending_owner = self.store.queue(PENDING)
        self.orders_owner = self.store.queue(ORDERS)
        self.unwritten: list[Operation] = []
        self.sent: list[Message] = []
        self.times: list[int] = []
        self.replies: list[Message] = []
        self.refusals = 0
        self.epoch = 0
        self.sequence = 0
        self.holder = Holder(Memory(1 << 20))
        self.session = self  # of who acts for users
        self.promote()

    def promote(self) -> None:
        self.epoch += 1
        count = next(owner.count for owner in self.store.owners() if owner.id == self.pending_owner)
        append = self.unwritten.append
        self.scheduler = Scheduler(
            append, self, self.pending_owner, count, self.epoch, Loop(lambda: self.now, start=self.start)
        )
        self.store.start(self)

    def acting_for(self, user: str | None) -> Client:
        return Client(cast("Connection", self))

    def check_due(self, client: Client, message: Message) -> None: ...

    def check_room(self, message: Message) -> None: ...

    def bury_due(self, user: str | None, message: Message, cause: str, parts: Sequence[Any]) -> None:
        raise AssertionError(cause)

    def send_due(
        self, client: Client, message: Message, parts: Sequence[AddMessage | RemoveMessage], pace: Pace
    ) -> Work[None]:
        if pace.is_full(self.chance.randrange(ITEMS)):
            yield
        if self.refusals:
            self.refusals -= 1
            raise ClientError("no room")
        if message.destination == REPLIES:
            self.replies.append(message)
            return
        assert message.destination == ORDERS
        self.unwritten.append(Atomic((AddMessage(message, (self.orders_owner,), encode_payload(message)), *parts)))

    def durable(self, operations: list[Operation]) -> None:
        for operation in operations:
            for part in operation.operations if isinstance(operation, Atomic) else (operation,):
                if isinstance(part, Page):
                    for found in part.messages:  # what the real store reads back is made of bytes
                        found.message = open_message(encode_message(found.message))
                    part.context.durable(part)
                elif isinstance(part, AddMessage) and part.owners == (self.pending_owner,):
                    self.scheduler.durable(part)
                elif isinstance(part, AddMessage):
                    record = decode(part.payload)
                    assert isinstance(record, AddRecord)
                    self.sent.append(open_message(record.message))
                    self.times.append(self.now - START)

    def step(self, work: Work[None]) -> None:
        """A step of it, and the next when others had their turn."""
        begin(work, self.start)

    def start(self, work: Work[None]) -> None:
        self.soon.append(lambda: self.step(work))

    def drained(self) -> None: ...

    def turn(self) -> None:
        """Store all operations, and make the calls that follow, until no work is left."""
        while self.unwritten or self.soon:
            unwritten = list(self.unwritten)
            self.unwritten.clear()
            for operation in unwritten:
                self.store.append(operation)
            while self.soon:
                self.soon.popleft()()

    def crash(self, written: int) -> None:
        """Write so many more operations without reporting them, then start the next broker."""
        for operation in self.unwritten[:written]:
            self.store.append(operation)
        self.unwritten.clear()
        while self.soon:
            self.soon.popleft()()  # for the old engine: its earlier sends count, later ones do not
        self.unwritten.clear()
        self.promote()

    def at(self, milliseconds: int) -> None:
        self.now = START + milliseconds
        self.scheduler.tick(self.now)
        self.turn()

    def send(self, body: str = "hi", **schedule: Any) -> None:
        message = self.message(body, **schedule)
        pending = self.scheduler.take(message)
        assert pending is not None
        self.unwritten.append(AddMessage(pending, (self.pending_owner,), encode_payload(pending)))

    def message(self, body: str = "hi", **schedule: Any) -> Message:
        self.sequence += 1
        properties = {f"AMQ_SCHEDULED_{name}": value for name, value in schedule.items()} | {"colour": "red"}
        return Message(
            ORDERS,
            f"ID:client:1:1:{self.sequence}",
            body.encode(),
            BodyKind.TEXT,
            persistent=True,
            timestamp=self.now,
            properties=properties,
        )

    @property
    def bodies(self) -> list[str]:
        return [message.body.decode() for message in self.sent]

    @property
    def held(self) -> int:
        return next(owner.count for owner in self.store.owners() if owner.id == self.pending_owner)


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.mark.parametrize("properties", [{"DELAY": 5, "PERIOD": 10, "REPEAT": 1}, {"CRON": "* * * * *"}])
def test_a_compressed_body_stays_as_its_producer_compressed_it(harness: Harness, properties: dict[str, Any]) -> None:
    """However often it comes: what waits is as large as what was sent, and not what that inflates to."""
    scheduled = {f"AMQ_SCHEDULED_{name}": value for name, value in properties.items()}
    stream = zlib.compress(bytes(1 << 20))
    wire = schema.ActiveMQBytesMessage(
        1, False, producer_id=PRODUCER, destination=ORDERS, message_id=MessageId(None, PRODUCER, 1, 0), timestamp=START
    )
    wire.marshalled_properties = encode_properties(scheduled)
    wire.content, wire.compressed = (1 << 20).to_bytes(4, "big") + stream, True
    waiting = harness.scheduler.take(accept_frame(STORED.encode(wire), 1, START).message)
    assert waiting is not None
    harness.unwritten.append(AddMessage(waiting, (harness.pending_owner,), encode_payload(waiting)))
    harness.turn()
    for time in range(0, 3 * MINUTE, 5):
        harness.at(time)
    assert len(harness.sent) == 2
    for message in harness.sent:
        raw = encode_message(message)
        assert stream in raw
        assert len(raw) < len(stream) + 1000
        assert message.body == bytes(1 << 20)
        assert message.properties == {"scheduledJobId": f"{PRODUCER}:1"}


class TestSending:
    def test_a_repeated_message_comes_so_often_each_with_its_own_id(self, harness: Harness) -> None:
        harness.send(DELAY=5, PERIOD=100, REPEAT=2)
        harness.turn()
        for time in range(0, 1000, 5):
            harness.at(time)
        assert harness.times == [5, 105, 205]
        ids = {message.message_id for message in harness.sent}
        assert len(ids | {"ID:client:1:1:1"}) == 4
        assert {(message.properties or {})["scheduledJobId"] for message in harness.sent} == {"ID:client:1:1:1"}
        assert harness.held == 0

    def test_a_cron_entry_with_repetitions_begins_runs(self, harness: Harness) -> None:
        harness.send(CRON="* * * * *", DELAY=1000, PERIOD=2000, REPEAT=1)
        harness.turn()
        for time in range(0, 2 * MINUTE + 5000, 500):
            harness.at(time)
        assert harness.times == [MINUTE + 1000, MINUTE + 3000, 2 * MINUTE + 1000, 2 * MINUTE + 3000]
        assert harness.held == 1

    def test_its_time_to_live_begins_when_it_is_sent(self, harness: Harness) -> None:
        message = harness.message(DELAY=5000)
        message.expiration = message.timestamp + 1000
        pending = harness.scheduler.take(message)
        assert pending is not None
        harness.unwritten.append(AddMessage(pending, (harness.pending_owner,), encode_payload(pending)))
        harness.turn()
        harness.at(5000)
        assert (harness.sent[0].timestamp, harness.sent[0].expiration) == (START + 5000, START + 6000)

    def test_a_message_without_a_destination_is_removed(
        self, harness: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        stray = Message(PENDING, "ID:x:1:1:1", b"", BodyKind.TEXT)
        harness.unwritten.append(AddMessage(stray, (harness.pending_owner,), encode_payload(stray)))
        harness.turn()
        harness.at(1)
        assert (harness.sent, harness.held, harness.scheduler.count) == ([], 0, 0)
        assert "names no destination" in caplog.text

    def test_others_are_left_alone(self, harness: Harness) -> None:
        assert harness.scheduler.take(harness.message()) is None
        again = harness.message(DELAY=5)
        again.properties = {**(again.properties or {}), "scheduledJobId": "ID:x"}
        assert harness.scheduler.take(again) is None

    def test_their_number_has_a_bound(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "PENDING_MESSAGES_MAX", 2)
        for _ in range(2):
            harness.send(DELAY=5)
            harness.turn()
        with pytest.raises(ClientError, match="2 scheduled messages are waiting"):
            harness.send(DELAY=5)


class TestPromotion:
    def test_a_message_scheduled_during_the_read_is_known_once(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "PAGE_MESSAGES", 2)
        for _ in range(5):
            harness.send("old", DELAY=100)
        harness.turn()
        harness.promote()
        harness.send("new", DELAY=100)  # is stored before the first page is read
        harness.at(1)
        assert harness.scheduler.count == 6
        harness.at(100)
        assert Counter(harness.bodies) == {"old": 5, "new": 1}


class TestManagement:
    def ask(self, harness: Harness, action: object, **properties: Any) -> None:
        properties["AMQ_SCHEDULER_ACTION"] = action
        request = Message(Destination(DestinationKind.TOPIC, MANAGEMENT), "ID:x:1:1:1", properties=properties)
        request.reply_to = REPLIES
        harness.scheduler.manage(request, None, harness.acting_for(None))
        harness.turn()

    def test_pending_messages_are_shown(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "PAGE_MESSAGES", 2)
        for number in range(5):
            harness.send(str(number), DELAY=100 * number)
        harness.turn()
        self.ask(harness, "BROWSE", ACTION_START_TIME=START + 100, ACTION_END_TIME=str(START + 300))
        assert [message.body for message in harness.replies] == [b"1", b"2", b"3"]
        properties = harness.replies[0].properties or {}
        assert (properties["scheduledJobId"], properties["AMQ_SCHEDULED_DELAY"]) == ("ID:client:1:1:2", 100)
        assert (harness.replies[0].original_destination, harness.replies[0].persistent) == (ORDERS, False)

    def test_all_are_removed_once_all_are_known(self, harness: Harness) -> None:
        for _ in range(3):
            harness.send(DELAY=100)
        harness.turn()
        harness.promote()
        self.ask(harness, "REMOVEALL")
        harness.at(1)
        assert (harness.held, harness.scheduler.count) == (0, 0)
        harness.at(100)
        assert harness.sent == []

    def test_a_message_being_sent_is_not_removed_too(self, harness: Harness) -> None:
        harness.send(PERIOD=100, REPEAT=1)
        harness.turn()
        harness.now += 100
        harness.scheduler.tick(harness.now)
        self.ask(harness, "REMOVEALL")
        assert (len(harness.sent), harness.held) == (1, 1)

    @pytest.mark.parametrize("action", [None, "DROP", "REMOVE", 7])
    def test_an_unknown_request_is_refused(self, harness: Harness, action: object) -> None:
        with pytest.raises(ClientError, match="does not understand"):
            self.ask(harness, action)

    def test_a_time_that_is_none_is_refused(self, harness: Harness) -> None:
        with pytest.raises(ClientError, match="ACTION_START_TIME"):
            self.ask(harness, "BROWSE", ACTION_START_TIME="soon")

    def test_requests_that_wait_have_a_bound(self, harness: Harness) -> None:
        harness.send(DELAY=5)
        harness.turn()
        harness.promote()  # nothing is loaded before the first tick, so they wait
        for _ in range(REQUESTS_MAX):
            self.ask(harness, "BROWSE")
        with pytest.raises(ClientError, match="wait"):
            self.ask(harness, "BROWSE")
        harness.at(1)
        assert len(harness.replies) == REQUESTS_MAX


_steps = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 300), st.integers(0, 200), st.integers(0, 3)),
    st.tuples(st.just("pass"), st.integers(1, 400)),
    st.tuples(st.just("tick"), st.integers(1, 400)),
    st.tuples(st.just("crash"), st.integers(0, 5)),
    st.tuples(st.just("refuse"), st.integers(1, 2)),
)


@settings(deadline=None)
@given(steps=st.lists(_steps, max_size=40))
def test_each_occurrence_is_sent_once_and_not_early(steps: list[tuple[Any, ...]]) -> None:
    """Brokers end when only some of their operations are stored. Each occurrence is sent once, and not early."""
    harness = Harness()
    wanted: dict[str, tuple[int, int]] = {}
    for name, *numbers in steps:
        if name == "send":
            delay, period, repeat = numbers
            body = str(len(wanted))
            wanted[body] = (harness.now - START + (delay or period), 1 + repeat)
            harness.send(body, DELAY=delay, PERIOD=period, REPEAT=repeat)
            harness.turn()
        elif name == "pass":
            harness.at(harness.now - START + numbers[0])
        elif name == "tick":
            harness.now += numbers[0]
            harness.scheduler.tick(harness.now)  # and nothing is written yet
        elif name == "crash":
            harness.crash(numbers[0])
        else:
            harness.refusals = numbers[0]
    harness.refusals = 0
    for _ in range(20):
        harness.at(harness.now - START + PUT_OFF_MS)
    assert Counter(harness.bodies) == {body: count for body, (_, count) in wanted.items()}
    for body, time in zip(harness.bodies, harness.times, strict=True):
        assert time >= wanted[body][0]
    assert (harness.held, harness.scheduler.count) == (0, 0)
