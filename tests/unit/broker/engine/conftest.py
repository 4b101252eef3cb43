"""An engine with a store in memory, and clients that record what they receive. The test drives the loop's turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any, Self

import pytest

from tandemmq.broker.core.access import Access
from tandemmq.broker.core.commands import (
    Abort,
    Ack,
    AckMode,
    Begin,
    ClientError,
    Command,
    Commit,
    Connect,
    Disconnect,
    Nack,
    Prepare,
    Send,
    Subscribe,
    Unsubscribe,
)
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.memory import Holder
from tandemmq.broker.core.policies import DestinationPolicy, Policies, RedeliveryPolicy
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.slices import Work, at_once
from tandemmq.broker.engine.engine import Engine, destinations_of
from tandemmq.broker.engine.part import Loop, at_once_on_the_loop
from tandemmq.broker.engine.ports import InThread
from tandemmq.broker.protocols.encoded import decoded, is_encoded
from tandemmq.broker.protocols.openwire.advisories import Advisories
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.records.transactions import XaTransactionId
from tandemmq.store.tools.check import check
from tests.support.broker.engine_term import EngineTerm
from tests.support.core.counting import Times, count_calls, count_reads
from tests.support.store.memory_store import MemoryStore

ORDERS = Destination(DestinationKind.QUEUE, "orders")
PRICES = Destination(DestinationKind.TOPIC, "prices")
DLQ = Destination(DestinationKind.QUEUE, "ActiveMQ.DLQ.Queue.orders")
XA = XaTransactionId(1, b"global", b"branch")
# The bounds of steps, and how many of the items of a test each takes.
STEPS = {
    "core.slices.ITEMS": 1, "core.destinations.ITEMS": 1, "core.queue.assignment.PLACED_MAX": 1,
    "core.topics.topic.ITEMS": 1,
    "engine.acknowledge.ITEMS": 1, "engine.engine.OPERATIONS_MAX": 1, "engine.fan_out.ITEMS": 1,
    "engine.publish.ITEMS": 1, "engine.receipts.ITEMS": 1, "engine.dead_letters.ROUND_MAX": 3,
}  # fmt: skip
ROUNDS = {
    "core.queue.queue.ROUND_MESSAGES": 2, "core.queue.browse._ROUND_MESSAGES": 2, "engine.dead_letters.STEP_MAX": 2,
    "engine.flow_control._DONE": 1,
}  # fmt: skip


# What counts beside messages, in the module that counts it: constants, and functions. A function of a module that may
# be compiled cannot be replaced.
NOT_MESSAGES = {
    "engine.clients": "CONNECTION", "engine.subscribe": "SUBSCRIPTION NAMED ID WORD",
    "engine.declarations": "PRODUCER ID NAME", "engine.routing": "SENDER TEXT",
    "engine.transactions": "TRANSACTION TEXT",
    "core.destinations": "DESTINATION TOPIC NAME NODE PART WATCH _bytes_of_durable",
    "core.queue.consumers": "CHOICE",
    "core.queue.queue": "QUEUE_LINK TAKER",
    "core.queue.browse": "BROWSED", "core.queue.groups": "_bytes_of",
    "core.topics.topic": "TOPIC_LINK", "core.topics.matching": "AUDIENCE MEMBER",
}  # fmt: skip


def shorten_steps(monkeypatch: pytest.MonkeyPatch, items: int) -> None:
    """A test fills each kind of step with a few messages."""
    for name, size in ({name: items * times for name, times in STEPS.items()} | ROUNDS).items():
        monkeypatch.setattr(f"tandemmq.broker.{name}", size)


def body_of(message: Message) -> str:
    """The text of a message, as a client of a protocol other than AMQP gets it."""
    shown = (decoded(message, is_quick=False) or message) if is_encoded(message) else message
    return shown.body.decode()


class Delivered:
    """A MESSAGE as the client saw it."""

    def __init__(self, subscription: str, tag: int, message: Message, redeliveries: int) -> None:
        self.subscription = subscription
        self.tag = tag
        self.message = message
        self.body = body_of(message)
        self.redeliveries = redeliveries
        self.redelivered = redeliveries > 0


class RecordingSession:
    """Remembers what the broker says, in order."""

    survives_errors = False
    can_pull = True

    def __init__(self) -> None:
        self.prefetches: list[tuple[str, int]] = []
        self.events: list[Any] = []
        self.errors: list[ClientError] = []
        self.delivered: list[Delivered] = []
        self.receipts: list[str] = []
        self.nothings: list[str] = []

    def connected(self, command: Connect, session_id: str, user: str | None = None) -> None:
        self.events.append(("connected", session_id))

    def receipt(self, receipt: str) -> None:
        self.events.append(("receipt", receipt))
        self.receipts.append(receipt)

    def deliver(self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode) -> None:
        self.events.append(("message", body_of(message)))
        self.delivered.append(Delivered(subscription_id, tag, message, redeliveries))

    def fail(self, error: ClientError) -> None:
        self.events.append(("error", error.message))
        self.errors.append(error)

    def prepared(self, receipt: str, is_read_only: bool) -> None:
        self.receipt(receipt)

    def recovered(self, receipt: str, branches: object) -> None:
        self.events.append(("recovered", branches))

    def nothing(self, subscription_id: str) -> None:
        self.events.append(("nothing", subscription_id))
        self.nothings.append(subscription_id)

    def drop_prepared(self) -> None:
        self.events.append(("dropped", None))

    def tell_prefetch(self, subscription_id: str, prefetch: int) -> None:
        self.prefetches.append((subscription_id, prefetch))

    def close_consumer(self, subscription_id: str, error: ClientError) -> None:
        self.events.append(("closed", subscription_id))
        self.errors.append(error)


class Client:
    """A connection, and verbs in the words of a client; ``turn`` behind one has all done that it led to."""

    def __init__(self, harness: Harness, id: str, open: Callable[[Client], None] | None = None) -> None:
        self.id = id
        self.peer = f"{id}:1"
        self.client: Any = None
        self.certificate = None
        self.session = RecordingSession()
        self.holder = Holder(harness.engine.memory)
        self.has_space = True
        self.is_held = False
        self.is_closed = False
        self.has_hung_up = False
        self.is_flushed = False  # the last state that was reported to it
        self.is_reading = True
        self.logins_awaited = 0
        self.engine = harness.engine
        self._harness = harness
        self.sequence = 0
        (open or self.engine.opened)(self)

    @property
    def is_writable(self) -> bool:
        return self.has_space and not self.holder.is_held_back

    def touch(self) -> None:
        assert not self.is_closed, "nobody speaks to a closed connection"

    def close(self, after_flush: bool = True) -> None:
        self.is_closed = True
        self.is_flushed = after_flush

    def await_login(self) -> None:
        self.logins_awaited += 1

    def await_hang_up(self) -> None: ...

    def turn(self) -> Self:
        self._harness.turn()
        return self

    def regain_space(self) -> Self:
        self.has_space = True
        self.engine.writable(self)
        return self

    def stop_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def handle(self, command: Command) -> Self:
        self.engine.handle(self, command)
        return self

    def lose_socket(self) -> Self:
        """Close the socket. The end of the client's state happens in the steps that follow."""
        self.is_closed = self.has_hung_up = True
        self.engine.closed(self)
        return self

    def vanish(self) -> Self:
        """Close the socket, and do the steps that end the state of the client."""
        self.lose_socket()
        self._harness.make_steps()
        return self

    def connect(self, client_id: str | None = None) -> Self:
        return self.handle(Connect(client_id))

    def message(self, body: str, destination: Destination = ORDERS, **fields: Any) -> Message:
        self.sequence += 1
        fields.setdefault("persistent", True)
        return Message(destination, f"{self.id}:1:1:{self.sequence}", body.encode(), **fields)

    def send(
        self,
        body: str,
        destination: Destination = ORDERS,
        *,
        receipt: str | None = None,
        transaction: str | None = None,
        **fields: Any,
    ) -> Self:
        return self.handle(Send(self.message(body, destination, **fields), transaction, receipt))

    def send_all(self, bodies: Iterable[object], destination: Destination = ORDERS, **fields: Any) -> Self:
        for body in bodies:
            self.send(str(body), destination, **fields)
        return self

    def store(self, *bodies: object, destination: Destination = ORDERS, **fields: Any) -> Self:
        """Send them, and give the store its turn."""
        return self.send_all(bodies, destination, **fields).turn()

    def subscribe(
        self, id: str = "s", destination: Destination = ORDERS, ack: AckMode = AckMode.INDIVIDUAL, **options: Any
    ) -> Self:
        return self.handle(Subscribe(id, destination, ack, **options))

    def unsubscribe(self, id: str | None = "s", **options: Any) -> Self:
        return self.handle(Unsubscribe(id, **options))

    def ack(self, body: str, *, receipt: str | None = None, transaction: str | None = None) -> Self:
        found = self.last(body)
        return self.handle(Ack(found.subscription, found.tag, transaction, receipt))

    def nack(self, body: str, *, receipt: str | None = None, transaction: str | None = None) -> Self:
        found = self.last(body)
        return self.handle(Nack(found.subscription, found.tag, transaction, receipt))

    def begin(self, name: str = "t", receipt: str | None = None) -> Self:
        return self.handle(Begin(name, receipt))

    def commit(self, name: str = "t", receipt: str | None = None) -> Self:
        return self.handle(Commit(name, receipt))

    def abort(self, name: str = "t", receipt: str | None = None) -> Self:
        return self.handle(Abort(name, receipt))

    def begin_branch(self) -> Self:
        return self.handle(Begin(XA.key, xa=XA))

    def prepare(self, receipt: str = "p") -> Self:
        return self.handle(Prepare(XA.key, XA, receipt))

    def commit_branch(self, receipt: str = "c", *, is_two_phase: bool = True) -> Self:
        return self.handle(Commit(XA.key, receipt, xa=XA, is_two_phase=is_two_phase))

    def abort_branch(self, receipt: str = "r") -> Self:
        return self.handle(Abort(XA.key, receipt, xa=XA))

    def disconnect(self, receipt: str | None = None) -> Self:
        return self.handle(Disconnect(receipt))

    def last(self, body: str) -> Delivered:
        return next(each for each in reversed(self.session.delivered) if each.body == body)

    @property
    def bodies(self) -> list[str]:
        return [each.body for each in self.session.delivered]

    @property
    def is_connected(self) -> bool:
        return any(what == "connected" for what, *_ in self.session.events)

    @property
    def receipts(self) -> list[str]:
        return self.session.receipts

    @property
    def errors(self) -> list[str]:
        return [error.message for error in self.session.errors]


def advisor() -> Advisories:
    return Advisories("ID:a", lambda: 1, count(1), broker_id="ID:b", broker_name="b", broker_url="tcp://b:1")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    """Directory of a real store. The checker must find no problem in it after the test."""
    directory = str(tmp_path / "data")
    yield directory
    assert not check(directory).problems


def come(term: EngineTerm, client_id: str) -> Any:
    """A client of an engine on a real store."""
    client: Any = Client(term, f"ID:test-1-{next(_numbers)}")  # type: ignore[arg-type]
    client.handle(Connect(client_id))
    return client


_numbers = count(1)


@pytest.fixture(autouse=True)
def nothing_but_messages_takes_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing but messages use memory, so that tests can state how many messages fit."""
    for module, names in NOT_MESSAGES.items():
        for name in names.split():
            what = (name, lambda each: 0) if name.startswith("_") else (f"{name}_BYTES", 0)
            monkeypatch.setattr(f"tandemmq.broker.{module}.{what[0]}", what[1])


class Harness:
    """Engine, store and the turns of a loop. ``turn`` runs until nothing is left to do, ``wait`` lets time pass."""

    access: Access | None = None
    of_settings: Iterable[Principal] = ()
    in_thread: InThread = staticmethod(at_once_on_the_loop)
    prepare_in_thread: InThread = staticmethod(at_once_on_the_loop)
    tracing: Any = None
    patch: pytest.MonkeyPatch  # of the test

    def __init__(self, settings: EngineSettings, policies: Policies | None = None, advisor: Any = None) -> None:
        self.now = 1_000
        redelivery = RedeliveryPolicy(settings.maximum_redeliveries)
        self.policies = policies or Policies((), DestinationPolicy(redelivery=redelivery))
        self.advisor = advisor
        self._numbers = count()
        self.later: list[tuple[float, int, Callable[[], None]]] = []
        self.calls: deque[Callable[[], None]] = deque()  # of the loop, that are due
        self.works: deque[Work[None]] = deque()
        self.drained = 0
        self.store = MemoryStore(self.calls.append)
        self.settings = settings
        self.clients = 0
        self.begin_term()

    def loop(self) -> Loop:
        return Loop(
            lambda: self.now,
            self._call_later,
            self.start,
            self.in_thread,
            self.prepare_in_thread,
            monotonic=lambda: self.now / 1000,
        )

    def begin_term(self) -> None:
        """Make another engine on the same store."""
        loop = self.loop()
        self.destinations = at_once(destinations_of(self.store, self.settings, self.policies, loop.start))
        self.engine = Engine(
            self.store,
            self.settings,
            loop,
            on_drained=self._on_drained,
            policies=self.policies,
            access=self.access,
            advisor=self.advisor,
            destinations=self.destinations,
            tracing=self.tracing,
            of_settings=self.of_settings,
        )
        self.store.start(self.engine)

    def start(self, work: Work[None]) -> None:
        """A step of ``work`` in each turn."""
        self.works.append(work)
        self.calls.append(self.step)

    def step(self) -> None:
        if self.works:
            work = self.works.popleft()
            if next(work, self) is None:
                self.start(work)

    def make_steps(self) -> None:
        """Do all steps of the work that was begun, and nothing else."""
        while self.works:
            self.step()

    def most(self, amount: Callable[[], int], *, are_calls: bool = False) -> int:
        """Return by how much ``amount`` changes at most in one of the remaining steps, or of the loop's calls."""
        before, most = amount(), 0
        while self.calls if are_calls else self.works:
            self.turn(1) if are_calls else self.step()
            now = amount()
            before, most = now, max(most, abs(now - before))
        return most

    def count(self, owner: Any, name: str) -> Times:
        return count_calls(self.patch, owner, name)

    def count_reads(self, owner: type, name: str) -> Times:
        return count_reads(self.patch, owner, name)

    def _call_later(self, seconds: float, function: Callable[[], None]) -> None:
        heappush(self.later, (self.now + seconds * 1000, next(self._numbers), function))

    def wait(self, seconds: float) -> None:
        """Timers run when they are due, and the engine's clock once a second."""
        end = self.now + round(seconds * 1000)
        while self.now < end:
            second = min((self.now // 1000 + 1) * 1000, end)
            while self.later and self.later[0][0] <= second:
                due, _, function = heappop(self.later)
                self.now = max(self.now, round(due))
                function()
                self.turn()
            self.now = second
            if second % 1000 == 0:
                self.engine.tick(second)
                self.turn()

    def tick(self, now: int) -> None:
        """The engine's clock says ``now``, and nothing came before."""
        self.now = now
        self.engine.tick(now)
        self.turn()

    def _on_drained(self) -> None:
        self.drained += 1

    def fail_over(self, *, is_sudden: bool = False) -> None:
        """Start another engine on the same store, as after a promotion. ``is_sudden``: operations in progress are
        stored, and not reported."""
        if is_sudden:
            self.store.start(self.engine)
        self.turn()
        self.begin_term()

    def soon(self, function: Callable[[], None]) -> None:
        """Call the function in this turn of the loop, after the waiting calls."""
        self.calls.append(function)

    def turn(self, calls: int | None = None) -> None:
        """Make all waiting calls, or at most ``calls`` of them."""
        while self.calls and calls != 0:
            self.calls.popleft()()
            calls = None if calls is None else calls - 1

    def client(self, client_id: str | None = None) -> Client:
        return Client(self, self.connection_id()).connect(client_id)

    def consumer(self, *subscription: Any, client_id: str | None = None, **options: Any) -> Client:
        """A client that subscribes at once."""
        return self.client(client_id).subscribe(*subscription, **options)

    def connection_id(self) -> str:
        """Return the id of the next connection."""
        self.clients += 1
        return f"ID:test-1-{self.clients}"

    def figures(self, name: str = "orders") -> dict[str, int]:
        found: dict[str, int] = next(
            each for each in at_once(self.engine.statistics())["queues"] if each["name"] == name
        )
        return found

    @property
    def counts(self) -> dict[str, int]:
        found: dict[str, int] = at_once(self.engine.statistics())["counts"]
        return found

    def stored(self) -> int:
        return sum(owner.count for owner in self.store.owners())


@pytest.fixture(autouse=True)
def nothing_contained(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """An error that the broker keeps from others is one all the same: tests that make some are marked."""
    yield
    if request.node.get_closest_marker("contains_errors") is None:
        found = [record for record in caplog.get_records("call") if ERROR_OF_BROKER in record.getMessage()]
        assert not found, found[0].exc_text or found[0].getMessage()


MakeHarness = Callable[..., Harness]


@pytest.fixture
def make_harness(monkeypatch: pytest.MonkeyPatch) -> MakeHarness:
    def make(policy: DestinationPolicy | Policies | None = None, advisor: Any = None, **settings: Any) -> Harness:
        policies = Policies((), policy) if isinstance(policy, DestinationPolicy) else policy
        made = Harness(EngineSettings(**settings), policies, advisor)
        made.patch = monkeypatch
        return made

    return make


@pytest.fixture
def harness(make_harness: MakeHarness) -> Iterator[Harness]:
    """Compare, at the end of the test, the engine's counts with the content of the store."""
    harness = make_harness()
    yield harness
    harness.turn()
