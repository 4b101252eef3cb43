"""Random lives of a store, exported and handed back: the real ActiveMQ holds the content that TandemMQ held, whatever
happened before."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import encode_batch
from tandemmq.store.kahadb.minimal import write_minimal
from tandemmq.store.migration.handback import hand_back
from tandemmq.store.migration.reading import read_contents
from tandemmq.store.migration.transfer import carry_over
from tandemmq.store.operations import (
    AddMessage,
    AddSubscription,
    Atomic,
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
    encode_subscription,
    encode_unsubscribe,
)
from tandemmq.store.records.loose import OPENWIRE_VERSION
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tandemmq.store.settings import StoreSettings
from tandemmq.store.tools.check import check
from tandemmq.store.tools.inspect import read_headers
from tests.interop.conftest import ActiveMQ
from tests.support.prove import SEED, rounds
from tests.support.store.store_harness import Term

pytestmark = [pytest.mark.service, pytest.mark.prove, pytest.mark.promise("back-to-activemq")]

QUEUES = [Destination(DestinationKind.QUEUE, name) for name in ("A", "B.C", "größe")]
TOPICS = [Destination(DestinationKind.TOPIC, name) for name in ("T", "U")]
NAMES = ("one", "two", "three")
SETTINGS = StoreSettings(
    journal_max_file_length=16 * 1024, checkpoint_records=50, checkpoint_interval=3600.0, fence_check_interval=0.01
)
EPOCHS = 3
STEPS = 60

Held = AddMessage | PagedMessage


class Life:
    """One epoch of random work. ``held``: the messages of each queue or subscription (by name) that may be removed."""

    def __init__(self, directory: Path, chance: random.Random, number: int) -> None:
        self.chance = chance
        self.number = number
        self.term = Term(str(directory), f"b{number}", settings=SETTINGS)
        self.held: dict[str, list[Held]] = {}
        self.owners: dict[str, int] = {}
        self.subscriptions: dict[str, Destination] = {}
        withheld = self.term.store.ask(
            lambda state: {o.id: set(state.withheld.get(o.id, ())) for o in state.owners.values()}
        )
        self.term.wait(withheld.done)
        for owner in self.term.owners:
            name = owner.destination.name
            if owner.subscription_name is not None:
                name = f"c:{owner.subscription_name}"
                self.subscriptions[name] = owner.destination
            page = self.term.page(owner.id, count=1 << 30)
            hidden = withheld.result()[owner.id]
            self.owners[name] = owner.id
            self.held[name] = [paged for paged in page.messages if paged.order_key not in hidden]

    def work(self) -> None:
        steps = [self.add, self.add, self.add, self.remove, self.remove, self.subscribe, self.transaction, self.compact]
        for _ in range(STEPS):
            self.chance.choice(steps)()
        if self.chance.random() < 0.7:
            self.prepare()
        self.settle()

    def settle(self) -> None:
        self.term.end_turn()
        self.term.wait(lambda: not self.term.store.has_pending)

    def add(self) -> None:
        destination = self.chance.choice(QUEUES + TOPICS)
        for _ in range(self.chance.randrange(1, 15)):
            message = self.term.message(destination, self.chance.randbytes(self.chance.randrange(10, 900)))
            names = self.holders(destination)
            if not names:
                return
            owners = tuple(self.owners[name] for name in names)
            operation = AddMessage(message, owners, encode_add(message, encode_message(message)))
            self.term.store.append(operation)
            for name in names:
                self.held.setdefault(name, []).append(operation)
        self.settle()

    def holders(self, destination: Destination) -> list[str]:
        if destination.is_topic:
            return [name for name, topic in self.subscriptions.items() if topic == destination]
        self.owners[destination.name] = self.term.store.queue(destination)
        return [destination.name]

    def taken(self, many: int) -> list[tuple[str, Held]]:
        """Some messages, in no order, that are to be removed."""
        names = [name for name, held in self.held.items() if held]
        if not names:
            return []
        name = self.chance.choice(names)
        held = self.held[name]
        wanted = self.chance.sample(held, min(len(held), self.chance.randrange(1, many)))
        self.held[name] = [message for message in held if message not in wanted]
        return [(name, message) for message in wanted]

    def remove(self) -> None:
        for name, message in self.taken(25):
            self.term.remove(message, self.owners[name], name if name in self.subscriptions else None)
        self.settle()

    def subscribe(self) -> None:
        name = self.chance.choice(NAMES)
        key = f"c:{name}"
        if key in self.subscriptions:
            if self.chance.random() < 0.7:
                return
            topic = self.subscriptions.pop(key)
            self.term.store.append(RemoveOwner(self.owners.pop(key), encode_unsubscribe(topic, "c", name)))
            self.held.pop(key, None)
        else:
            topic = self.chance.choice(TOPICS)
            self.owners[key] = owner = self.term.store.subscription("c", name, topic)
            self.term.store.append(AddSubscription(owner, encode_subscription(topic, "c", name)))
            self.subscriptions[key] = topic
        self.settle()

    def operations(self, transaction: LocalTransactionId | XaTransactionId) -> list[AddMessage | RemoveMessage]:
        found: list[AddMessage | RemoveMessage] = []
        destination = self.chance.choice(QUEUES)
        (name,) = self.holders(destination)
        for _ in range(self.chance.randrange(1, 4)):
            message = self.term.message(destination, b"in a transaction")
            payload = encode_add(message, encode_message(message), transaction)
            found.append(AddMessage(message, (self.owners[name],), payload))
        for holder, held in self.taken(4):
            key = holder if holder in self.subscriptions else None
            message = held.message
            payload = encode_remove(message.destination, message.message_id, transaction, key)
            found.append(
                RemoveMessage(
                    self.owners[holder], held.order_key, held.location, message.message_id, payload, size=held.size
                )
            )
        return found

    def transaction(self) -> None:
        transaction = LocalTransactionId(f"ID:c{self.number}", self.chance.randrange(1 << 30))
        operations = self.operations(transaction)
        self.term.store.append(Atomic(operations, encode_commit(transaction)))
        for operation in operations:
            if isinstance(operation, AddMessage):
                self.held.setdefault(operation.message.destination.name, []).append(operation)
        self.settle()

    def prepare(self) -> None:
        transaction = XaTransactionId(self.number, self.chance.randbytes(4), b"b")
        self.term.store.append(
            PrepareTransaction(transaction, self.operations(transaction), encode_prepare(transaction))
        )
        self.settle()

    def compact(self) -> None:
        if self.chance.random() < 0.2:
            compaction = self.term.store.compact()
            self.term.wait(compaction.done)


def spoil(directory: Path, chance: random.Random) -> None:
    """A zombie writes behind the ends of some files."""
    files = JournalFiles(str(directory))
    ends = read_headers(files).ends
    for file in files.list():
        if file in ends and chance.random() < 0.3:
            with open(files.path(file), "r+b") as stream:
                stream.seek(ends[file])
                stream.write(encode_batch([encode_remove(QUEUES[0], "ID:anything:1:1:1")])[0])


def held_by_us(directory: Path, scratch: Path) -> tuple[dict[str, list[str]], list[str]]:
    found = {}
    with read_contents(str(directory), str(scratch)) as contents:
        prepared = [key for key, transaction in contents.state.transactions.items() if transaction.is_prepared]
        for owner in contents.owners():
            name = owner.destination.name if owner.subscription_name is None else owner.key
            hidden = contents.state.withheld.get(owner.id, ())
            found[name] = [
                entry.message_id for order_key, entry in contents.state.entries(owner.id, 0) if order_key not in hidden
            ]
    return {name: ids for name, ids in found.items() if ids}, sorted(prepared)


def held_by_activemq(lines: list[dict[str, Any]]) -> tuple[dict[str, list[str]], list[str]]:
    found = {}
    prepared = []
    for line in lines:
        if line["owner"] == "prepared":
            prepared.append(
                XaTransactionId(line["formatId"], bytes.fromhex(line["globalId"]), bytes.fromhex(line["branch"])).key
            )
            continue
        name = line["destination"].partition("://")[2]
        if line["owner"] == "subscription":
            name = f"{line['clientId']}:{line['name']}"
        if line["messages"]:
            found[name] = [message["id"] for message in line["messages"]]
    return found, sorted(prepared)


def test_whatever_a_store_went_through_activemq_holds_what_we_held(activemq: ActiveMQ, tmp_path: Path) -> None:
    first = SEED
    for seed in range(first, first + rounds(1, 20)):
        print(f"TANDEMMQ_SEED={seed}")
        chance = random.Random(seed)
        directory = tmp_path / f"{seed}"
        directory.mkdir()
        for number in range(EPOCHS):
            life = Life(directory, chance, number)
            life.work()
            (life.term.close if chance.random() < 0.5 else life.term.crash)()
        Term(str(directory), "last", settings=SETTINGS).crash()
        spoil(directory, chance)
        mine = held_by_us(directory, tmp_path / f"before-{seed}")

        exported = tmp_path / f"exported-{seed}"
        exported.mkdir()
        carried = carry_over(str(directory), str(exported), str(tmp_path / f"carried-{seed}"), name="export")
        assert carried.differences == [], f"TANDEMMQ_SEED={seed}"
        write_minimal(str(exported), OPENWIRE_VERSION)
        assert check(str(exported)).is_clean
        assert held_by_activemq(activemq("dump", exported)) == mine, f"TANDEMMQ_SEED={seed}: exported"

        report = hand_back(str(directory), str(tmp_path / f"work-{seed}"))

        assert report.is_ready, f"TANDEMMQ_SEED={seed}: {report}"
        assert held_by_us(directory, tmp_path / f"after-{seed}") == mine, f"TANDEMMQ_SEED={seed}"
        print(f"  {sum(map(len, mine[0].values()))} messages, {len(report.ended)} files ended, {report.reordered}")
        assert held_by_activemq(activemq("dump", directory)) == mine, f"TANDEMMQ_SEED={seed}"
