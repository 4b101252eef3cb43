"""A client ends once, whatever work is in progress for it, and in any order of events.

A walk begins work for a client (``RUNNING``), causes two events that end the client (``ENDS``), and chooses each next
event: a step of work in progress, the store's next answer, a late answer of the login or of a thread, or the next end.
After each walk no table has an entry of a client, each question was answered once, and the log has no contained error.
By default some walks run, from a fixed seed; ``TANDEMMQ_PROVE=full`` takes all places for all pairs of ends (255,000
walks, twenty minutes).
"""

from __future__ import annotations

import itertools
import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import pytest

from tandemmq.broker.core.access import Credentials, Known, OpenAccess
from tandemmq.broker.core.client import State
from tandemmq.broker.core.commands import (
    Abort,
    Ack,
    AckMode,
    AddDestination,
    AddProducer,
    ClientError,
    Command,
    Connect,
    Disconnect,
    ProtocolFailure,
    RemoveDestination,
    Subscribe,
    Unsubscribe,
)
from tandemmq.broker.core.names import MQTT_SESSION
from tandemmq.broker.core.policies import DestinationPolicy, Policies, PolicyEntry
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.slices import Work
from tandemmq.broker.engine.part import Loop
from tandemmq.store.operations import Atomic, Operation
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.prove import IS_FULL, SEED, rounds
from tests.unit.broker.engine.conftest import ORDERS, PRICES, XA, Client, Harness, shorten_steps

STEP = 2
QUEUES = [Destination(DestinationKind.QUEUE, f"many.{number}") for number in range(4)]
TOPICS = [Destination(DestinationKind.TOPIC, f"many.{number}") for number in range(4)]
EVERY_QUEUE = Destination(DestinationKind.QUEUE, "many.>")
EVERY_TOPIC = Destination(DestinationKind.TOPIC, "many.>")
NARROW = Destination(DestinationKind.QUEUE, "narrow")
STATE = Destination(DestinationKind.QUEUE, f"{MQTT_SESSION}me")
LONG_SELECTOR = " OR ".join(f"colour = 'c{number}'" for number in range(60))
ME = Principal("me")
# What one walk does at most: it comes to an end.
STEPS_MAX = 2_000
WALKS = rounds(200, 20_000)

Action = Callable[[], object]


class Logins(OpenAccess):
    """Logins whose user is known late."""

    def __init__(self, world: World) -> None:
        super().__init__(is_everywhere=True)
        self._world = world

    def connect(self, credentials: Credentials, then: Known) -> None:
        self._world.late.append(lambda: then(ME))


class Peer(Client):
    """A connection like that of the transport: when the broker closes it, the engine is notified later, and once."""

    harness: World
    is_over = False
    is_logged_in = False

    def __init__(self, world: World, *, is_kept: bool, open: Callable[[Client], None] | None = None) -> None:
        self.harness = world
        super().__init__(world, world.connection_id(), open)
        self.session.survives_errors = is_kept
        self.connects = 0
        self.disconnects = 0
        world.peers.append(self)

    def handle(self, command: Command) -> Self:
        if self.is_closed:
            return self
        self.connects += isinstance(command, Connect)
        return super().handle(command)

    def close(self, after_flush: bool = True) -> None:
        if not self.is_closed:
            super().close(after_flush)
            self.harness.soon(self.lost)

    def lost(self) -> None:
        """The socket has ended."""
        if not self.is_over:
            self.is_closed = self.is_over = True
            self.harness.engine.closed(self)

    def login(self, client_id: str | None = "me", **options: Any) -> None:
        """Once, as sessions see to it."""
        if not self.is_logged_in:
            self.is_logged_in = True
            self.handle(Connect(client_id, **options))

    def leave(self) -> None:
        if self.is_logged_in:
            self.is_logged_in = False
            self.disconnects += not self.is_closed
            self.handle(Disconnect("bye", is_awaited=self.session.survives_errors))


class World(Harness):
    """``late``: answers that are due. Nothing comes by itself: ``actions`` are what may come next."""

    def __init__(self, *, is_kept: bool) -> None:
        self.late: deque[Action] = deque()
        self.peers: list[Peer] = []
        self.is_kept = is_kept
        self.farewells = 0
        narrow = PolicyEntry(DestinationKind.QUEUE, NARROW.name, DestinationPolicy(memory_limit=1_000))
        super().__init__(EngineSettings(), Policies([narrow]))
        self.me = Peer(self, is_kept=is_kept)

    def begin_term(self) -> None:
        append = self.store.append

        def counted(operation: Operation) -> None:
            self.farewells += isinstance(operation, Atomic) and not operation.operations
            append(operation)

        self.store.append = counted  # type: ignore[method-assign]
        self.access = Logins(self)
        super().begin_term()

    def loop(self) -> Loop:
        return Loop(lambda: self.now, self._call_later, self.start, self._in_thread)

    def _in_thread(self, work: Action, then: Callable[[], None]) -> None:
        def done() -> None:
            work()
            then()

        self.late.append(done)

    def start(self, work: Work[None]) -> None:
        self.works.append(work)

    def _go(self, work: Work[None]) -> None:
        self.works.remove(work)
        if next(work, self) is None:
            self.works.append(work)

    def actions(self, *, with_timers: bool = False) -> list[Action]:
        """A step of each work, in turn; the store's next answer; each answer that is late. A producer that waits for
        room has timers without end."""
        found: list[Action] = [partial(self._go, work) for work in self.works]
        if self.calls:
            found.append(partial(self.turn, 1))
        if self.later and with_timers:
            found.append(self._tick)
        return found + [partial(self._answer, answer) for answer in self.late]

    def _answer(self, answer: Action) -> None:
        self.late.remove(answer)
        answer()

    def _tick(self) -> None:
        due, _, function = self.later.pop(0)
        self.now = max(self.now, round(due))
        function()

    def settle(self) -> None:
        """Do all actions in turn, until none is left."""
        for _ in range(STEPS_MAX):
            actions = self.actions()
            if not actions:
                return
            actions[0]()
        raise AssertionError("it comes to no end")

    def peer(self) -> Peer:
        return Peer(self, is_kept=self.is_kept)

    def logged_in(self, client_id: str | None = None, **options: Any) -> Peer:
        peer = self.peer()
        peer.login(client_id, **options)
        self.settle()
        return peer


# ---- work in progress for a client: each function begins with a client that has not logged in


def _in(world: World) -> Peer:
    world.me.login(connection_id="ID:own", steals_client_id=True)
    world.settle()
    return world.me


def _backlog(world: World) -> None:
    sender = world.logged_in()
    for destination in QUEUES:
        for body in "123":
            sender.send(body, destination)
    world.settle()


def subscription_to_a_backlog(world: World) -> None:
    _backlog(world)
    _in(world).subscribe(destination=EVERY_QUEUE, receipt="r")


def two_subscriptions_to_a_backlog(world: World) -> None:
    subscription_to_a_backlog(world)
    world.me.subscribe("s2", EVERY_QUEUE, receipt="r2")


def end_of_a_subscription(world: World) -> None:
    subscription_to_a_backlog(world)
    world.settle()
    world.me.unsubscribe(receipt="u")


def browse(world: World) -> None:
    sender = world.logged_in()
    for number in range(9):
        sender.send(str(number))
    world.settle()
    _in(world).handle(Subscribe("b", ORDERS, AckMode.RANGE, prefetch=4, is_browser=True))


def durable_subscription(world: World) -> None:
    for each in TOPICS:
        world.destinations.topic(each, None)
    _in(world).subscribe(destination=EVERY_TOPIC, durable_name="d", receipt="r")


def big_transaction(world: World) -> None:
    me = _in(world)
    me.begin()
    for number in range(3):
        me.send(str(number), QUEUES[number], transaction="t")
        me.send(str(number), PRICES, transaction="t", persistent=False)
    me.commit(receipt="c")


def open_transaction(world: World) -> None:
    subscription_to_a_backlog(world)
    world.settle()
    me = world.me
    me.begin()
    for each in me.session.delivered:
        me.handle(Ack("s", each.tag, "t", None))
    me.send("more", transaction="t")


def message_to_many(world: World) -> None:
    for _ in range(5):
        world.logged_in().subscribe("s", PRICES, AckMode.AUTO)
    world.settle()
    _in(world).send("1", PRICES, persistent=False, receipt="s")


def send_that_waits_for_room(world: World) -> None:
    me = _in(world)
    for number in range(3):
        me.send("x" * 400, NARROW, persistent=False, receipt=str(number))
    me.send("y" * 400, NARROW, persistent=False)


def declarations(world: World) -> None:
    me = _in(world)
    for number in range(4):
        me.handle(AddDestination(Destination(DestinationKind.TEMP_QUEUE, f"t{number}")))
        me.handle(AddProducer(f"p{number}", ORDERS))


def login(world: World) -> None:
    world.me.login(connection_id="ID:own", steals_client_id=True)


def login_behind_a_former_self(world: World) -> None:
    _backlog(world)
    former = world.logged_in("me", connection_id="ID:own")
    former.subscribe(destination=EVERY_QUEUE)
    world.settle()
    former.lost()
    login(world)


def login_against_a_former_self(world: World) -> None:
    subscription_to_a_backlog(world)
    world.me = world.peer()
    login(world)


def end_of_a_session(world: World) -> None:
    """The broker ends the session of a client that is away, like broker.mqtt.session_expiry."""
    durable_subscription(world)
    world.settle()
    world.me.send("kept", STATE)
    world.me.lost()
    world.settle()
    acting = world.me = Peer(world, is_kept=True, open=lambda each: world.engine.opened_for(each, ME, STATE))
    acting.is_logged_in, acting.connects = True, 1
    world.engine.enter(acting, Connect("me", state=STATE))
    acting.handle(Unsubscribe(None, durable_name="d", receipt="u")).handle(RemoveDestination(STATE, "g"))


Story = Callable[[World], object]
RUNNING: dict[str, Story] = {
    "subscription to a backlog": subscription_to_a_backlog,
    "two subscriptions to a backlog": two_subscriptions_to_a_backlog,
    "end of a subscription": end_of_a_subscription,
    "browse": browse,
    "durable subscription": durable_subscription,
    "shared subscription": lambda world: _in(world).subscribe("s", TOPICS[0], durable_name="d", share="g", receipt="r"),
    "big transaction": big_transaction,
    "open transaction": open_transaction,
    "branch that is prepared": lambda world: _in(world).begin_branch().send("1", transaction=XA.key).prepare(),
    "selector in a thread": lambda world: _in(world).subscribe(selector=LONG_SELECTOR, receipt="r"),
    "message to many": message_to_many,
    "send that waits for room": send_that_waits_for_room,
    "declarations": declarations,
    "login": login,
    "login behind a former self": login_behind_a_former_self,
    "login against a former self": login_against_a_former_self,
    "end of a session": end_of_a_session,
}

# ---- events that end a client


def disconnect_and_come_again(world: World) -> None:
    """Disconnect; if the socket is kept, connect again on it."""
    world.me.leave()
    if world.is_kept:
        world.me.login(connection_id="ID:own", steals_client_id=True)
        world.me.subscribe("again", EVERY_QUEUE, receipt=f"again {world.me.connects}")


SOCKET_LOST = "socket lost"
ENDS: dict[str, Story] = {
    "disconnect": lambda world: world.me.leave(),
    "disconnect and come again": disconnect_and_come_again,
    SOCKET_LOST: lambda world: world.me.lost(),
    "hung up by an operator": lambda world: world.engine.hang_up(world.me.id),
    "user removed": lambda world: world.engine.hang_up_users({"me"}),
    "fatal error": lambda world: world.me.handle(ProtocolFailure(ClientError("it makes no sense"))),
    "taken over": lambda world: world.peer().login(connection_id="ID:own", steals_client_id=True),
    "client id refused or taken": lambda world: world.peer().login(steals_client_id=False),
}

# ---- the walk


def walk(running: str, ends: Sequence[str], is_kept: bool, choose: Chooser, caplog: pytest.LogCaptureFixture) -> int:
    """Returns how many steps there were to choose from."""
    world = World(is_kept=is_kept)
    RUNNING[running](world)
    world.me.send("behind", receipt="behind")
    left = deque(ends)
    for step in itertools.count():
        assert step < STEPS_MAX, "it comes to no end"
        actions = world.actions(with_timers=bool(left))
        end = partial(ENDS[left[0]], world) if left else None
        action = choose(step, end, actions)
        if action is None:
            break
        if action is end:
            left.popleft()
        action()
    for each in left:
        ENDS[each](world)
    world.settle()
    _make_room(world)
    _nobody_waits(world)
    _come_to_an_end(world)
    _nothing_is_left(world)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors, errors[0].exc_text or errors[0].getMessage()
    caplog.clear()
    return step


Chooser = Callable[[int, Action | None, list[Action]], Action | None]


def at_places(places: Sequence[int]) -> Chooser:
    """Return a chooser that takes the actions in turn, and an end before each of these steps."""
    ends = Counter(places)

    def choose(step: int, end: Action | None, actions: list[Action]) -> Action | None:
        nonlocal done
        if end is not None and ends[step - done]:
            ends[step - done] -= 1
            done += 1
            return end
        return actions[0] if actions else None

    done = 0
    return choose


def by_chance(dice: random.Random) -> Chooser:
    def choose(step: int, end: Action | None, actions: list[Action]) -> Action | None:
        if end is not None and (not actions or dice.random() < 0.15):
            return end
        return dice.choice(actions) if actions else None

    return choose


def _make_room(world: World) -> None:
    """Make room for messages that wait to be sent, and decide prepared branches."""
    reader = world.logged_in()
    for branch in list(world.engine._transactions.branches.by_key.values()):
        if branch.is_prepared:
            reader.handle(Abort(branch.xa.key, xa=branch.xa))
    reader.subscribe("room", NARROW, AckMode.AUTO)
    for _ in range(20):
        world.settle()
        if world.later:
            world._tick()
    world.settle()


def _come_to_an_end(world: World) -> None:
    for peer in world.peers:
        peer.lost()
        world.settle()


def _nobody_waits(world: World) -> None:
    """Check that each client with a connection got all its answers, and that its connection is read."""
    for peer in world.peers:
        if peer.is_closed:
            continue
        events = Counter(what for what, *_ in peer.session.events)
        assert (events["connected"], peer.receipts.count("bye")) == (peer.connects, peer.disconnects)
        assert peer.is_reading
        assert (peer.client is None) is (not peer.is_logged_in)
        assert peer.client is None or peer.client.state is State.READY


def _nothing_is_left(world: World) -> None:
    engine = world.engine
    clients, login, advising = engine._clients, engine._login, engine._advising
    tables = (
        clients.all, clients.leavers, login._client_ids, login._connection_ids, advising._clients,
        advising._by_outlet, advising._consumers, engine.flow._blocked, engine._declarations.producing,
        engine._dispatcher.fan_out.origins, engine._dispatcher.fan_out._then, world.destinations._watched,
        engine._dispatcher.browsing._under_way, engine._dispatcher.browsing._rounds._in_progress,
        engine._transactions.branches.by_key,
    )  # fmt: skip
    for table in tables:
        assert not table
    assert world.counts["clients"] == world.counts["blocked_producers"] == 0
    assert all(not each.consumers for each in world.destinations.queues())
    disconnects = 0
    for peer in world.peers:
        assert peer.client is None
        assert peer.holder.bytes == 0
        assert not any(peer.holder.by_kind.values()), peer.holder.by_kind
        events = Counter(what for what, *_ in peer.session.events)
        assert events["connected"] <= peer.connects
        assert not [receipt for receipt, times in Counter(peer.receipts).items() if times > 1 and receipt != "bye"]
        assert peer.receipts.count("bye") <= peer.disconnects
        disconnects += peer.disconnects
    assert world.farewells <= disconnects


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_steps(monkeypatch, STEP)


@pytest.mark.prove
@pytest.mark.timeout(7200 if IS_FULL else 120)
def test_walks_by_chance_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    print(f"seed {SEED}, {WALKS} walks (TANDEMMQ_SEED, TANDEMMQ_PROVE)")
    for number in range(WALKS):
        dice = random.Random(f"{SEED}/{number}")
        running, ends, is_kept = [*RUNNING][number % len(RUNNING)], dice.choices([*ENDS], k=2), dice.random() < 0.5
        try:
            walk(running, ends, is_kept, by_chance(dice), caplog)
        except BaseException as error:
            error.add_note(f"seed {SEED}, walk {number}: {running}, {ends}")
            raise


@pytest.mark.prove
@pytest.mark.timeout(7200 if IS_FULL else 120)
@pytest.mark.parametrize("is_kept", [False, True], ids=["closed", "kept"])
@pytest.mark.parametrize("running", RUNNING)
def test_two_ends_at_all_places(running: str, is_kept: bool, caplog: pytest.LogCaptureFixture) -> None:
    """By default only a few places are tested, and the second end is the loss of the socket right after the first."""
    steps = walk(running, (), is_kept, at_places(()), caplog)
    firsts = range(0, steps + 1, 1 if IS_FULL else max(steps // 3, 1))
    for end, other in itertools.product(ENDS, ENDS if IS_FULL else (SOCKET_LOST,)):
        for first, second in itertools.product(firsts, firsts if IS_FULL else (0,)):
            if IS_FULL and second < first:
                continue
            try:
                walk(running, (end, other), is_kept, at_places((first, max(first, second))), caplog)
            except BaseException as error:
                error.add_note(f"{running}, {end} at {first}, {other} at {second}")
                raise
