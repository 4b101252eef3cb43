"""A random life of a store: queues, durable subscriptions, transactions, compactions and new masters."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from tandemmq.store.operations import (
    AddMessage,
    AddSubscription,
    Atomic,
    EndTransaction,
    Operation,
    PagedMessage,
    PrepareTransaction,
    RemoveMessage,
    RemoveOwner,
)
from tandemmq.store.records.commands import (
    encode_add,
    encode_commit,
    encode_prepare,
    encode_remove,
    encode_remove_destination,
    encode_rollback,
    encode_subscription,
    encode_unsubscribe,
    subscription_key,
)
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId, XaTransactionId
from tandemmq.store.settings import StoreSettings
from tandemmq.store.state.state import State
from tests.support.store.store_harness import KIB, Term

FILE_BYTES = 64 * KIB
CLIENT = "client"
QUEUES = tuple(Destination(DestinationKind.QUEUE, name) for name in ("orders", "prices", "BUSY"))
TOPIC = Destination(DestinationKind.TOPIC, "news")
SETTINGS = StoreSettings(
    journal_max_file_length=FILE_BYTES, checkpoint_records=60, cleanup_interval=0.0, fence_check_interval=0.01,
    compaction_rate=1 << 30, enable_compaction=False,
)  # fmt: skip

Done = TypeVar("Done", bound=Operation)
Held = AddMessage | PagedMessage


class Life:
    """``chance``: source of all choices. No consumer takes one message in five."""

    def __init__(self, directory: str, chance: random.Random, settings: StoreSettings = SETTINGS) -> None:
        self._directory = directory
        self._settings = settings
        self._chance = chance
        self._number = 0
        self._prepared: list[TransactionId] = []
        self._in_doubt: set[str] = set()
        self.subscriptions: dict[str, int] = {}
        self.held: dict[int, list[Held]] = {}
        self._broker = "a"
        self.term = Term(directory, self._broker, settings)

    def run(self, steps: int) -> None:
        deeds = (
            *[self.send] * 6,
            *[self.publish] * 3,
            *[self.consume] * 8,
            self.subscribe,
            self.unsubscribe,
            self.remove_queue,
            *[self.commit] * 2,
            *[self.prepare] * 2,
            self.decide,
            self.compact,
            self.change_master,
        )
        for _ in range(steps):
            self._chance.choice(deeds)()

    def do(self, operation: Done) -> Done:
        self.do_all([operation])
        return operation

    def do_all(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            self.term.store.append(operation)
        self.term.wait(lambda: not operations or operations[-1] in self.term.durable_operations)

    # ---- messages

    def _message(self, destination: Destination, transaction: TransactionId | None = None) -> AddMessage:
        message = self.term.message(destination, b"x" * self._chance.choice((10, 300, 3000)))
        if destination.is_topic:
            chosen = {name for name in self.subscriptions if self._chance.random() < 0.8}
            owners = tuple(self.subscriptions[name] for name in sorted(chosen))
            unmatched_acks = tuple(
                encode_remove(destination, message.message_id, None, subscription_key(CLIENT, name))
                for name in sorted(self.subscriptions.keys() - chosen)
            )
        else:
            owners, unmatched_acks = (self.term.store.queue(destination),), ()
        payload = encode_add(message, encode_message(message), transaction)
        return AddMessage(message, owners, payload, unmatched_acks=unmatched_acks)

    def _removal(self, owner: int, held: Held, transaction: TransactionId | None = None) -> RemoveMessage:
        names = {number: name for name, number in self.subscriptions.items()}
        key = subscription_key(CLIENT, names[owner]) if owner in names else None
        message = held.message
        payload = encode_remove(message.destination, message.message_id, transaction, key)
        return RemoveMessage(owner, held.order_key, held.location, message.message_id, payload, size=held.size)

    def _keep(self, added: AddMessage) -> None:
        for owner in added.owners:
            self.held.setdefault(owner, []).append(added)

    def send(self) -> None:
        destination = self._chance.choice(QUEUES)
        messages = [self._message(destination) for _ in range(self._chance.randrange(1, 12))]
        self.do_all(messages)
        for message in messages:
            self._keep(message)

    def publish(self) -> None:
        messages = [self._message(TOPIC) for _ in range(self._chance.randrange(1, 6))]
        messages = [message for message in messages if message.owners]
        self.do_all(messages)
        for message in messages:
            self._keep(message)

    def _mortal(self, owner: int) -> list[Held]:
        ids = [held.message.message_id for held in self.held.get(owner, [])]
        return [
            held
            for held, message_id in zip(self.held.get(owner, []), ids, strict=True)
            if not message_id.endswith(("3", "8")) and message_id not in self._in_doubt
        ]

    def consume(self) -> None:
        if self.held:
            owner = self._chance.choice(sorted(self.held))
            going = [held for held in self._mortal(owner) if self._chance.random() < 0.8]
            self.do_all([self._removal(owner, held) for held in going])
            for held in going:
                self.held[owner].remove(held)

    # ---- transactions

    def _parts(self, transaction: TransactionId) -> tuple[list[AddMessage], list[tuple[int, Held]]]:
        adds = [self._message(self._chance.choice(QUEUES), transaction) for _ in range(self._chance.randrange(1, 4))]
        owner = self.term.store.queue(self._chance.choice(QUEUES))
        return adds, [(owner, held) for held in self._mortal(owner)[:2]]

    def commit(self) -> None:
        self._number += 1
        transaction = LocalTransactionId("c", self._number)
        adds, removes = self._parts(transaction)
        removals = [self._removal(owner, held, transaction) for owner, held in removes]
        self.do(Atomic([*adds, *removals], encode_commit(transaction)))
        for owner, held in removes:
            self.held[owner].remove(held)
        for added in adds:
            self._keep(added)

    def prepare(self) -> None:
        self._number += 1
        transaction = XaTransactionId(5, b"branch", b"%d" % self._number)
        adds, removes = self._parts(transaction)
        removals = [self._removal(owner, held, transaction) for owner, held in removes]
        self.do(PrepareTransaction(transaction, [*adds, *removals], encode_prepare(transaction)))
        self._in_doubt |= {held.message.message_id for _, held in removes}
        self._prepared.append(transaction)

    def decide(self) -> None:
        if self._prepared:
            transaction = self._prepared.pop(0)
            encode, is_commit = self._chance.choice(((encode_commit, True), (encode_rollback, False)))
            self.do(EndTransaction(transaction, is_commit, encode(transaction)))
            self._look()

    # ---- owners

    def subscribe(self) -> None:
        """Begin a subscription, or write the record of an existing one again."""
        name = self._chance.choice(("one", "two", "three"))
        owner = self.subscriptions.get(name)
        if owner is None:
            owner = self.subscriptions[name] = self.term.store.subscription(CLIENT, name, TOPIC)
            self.held[owner] = []
        selector = self._chance.choice((None, "a = 1"))
        self.do(AddSubscription(owner, encode_subscription(TOPIC, CLIENT, name, selector)))

    def unsubscribe(self) -> None:
        if self.subscriptions and self._chance.random() < 0.4:
            name = self._chance.choice(sorted(self.subscriptions))
            owner = self.subscriptions.pop(name)
            self.held.pop(owner)
            self.do(RemoveOwner(owner, encode_unsubscribe(TOPIC, CLIENT, name)))

    def remove_queue(self) -> None:
        queue = self._chance.choice(QUEUES)
        owner = self.term.store.queue(queue)
        if not self._prepared and self._chance.random() < 0.4 and self.held.get(owner):
            self.held.pop(owner)
            self.do(RemoveOwner(owner, encode_remove_destination(queue)))

    # ---- the store

    def compact(self) -> None:
        self.term.wait(self.term.store.compact().done, 20)

    def change_master(self) -> None:
        """Change the master. The next one has the index of the last one, or none."""
        if self._chance.random() < 0.5:
            self.term.close()
        else:
            self.term.crash()
        if self._chance.random() < 0.5:
            self._broker += "x"
        self.term = Term(self._directory, self._broker, self._settings)
        owners = {owner.subscription_name: owner.id for owner in self.term.owners}
        self.subscriptions = {name: owners[name] for name in self.subscriptions}
        self._look()

    def _look(self) -> None:
        """Read the current state from the store."""
        queues = {owner.destination: owner.id for owner in self.term.owners if owner.subscription_name is None}
        queues |= {queue: self.term.store.queue(queue) for queue in QUEUES}
        self.held = {}
        for owner in (*queues.values(), *self.subscriptions.values()):
            self.held[owner] = list(self.term.page(owner).messages)
        self._in_doubt = set()

    def contents(self) -> dict[tuple[str, str | None], list[str]]:
        """Return destination and subscription -> the ids of its messages, in order, including those in doubt."""

        def ask(state: State) -> dict[tuple[str, str | None], list[str]]:
            return {
                (str(owner.destination), None if owner.subscription_name is None else owner.key): [
                    entry.message_id for _, entry in state.entries(owner.id, 0)
                ]
                for owner in state.owners.values()
            }

        return {name: ids for name, ids in self.term.store.ask(ask).result(10).items() if ids}

    def place(self) -> tuple[int, int]:
        """Return file and offset after all written data."""
        position = self.term.store.ask(lambda state: state.position).result(10)
        assert position is not None, "a header is there"
        return position.file, position.offset
