"""Queues and subscriptions that end: at once for callers, and in steps in the index."""

# proves: who-ended-has-no-entries, who-ended-holds-nothing

from __future__ import annotations

import os
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tandemmq.index.index import Index
from tandemmq.store.operations import AddMessage, AddSubscription, Operation, RemoveOwner
from tandemmq.store.records.acknowledgements import SubscriptionInfo
from tandemmq.store.records.commands import (
    encode_add,
    encode_remove_destination,
    encode_subscription,
    encode_unsubscribe,
)
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.standby import Standby
from tandemmq.store.state import keys
from tandemmq.store.state.state import State
from tandemmq.store.state.tail import Frozen, Position, changes
from tandemmq.store.tools.check import check
from tests.support.prove import IS_THOROUGH
from tests.support.store.memory_store import LET_GO_AT_ONCE, MemoryStore
from tests.support.store.store_harness import SMALL, Q, Term

T = Destination(DestinationKind.TOPIC, "T.A")
OTHER = Destination(DestinationKind.QUEUE, "Q.B")
SIZE = 100


def nobody(file: int) -> bool:
    return False


def ended_in(path: str) -> dict[str, int]:
    """Return the entries of ended owners that are still in the index: the rows of all kinds except files, and of
    messages the entries."""
    with Index.open(path) as index:
        ended = [keys.owner_of(key, value)[0] for key, value in index.scan(keys.ENDED, keys.FILE)]
        live = {keys.owner_of(key, value)[0] for key, value in index.scan(keys.OWNER, keys.RANK)}
        messages = [key for key, _ in index.scan(keys.MESSAGE, keys.OWNER)]
        left = [key for key in messages if int.from_bytes(key[1:5], "big") not in live]
    return {"ended": len(ended), "messages": len(left)}


# ---- the state by itself


class EndingOwners(RuleBasedStateMachine):
    """A state over a real index beside a model, which forgets an owner in one step. ``now`` is what holds, and
    ``then`` what the last checkpoint that was finished says: that is what a crash leaves."""

    NAMES = ("A", "B", "s1", "s2", "s3")
    USERS = st.sampled_from((None, None, "ann", "bob"))

    @initialize()
    def begin(self) -> None:
        self.stack = ExitStack()
        directory = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.index = self.stack.enter_context(Index.open(directory))
        self.state = State(self.index, b"")
        self.frozen: Frozen | None = None
        self.steps: Iterator[None] = iter(())
        self.offset = 1000
        # Name -> order key -> (location, priority)
        self.now: dict[str, dict[int, tuple[int, int]]] = {}
        self.then: dict[str, dict[int, tuple[int, int]]] = {}
        self.in_frozen: dict[str, dict[int, tuple[int, int]]] = {}
        self.numbers: dict[str, int] = {}
        self.users: dict[int, str | None] = {}  # of each record, by its order key
        self.finish_checkpoint_now()

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        self.write_all()
        while self.state.ended:
            self.state.reclaim(3)
        self.finish_checkpoint_now()
        self.finish_checkpoint_now()
        self.live_bytes_are_exact()
        assert self.state.users.counts() == self.bytes_of_users()
        owners = set(self.numbers.values())
        for kind in (keys.ENDED, keys.ID, keys.MESSAGE, keys.OWNER, keys.RANK, keys.RANKED):
            found = {int.from_bytes(key[1:5], "big") for key, _ in self.index.scan(kind, bytes([kind[0] + 1]))}
            assert found <= (owners if kind != keys.ENDED else set()), kind
        for kind in (keys.HOLDER, keys.DISPLACED):
            found = {int.from_bytes(key[5:9], "big") for key, _ in self.index.scan(kind, bytes([kind[0] + 1]))}
            assert found <= owners, kind
        self.stack.close()

    def next_place(self) -> int:
        self.offset += 3 * SIZE  # a file is soon full
        return (self.offset // 1000) << 32 | self.offset % 1000

    @property
    def file(self) -> int:
        return self.offset // 1000

    def number(self, name: str) -> int:
        if name not in self.numbers:
            place = self.next_place()
            if name.startswith("s"):
                self.numbers[name] = owner = self.state.new_owner()
                self.state.subscribe(owner, T, SubscriptionInfo("c", T, name), place, None)
            else:
                self.numbers[name] = self.state.queue(Destination(DestinationKind.QUEUE, name))
            self.now[name] = {}
        return self.numbers[name]

    @rule(name=st.sampled_from(("A", "B")), priority=st.sampled_from((4, 4, 4, 7)), user=USERS)
    def add(self, name: str, priority: int, user: str | None) -> None:
        owner, place = self.number(name), self.next_place()
        self.users[place << 32] = user
        self.state.add(owner, place << 32, place, SIZE, f"p:{place}", priority, user=user)
        self.now[name][place << 32] = place, priority

    @rule(
        names=st.sets(st.sampled_from(("s1", "s2", "s3")), min_size=1),
        priority=st.sampled_from((4, 4, 4, 7)),
        user=USERS,
    )
    def publish(self, names: set[str], priority: int, user: str | None) -> None:
        owners = [self.number(name) for name in sorted(names)]
        place = self.next_place()
        for name, owner in zip(sorted(names), owners, strict=True):
            is_shared = owner != owners[0]
            self.users[place << 32] = user
            self.state.add(owner, place << 32, place, SIZE, f"p:{place}", priority, is_shared=is_shared, user=user)
            self.now[name][place << 32] = place, priority

    @rule(name=st.sampled_from(NAMES), choice=st.integers(0, 1000))
    def remove(self, name: str, choice: int) -> None:
        held = self.now.get(name)
        if held:
            order_key = sorted(held)[choice % len(held)]
            location, _ = held.pop(order_key)
            self.state.remove(self.numbers[name], order_key, location, SIZE, f"p:{order_key >> 32}", self.file)

    @rule(name=st.sampled_from(NAMES), choice=st.integers(0, 1000))
    def copy(self, name: str, choice: int) -> None:
        """Copy a record as compaction does: each owner of the record has it at its new place."""
        held = self.now.get(name)
        if not held:
            return
        order_key = sorted(held)[choice % len(held)]
        location, place = held[order_key][0], self.next_place()
        is_shared = False
        for other, theirs in self.now.items():
            if theirs.get(order_key, (0, 0))[0] == location:
                self.state.move(self.numbers[other], order_key, place, SIZE, is_shared=is_shared)
                theirs[order_key] = place, theirs[order_key][1]
                is_shared = True

    @rule(name=st.sampled_from(NAMES))
    def end(self, name: str) -> None:
        if name in self.numbers:
            before = self.state.tail.operations, sum(map(len, self.state.tail.removed.values()))
            self.state.drop_owner(self.numbers.pop(name), self.file)
            assert (self.state.tail.operations, sum(map(len, self.state.tail.removed.values()))) == (
                before[0] + 1,
                before[1],
            ), "however much it held"
            for location, _ in self.now.pop(name).values():
                assert location >> 32 == self.file or location >> 32 in self.state.files[self.file].pins

    @rule(count=st.integers(1, 6))
    def reclaim(self, count: int) -> None:
        self.state.reclaim(count)

    @rule()
    def begin_checkpoint(self) -> None:
        if self.frozen is None:
            self.state.position = Position(self.file, self.offset % 1000)
            self.frozen = self.state.freeze(nobody, 0)
            self.in_frozen = {name: dict(held) for name, held in self.now.items()}
            self.frozen_numbers = dict(self.numbers)
            self.steps = self.index.checkpoint(changes(self.frozen), self.frozen.meta)

    @rule()
    def write_all(self) -> None:
        if self.frozen is not None:
            for _ in self.steps:
                pass
            self.state.thaw()
            self.frozen = None
            self.then, self.then_numbers = self.in_frozen, self.frozen_numbers

    @rule()
    def finish_checkpoint_now(self) -> None:
        self.write_all()
        self.begin_checkpoint()
        self.write_all()

    @rule()
    def crash(self) -> None:
        self.steps.close() if hasattr(self.steps, "close") else None
        self.frozen = None
        self.state = State(self.index, self.index.meta)
        self.now = {name: dict(held) for name, held in self.then.items()}
        self.numbers = dict(self.then_numbers)

    @invariant()
    def everybody_has_what_the_model_says(self) -> None:
        if not hasattr(self, "state"):
            return
        state = self.state
        assert set(state.owners) == set(self.numbers.values())
        holders: dict[int, int] = {}
        for name, owner in self.numbers.items():
            wanted = sorted(self.now[name].items())
            entries = list(state.entries(owner, 0))
            assert [(key, entry.location) for key, entry in entries] == [(key, value[0]) for key, value in wanted]
            assert state.owners[owner].count == len(wanted)
            assert state.owners[owner].bytes == len(wanted) * SIZE
            by_priority = [key for key, _ in state.of_priority(owner, 7, 0)]
            assert by_priority == [key for key, (_, priority) in wanted if priority == 7]
            for location, _ in self.now[name].values():
                holders[location >> 32] = holders.get(location >> 32, 0) + 1
        assert {file: held.live for file, held in state.files.items() if held.live} == holders
        counts, least = state.users.counts(), self.bytes_of_users()
        assert counts == least or state.ended, "what ended counts until it is reclaimed"
        assert all(counts[user] >= size for user, size in least.items())
        for owner in state.ended:
            assert not list(state.entries(owner, 0))
            assert not list(state.of_priority(owner, 7, 0))

    def bytes_of_users(self) -> dict[str, int]:
        """Return the bytes of each user's records."""
        records = {(key, location) for held in self.now.values() for key, (location, _) in held.items()}
        found = Counter(user for key, _ in records if (user := self.users[key]) is not None)
        return {user: count * SIZE for user, count in found.items()}

    def live_bytes_are_exact(self) -> None:
        places = {location for held in self.now.values() for location, _ in held.values()}
        wanted: dict[int, int] = {}
        for place in places:
            wanted[place >> 32] = wanted.get(place >> 32, 0) + SIZE
        assert {file: held.live_bytes for file, held in self.state.files.items() if held.live_bytes} == wanted


TestEndingOwners = EndingOwners.TestCase
TestEndingOwners.settings = hypothesis_settings(
    max_examples=150 if IS_THOROUGH else 40, stateful_step_count=40, deadline=None
)


@pytest.mark.parametrize("step", [1, -1, 7])
def test_subscriptions_that_give_a_message_up_look_at_each_other_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    many, place = 100, 2 << 32
    looks = 0
    raw = State._raw

    def counted(self: State, owner: int, order_key: int) -> tuple[int, int, str] | None:
        nonlocal looks
        looks += 1
        return raw(self, owner, order_key)

    monkeypatch.setattr(State, "_raw", counted)
    with Index.open(str(tmp_path)) as index:
        state = State(index, b"")
        owners = [state.new_owner() for _ in range(many)]
        for owner in owners:
            state.subscribe(owner, T, SubscriptionInfo("c", T, f"s{owner}"), 1 << 32 | owner, None)
            state.add(owner, place << 32, place, SIZE, "p:1", is_shared=owner != owners[0])
        for number in range(many):
            assert state.files[2].live_bytes == SIZE, "whoever has it counts it"
            state.remove(owners[number * step % many], place << 32, place, SIZE, "p:1", 2)
        assert state.files[2].live_bytes == 0
    assert looks < 4 * many


def test_bytes_in_a_file_that_went_meanwhile_are_counted_nowhere(tmp_path: Path) -> None:
    """The rule holds even if the file exists again, as a listing of a shared volume may show."""
    with Index.open(str(tmp_path)) as index:
        state = State(index, b"")
        owner = state.new_owner()
        state.subscribe(owner, T, SubscriptionInfo("c", T, "s"), 1 << 32, None)
        for file in (2, 3):
            state.add(owner, file << 64, file << 32, SIZE, f"p:{file}")
        state.drop_owner(owner, 4)
        state.forget_files((2, 3))
        state.know_file(3)
        state.reclaim(9)
        assert 2 not in state.files
        assert state.files[3].live_bytes == 0
        assert not state.ended


# ---- the store


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the removal take many pieces and many checkpoints."""
    monkeypatch.setattr("tandemmq.store.maintenance.upkeep.RECLAIM_ENTRIES", 7)
    monkeypatch.setattr("tandemmq.store.state.state.RECLAIMED_MAX", 20)


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemmq.store.state.state.RECLAIMED_MAX", 0)


def checkpoint(term: Term) -> None:
    for done in term.store.checkpoint():
        term.wait(done.done)


def subscribe(term: Term, name: str) -> int:
    owner = term.store.subscription("c", name, T)
    term.store.append(AddSubscription(owner, encode_subscription(T, "c", name)))
    return owner


def remove_queue(term: Term, destination: Destination = Q) -> None:
    term.do(RemoveOwner(term.store.queue(destination), encode_remove_destination(destination)))


def has_reclaimed_all(term: Term) -> bool:
    return term.store.ask(lambda state: not state.ended).result()


def filled(directory: str) -> Term:
    """100 messages for a queue and two subscriptions each, half of them in the index."""
    term = Term(directory)
    one, two = subscribe(term, "one"), subscribe(term, "two")
    for number in range(2):
        for _ in range(50):
            term.add()
            term.add(T, owners=(one, two))
        term.add(OTHER)
        term.wait_durable(len(term.durable_operations) + 1)
        if number == 0:
            checkpoint(term)
    return term


def end_all(term: Term) -> None:
    remove_queue(term)
    term.do(RemoveOwner(term.store.subscription("c", "one", T), encode_unsubscribe(T, "c", "one")))


def test_all_of_it_goes_from_the_index_while_others_are_served(directory: str, slowly: None) -> None:
    term = filled(directory)
    end_all(term)
    again = term.add_durably(3)
    assert len(term.bodies()) == 3, "whoever begins under the same name gets nothing of before"
    term.wait(lambda: has_reclaimed_all(term))
    assert len(term.bodies()) == len(again)
    term.close()
    assert ended_in(f"{directory}/index/a") == {"ended": 0, "messages": 0}
    with Term(directory) as later:
        assert {(owner.destination, owner.subscription_name): owner.count for owner in later.owners} == {
            (Q, None): 3,
            (OTHER, None): 2,
            (T, "two"): 100,
        }


def test_a_broker_that_starts_goes_on_with_it(directory: str, never: None, monkeypatch: pytest.MonkeyPatch) -> None:
    term = filled(directory)
    end_all(term)
    checkpoint(term)
    checkpoint(term)
    term.crash()
    assert ended_in(f"{directory}/index/a") == {"ended": 2, "messages": 200}
    with Term(directory) as again:
        assert {(owner.destination, owner.subscription_name): owner.count for owner in again.owners} == {
            (OTHER, None): 2,
            (T, "two"): 100,
        }
        monkeypatch.setattr("tandemmq.store.state.state.RECLAIMED_MAX", 1000)
        again.add_durably(1)
        again.wait(lambda: has_reclaimed_all(again))
    assert ended_in(f"{directory}/index/a") == {"ended": 0, "messages": 0}


def test_files_do_not_wait_for_it(directory: str, never: None) -> None:
    term = Term(directory)
    term.add_durably(200, body=b"x" * 1024)
    remove_queue(term)
    for _ in range(3):
        term.add_durably(1, OTHER)
        checkpoint(term)
    term.wait(lambda: not {"db-1.log", "db-2.log"} & set(os.listdir(directory)))
    term.crash()


def test_a_standby_does_it_in_its_own_index(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemmq.store.standby.RECLAIM_ENTRIES", 7)
    monkeypatch.setattr("tandemmq.store.state.state.RECLAIMED_MAX", 20)
    term = filled(directory)
    standby = Standby(directory, f"{directory}/index", "b", SMALL)
    standby.follow()
    end_all(term)
    term.add_durably(1, OTHER)
    standby.follow()
    assert standby.state.ended, "a piece at each look"
    while standby.state.ended:
        standby.follow()
    assert standby.messages == 102
    term.crash()
    with Term.of(standby) as promoted:
        assert sum(owner.count for owner in promoted.owners) == 103
    assert ended_in(f"{directory}/index/b") == {"ended": 0, "messages": 0}


def test_a_promotion_comes_in_the_middle_of_it(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemmq.store.standby.RECLAIM_ENTRIES", 7)
    monkeypatch.setattr("tandemmq.store.standby.CHECKPOINT_SLICE_SECONDS", 0.0)  # one is under way, and never ends
    monkeypatch.setattr("tandemmq.store.state.state.RECLAIMED_MAX", 20)
    term = filled(directory)
    standby = Standby(directory, f"{directory}/index", "b", SMALL)
    standby.follow()
    end_all(term)
    term.add_durably(1, OTHER)
    for _ in range(5):
        standby.follow()
    assert standby.state.frozen is not None
    assert standby.state.ended
    term.crash()
    with Term.of(standby) as promoted:
        assert sum(owner.count for owner in promoted.owners) == 103
        promoted.wait(lambda: has_reclaimed_all(promoted))
    assert ended_in(f"{directory}/index/b") == {"ended": 0, "messages": 0}


def test_the_check_reports_an_index_that_counts_removed_messages(tmp_path: Path, never: None) -> None:
    directory = str(tmp_path)
    term = filled(directory)
    remove_queue(term)
    checkpoint(term)
    term.crash()
    assert check(directory).is_clean
    with Index.open(f"{directory}/index/a") as index:
        ((key, value),) = index.scan(keys.ENDED, keys.FILE)
        _, record = keys.owner_of(key, value)
        changed = keys.owner_value(record._replace(messages=record.messages + 1))
        for _ in index.checkpoint([(key, changed)], index.meta):
            pass
    problems = check(directory).problems
    assert problems == [
        f"{directory}/index/a: {Q}, which ended, has no entries, but its count is 1 messages of 0 bytes"
    ]


# ---- the store in memory


def test_a_store_in_memory_lets_go_in_pieces() -> None:
    turns: deque[Callable[[], None]] = deque()
    store = MemoryStore(turns.append)

    class Told:
        def durable(self, operations: list[Operation]) -> None: ...

        def drained(self) -> None: ...

    store.start(Told())
    first = store.queue(Q)
    for number in range(3 * LET_GO_AT_ONCE):
        message = Message(Q, f"ID:p:{number:04}", persistent=True)
        store.append(AddMessage(message, (first,), encode_add(message, b"x" * 100)))
    turns.popleft()()
    held = store.bytes
    store.append(RemoveOwner(first, encode_remove_destination(Q)))
    assert store.queue(Q) != first, "its name is free at once"
    pieces = []
    while turns:
        turns.popleft()()
        pieces.append(store.bytes)
    assert pieces == [held, held * 2 // 3, held // 3, 0]
