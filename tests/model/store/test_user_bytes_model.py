"""Bytes counted for each user, beside a model that knows each sender: whatever happens to the messages of a real store,
and whoever is master next, with its own index, an old one, or none."""

# proves: handed-over-counts-once

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tandemmq.store.operations import (
    AddMessage,
    AddSubscription,
    Atomic,
    EndTransaction,
    PagedMessage,
    PrepareTransaction,
    RemoveMessage,
    RemoveOwner,
)
from tandemmq.store.records.commands import (
    encode_commit,
    encode_prepare,
    encode_remove,
    encode_remove_destination,
    encode_rollback,
    encode_subscription,
    encode_unsubscribe,
)
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.stored import encode_stored
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId, XaTransactionId
from tandemmq.store.settings import StoreSettings
from tandemmq.store.state.state import State
from tandemmq.store.tools.check import check
from tests.support.prove import SEED, rounds
from tests.support.store.store_harness import KIB, Term

QUEUES = tuple(Destination(DestinationKind.QUEUE, f"Q.{name}") for name in "AB")
T = Destination(DestinationKind.TOPIC, "T")
NAMES = ("one", "two", "three")
USERS = ("ann", "bob", None)
SETTINGS = StoreSettings(
    journal_max_file_length=32 * KIB, checkpoint_records=50, cleanup_interval=0.0, fence_check_interval=0.005
)


class Driver:
    """Does random things to one store, each durable before the next. ``users``: who sent each message, by its id."""

    def __init__(self, directory: str, dice: random.Random) -> None:
        self.directory = directory
        self.dice = dice
        self.users: dict[str, str | None] = {}
        self.prepared: list[XaTransactionId] = []
        self.transactions = 0
        self.handed: Counter[str] = Counter()
        self.term = Term(directory, "a", SETTINGS)

    # what an engine would hand over

    def owner(self, name: str) -> int:
        return self.term.store.subscription("c", name, T)

    def owners(self) -> dict[int, tuple[Destination, str | None]]:
        """Return the existing owners, with their topic, or queue, and KahaDB's subscription key."""
        found = self.term.store.ask(lambda state: list(state.owners.values())).result(30)
        return {each.id: (each.destination, each.subscription_key) for each in found}

    def adding(self, destination: Destination, transaction: TransactionId | None = None) -> AddMessage | None:
        message = self.term.message(destination, b"x" * self.dice.randrange(900))
        message.sender = self.users[message.message_id] = self.dice.choice(USERS)
        if not destination.is_topic:
            held_by: tuple[int, ...] = (self.term.store.queue(destination),)
        elif not (held_by := tuple(owner for owner, (of, _) in self.owners().items() if of == T)):
            return None
        add = AddMessage(message, held_by, encode_stored(message, transaction))
        if message.sender is not None:
            add.charged = len(add.payload) + 5
            self.handed[message.sender] += add.charged
        return add

    def removing(self, transaction: TransactionId | None = None) -> RemoveMessage | None:
        owner, (destination, key) = self.dice.choice(list(self.owners().items()) or [(0, (T, None))])
        found = self.term.page(owner).messages if owner else []
        if not found:
            return None
        taken: PagedMessage = self.dice.choice(found)
        message_id = taken.message.message_id
        payload = encode_remove(destination, message_id, transaction, key)
        return RemoveMessage(owner, taken.order_key, taken.location, message_id, payload, size=taken.size)

    def step(self) -> None:
        dice, term = self.dice, self.term
        match dice.randrange(14):
            case 0 | 1 | 2 | 3:
                add = self.adding(dice.choice((*QUEUES, T)))
                if add is not None:
                    term.do(add)
            case 4 | 5 | 6:
                remove = self.removing()
                if remove is not None:
                    term.do(remove)
            case 7:
                self.transact(LocalTransactionId("ID:c", self.number()))
            case 8:
                xid = XaTransactionId(5, b"g", b"%d" % self.number())
                self.transact(xid)
                self.prepared.append(xid)
            case 9 if self.prepared:
                xid = self.prepared.pop(dice.randrange(len(self.prepared)))
                is_commit = dice.random() < 0.5
                term.do(EndTransaction(xid, is_commit, (encode_commit if is_commit else encode_rollback)(xid)))
            case 10:
                name = dice.choice(NAMES)
                owner = self.owner(name)
                if owner in self.owners():
                    term.do(RemoveOwner(owner, encode_unsubscribe(T, "c", name)))
                else:
                    term.do(AddSubscription(owner, encode_subscription(T, "c", name)))
            case 11 if dice.random() < 0.3:
                queue = dice.choice(QUEUES)
                owner = term.store.queue(queue)
                if owner in self.owners():
                    term.do(RemoveOwner(owner, encode_remove_destination(queue)))
            case 12 if dice.random() < 0.4:
                done = term.store.compact()
                term.wait(done.done)
            case 13 if dice.random() < 0.4:
                self.next_term()

    def number(self) -> int:
        self.transactions += 1
        return self.transactions

    def transact(self, identity: TransactionId) -> None:
        parts = [self.adding(self.dice.choice((*QUEUES, T)), identity) for _ in range(self.dice.randrange(1, 4))]
        removes = [self.removing(identity)] if self.dice.random() < 0.5 else []
        operations = [part for part in (*parts, *removes) if part is not None]
        if isinstance(identity, LocalTransactionId):
            self.term.do(Atomic(operations, encode_commit(identity)))
        else:
            self.term.do(PrepareTransaction(identity, operations, encode_prepare(identity)))

    def next_term(self) -> None:
        """A stop or a crash, and the next master."""
        self.judge()
        (self.term.close if self.dice.random() < 0.3 else self.term.crash)()
        broker = self.dice.choice("abc")
        if self.dice.random() < 0.3:
            shutil.rmtree(f"{self.directory}/index/{broker}", ignore_errors=True)
        self.handed.clear()
        self.term = Term(self.directory, broker, SETTINGS)
        self.judge()

    # what counts

    def judge(self) -> None:
        store = self.term.store
        self.term.wait(lambda: store.ask(lambda state: not state.ended).result(30))

        def look(state: State) -> tuple[dict[str, int], ...]:
            """All of one moment: what is compacted in the background changes its size."""
            return state.users.counts(), self.wanted(state), {user: store.user_balance(user) for user in ("ann", "bob")}

        counts, wanted, balances = store.ask(look).result(30)
        assert counts == wanted
        for user, balance in balances.items():
            assert self.handed[user] + balance == counts.get(user, 0)

    def wanted(self, state: State) -> dict[str, int]:
        """Of each record that is needed, once, its size."""
        records = {
            entry.location: (entry.message_id, entry.size)
            for owner in state.owners
            for _, entry in state.entries(owner, 0)
        }
        for transaction in state.transactions.values():
            adds = (each for each in transaction.operations if each.kind == 1)
            records.update({each.location: (each.message_id, each.size) for each in adds})
        found: Counter[str] = Counter()
        for message_id, size in records.values():
            user = self.users[message_id]
            if user is not None:
                found[user] += size
        return dict(found)


@pytest.mark.parametrize("life", range(rounds(4, 400, quick=2)))
def test_each_record_counts_once_as_long_as_it_is_needed(tmp_path: Path, life: int) -> None:
    driver = Driver(str(tmp_path / "data"), random.Random(SEED + life))
    for _ in range(150):
        driver.step()
    driver.judge()
    driver.term.close()
    assert not check(driver.directory).problems
