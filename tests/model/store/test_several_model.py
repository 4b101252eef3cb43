"""Several stores against a model of one: each queue sees all operations in the order in which they were submitted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tandemmq.store.operations import AddMessage, Atomic, Operation, Page, RemoveMessage
from tandemmq.store.records.message import Destination
from tandemmq.store.records.transactions import LocalTransactionId
from tandemmq.store.settings import StoreSettings
from tandemmq.store.several.filters import FilteredStore
from tandemmq.store.tools.check_several import check_all
from tests.support.prove import SEED, rounds
from tests.support.store.several_harness import A2, REST, A, B, SeveralTerm
from tests.support.store.store_harness import KIB

pytestmark = pytest.mark.promise("several-stores-are-atomic")

STEPS = rounds(250, 250)
SETTINGS = StoreSettings(
    journal_max_file_length=64 * KIB, checkpoint_records=60, cleanup_interval=0.0, fence_check_interval=0.005
)
# A and A2 in one store, B in another, all others each in its own, made while the rest goes on.
ENTRIES = (
    FilteredStore(queue="A.>", settings=SETTINGS),
    FilteredStore(queue="B.>", settings=SETTINGS),
    FilteredStore(is_per_destination=True, settings=SETTINGS),
)
QUEUES = (A, A2, B, REST)


class Driver:
    """Hands over random operations, and remembers what each Page must hold."""

    def __init__(self, term: SeveralTerm, held: dict[Destination, list[AddMessage]], dice: random.Random) -> None:
        self.term = term
        self.held = held  # what is to be there when all that was handed over has happened
        self.dice = dice
        self.handed: list[Operation] = []
        self.expected: list[tuple[Page, list[str]]] = []
        self.empty: list[tuple[Atomic, int]] = []
        self.transactions = 0
        self.known: set[str] = set()  # found at the start

    def read_all(self) -> None:
        """Read all as an engine does after a start: places are those of this epoch."""
        for destination, messages in self.held.items():
            owner = self.term.store.queue(destination)
            found = self.term.page(owner, count=10_000).messages
            assert [paged.message.message_id for paged in found] == [each.message.message_id for each in messages]
            for message, paged in zip(messages, found, strict=True):
                message.owners = (owner,)
                message.order_key, message.location, message.size = paged.order_key, paged.location, paged.size
        self.term.durable_operations.clear()
        self.known = {each.message.message_id for messages in self.held.values() for each in messages}

    def take_one(self, destination: Destination) -> AddMessage | None:
        """Take a reported message that was not removed yet."""
        told = [message for message in self.held[destination] if message.order_key]
        if not told:
            return None
        taken = self.dice.choice(told)
        self.held[destination].remove(taken)
        return taken

    def hand(self, operation: Operation) -> None:
        self.term.store.append(operation)
        self.handed.append(operation)

    def step(self) -> None:
        dice, term = self.dice, self.term
        kind = dice.choice(["add"] * 4 + ["remove"] * 5 + ["page", "page", "joint", "joint", "letter", "empty"])
        destination = dice.choice(QUEUES)
        if kind == "add":
            added = term.adding(destination, b"x" * dice.randrange(600))
            self.hand(added)
            self.held[destination].append(added)
        elif kind == "remove":
            taken = self.take_one(destination)
            if taken is not None:
                self.hand(term.removing(taken))
        elif kind == "page":
            page = Page(term.store.queue(destination), 0, 10_000, 1 << 30)
            self.hand(page)
            self.expected.append((page, [message.message.message_id for message in self.held[destination]]))
        elif kind == "empty":
            self.empty.append((Atomic(()), len(self.handed)))
            self.hand(self.empty[-1][0])
        else:
            self.hand_atomic(is_letter=kind == "letter")

    def hand_atomic(self, *, is_letter: bool) -> None:
        dice, term = self.dice, self.term
        self.transactions += 1
        identity = None if is_letter else LocalTransactionId(f"ID:c-{term.store.epoch}", self.transactions)
        parts: list[AddMessage | RemoveMessage] = []
        for _ in range(1 if is_letter else dice.randrange(1, 4)):
            target = dice.choice(QUEUES)
            added = term.adding(target, b"t", identity)
            parts.append(added)
            self.held[target].append(added)
        taken = self.take_one(dice.choice(QUEUES))
        if taken is not None:
            parts.append(term.removing(taken, identity))
        if identity is None:
            self.hand(Atomic(parts))
        else:
            self.handed.append(term.committing(parts, identity))

    def let_the_loop_run(self) -> None:
        """Some callbacks, some turns: never in the same way twice."""
        for _ in range(self.dice.randrange(4)):
            if self.dice.random() < 0.6:
                self.term.end_turn()
            if not self.term.loop.empty():
                self.term.loop.get()()

    def settle(self) -> None:
        self.term.wait(
            lambda: not self.term.store.has_pending and len(self.term.durable_operations) >= len(self.handed)
        )

    def judge(self) -> None:
        told = self.term.durable_operations
        assert set(told) == set(self.handed), "each comes back"
        assert len(told) == len(self.handed), "and once"
        for page, expected in self.expected:
            assert [paged.message.message_id for paged in page.messages] == expected
        known = set(self.known)
        for operation in told:  # the messages of a Page were reported before it, otherwise they would be there twice
            if isinstance(operation, Page):
                assert {paged.message.message_id for paged in operation.messages} <= known
            parts = operation.operations if isinstance(operation, Atomic) else (operation,)
            known |= {part.message.message_id for part in parts if isinstance(part, AddMessage)}
        places = {operation: place for place, operation in enumerate(told)}
        for atomic, before in self.empty:
            late = [each for each in self.handed[:before] if places[each] > places[atomic]]
            assert not late, "an empty operation comes back after all before it"


@pytest.mark.prove
def test_each_queue_sees_everything_in_the_order_of_handing_over(tmp_path: Path) -> None:
    print(f"seed {SEED}, {STEPS} steps (TANDEMMQ_SEED, TANDEMMQ_PROVE)")
    dice = random.Random(SEED)
    directory = str(tmp_path)
    held: dict[Destination, list[AddMessage]] = {destination: [] for destination in QUEUES}
    for life in range(3):
        term = SeveralTerm(directory, ENTRIES, "ab"[life % 2], SETTINGS)
        driver = Driver(term, held, dice)
        driver.read_all()
        for number in range(STEPS):
            driver.step()
            if number % 200 == 199:  # the pages of a long queue take their time
                driver.settle()
            if dice.random() < 0.3:
                driver.let_the_loop_run()
        driver.settle()
        driver.judge()
        (term.crash if life % 2 else term.close)()
        report = check_all(directory)
        assert report.is_clean, report.problems
        assert report.messages == sum(map(len, held.values()))
