"""Few ids, used again and again: by clients whose producers the audit has forgotten, and by the broker, which moves
messages under the ids of their clients. The journal alone always gives the content of the running store."""

# proves: all-holders-are-asked, moved-onto-itself-has-its-own-id, what-meets-another-has-its-own-id

from __future__ import annotations

import random
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

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
    encode_commit,
    encode_prepare,
    encode_remove,
    encode_remove_destination,
    encode_rollback,
    encode_subscription,
    encode_unsubscribe,
)
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.stored import encode_stored
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId, XaTransactionId
from tandemmq.store.settings import StoreSettings
from tandemmq.store.state.state import State
from tandemmq.store.tools.check import check
from tests.support.prove import SEED, rounds
from tests.support.store.store_harness import KIB, Term

QUEUES = tuple(Destination(DestinationKind.QUEUE, f"Q.{name}") for name in "AB")
T = Destination(DestinationKind.TOPIC, "T")
COMPOSITE = Destination(DestinationKind.QUEUE, "IN")
NAMES = ("one", "two", "three")
NUMBERS = 12
SETTINGS = StoreSettings(
    journal_max_file_length=32 * KIB,
    checkpoint_records=15,
    cleanup_interval=0.0,
    fence_check_interval=0.005,
    max_failover_producers_to_track=1,
)
Holder = tuple[Destination, str | None]
Held = dict[Holder, dict[int, str]]


class Driver:
    """Does random things to one store, several of them in a turn. ``held``: the ids of what each owner holds, by order
    key, as the store reported it; None: it begins a term."""

    def __init__(self, directory: str, dice: random.Random) -> None:
        self.directory = directory
        self.dice = dice
        self.held: defaultdict[int, dict[int, str]] | None = defaultdict(dict)
        self.prepared: dict[TransactionId, list[RemoveMessage]] = {}
        self.count = 0
        self.term = Term(directory, "a", SETTINGS)

    def number(self) -> int:
        self.count += 1
        return self.count

    def owners(self) -> dict[int, Holder]:
        found = self.term.store.ask(lambda state: list(state.owners.values())).result(30)
        return {each.id: (each.destination, each.subscription_key) for each in found}

    # what an engine would hand over

    def sent(self, transaction: TransactionId | None = None) -> AddMessage | None:
        """Return a message as a client sends it."""
        producer = self.dice.choice("pq")
        return self.adding(
            self.dice.choice((*QUEUES, T)), f"ID:{producer}:1:1:{self.dice.randrange(NUMBERS)}", transaction
        )

    def adding(
        self,
        destination: Destination,
        id: str,
        transaction: TransactionId | None = None,
        *,
        is_copy: bool = False,
        is_audited: bool = True,
    ) -> AddMessage | None:
        message = Message(destination, id, b"%d" % self.number(), BodyKind.BYTES, persistent=True, timestamp=1)
        message.sender = "ann" if id[-1] in "02468" else None  # an id is a user's
        message.original_destination = COMPOSITE if is_copy else None
        if not destination.is_topic:
            payload = encode_stored(message, transaction)
            return AddMessage(message, (self.term.store.queue(destination),), payload, is_audited=is_audited)
        wanting = {owner: self.dice.random() < 0.7 for owner, (of, _) in self.owners().items() if of == T}
        if not any(wanting.values()):
            return None
        acks = [
            encode_remove(T, id, transaction, self.owners()[owner][1], b"")
            for owner, wants in wanting.items()
            if not wants
        ]
        return AddMessage(
            message,
            tuple(owner for owner, wants in wanting.items() if wants),
            encode_stored(message, transaction),
            unmatched_acks=tuple(acks),
            is_audited=is_audited,
        )

    def taken(self, *, of_queues: bool = False) -> tuple[int, Holder, PagedMessage] | None:
        """Something that is held, and that no prepared transaction removes."""
        chosen = [item for item in self.owners().items() if not of_queues or not item[1][0].is_topic]
        if not chosen:
            return None
        owner, holder = self.dice.choice(chosen)
        withheld = {(each.owner, each.order_key) for removes in self.prepared.values() for each in removes}
        found = [each for each in self.term.page(owner).messages if (owner, each.order_key) not in withheld]
        return (owner, holder, self.dice.choice(found)) if found else None

    def removing(self, transaction: TransactionId | None = None) -> list[RemoveMessage]:
        found = self.taken()
        return [] if found is None else [_removal(*found, transaction)]

    def moving(self) -> list[AddMessage | RemoveMessage]:
        """To one queue, or copies to several, one of which may be its own; or to a topic, as a dead letter. A copy has
        an id of its own from its next way on, as in the engine."""
        found = self.taken(of_queues=True)
        if found is None:
            return []
        message = found[2].message
        id = message.message_id if message.original_destination is None else f"ID:moved:-1:1:{self.number()}"
        targets = self.dice.choice(([QUEUES[0]], [QUEUES[1]], QUEUES, [T], [*QUEUES, T]))
        if [found[1][0]] == targets:
            return []
        added = [self.adding(each, id, is_copy=len(targets) > 1, is_audited=False) for each in targets]
        return [*(add for add in added if add is not None), _removal(*found)]

    def transacting(self, identity: TransactionId) -> list[AddMessage | RemoveMessage]:
        sent = [self.sent(identity) for _ in range(self.dice.randrange(1, 4))]
        return [*(add for add in sent if add is not None), *self.removing(identity)]

    def operations(self) -> Sequence[Operation]:
        dice = self.dice
        match dice.choices(range(8), [6, 4, 4, 2, 2, 3, 2, 0.3])[0]:
            case 0:
                add = self.sent()
                return () if add is None else (add,)
            case 1:
                return self.removing()
            case 2:
                parts = self.moving()
                return (Atomic(parts),) if parts else ()
            case 3:
                local = LocalTransactionId("ID:c", self.number())
                return (Atomic(self.transacting(local), encode_commit(local)),)
            case 4:
                xid = XaTransactionId(5, b"g", b"%d" % self.number())
                prepare = PrepareTransaction(xid, self.transacting(xid), encode_prepare(xid))
                self.prepared[xid] = [part for part in prepare.operations if isinstance(part, RemoveMessage)]
                return (prepare,)
            case 5 if self.prepared:
                return (_ending(dice.choice(list(self.prepared)), is_commit=dice.random() < 0.6),)
            case 6:
                name = dice.choice(NAMES)
                owner = self.term.store.subscription("c", name, T)
                if owner not in self.owners():
                    return (AddSubscription(owner, encode_subscription(T, "c", name)),)
                if dice.random() < 0.2:
                    return (RemoveOwner(owner, encode_unsubscribe(T, "c", name)),)
            case 7:
                owner = self.term.store.queue(QUEUES[0])
                if owner in self.owners():
                    return (RemoveOwner(owner, encode_remove_destination(QUEUES[0])),)
        return ()

    # what came of it

    def step(self) -> None:
        """Run one or several operations in one turn. Nothing is removed twice, so a removal ends a turn."""
        turn: list[Operation] = []
        for _ in range(self.dice.choice((1, 2, 3))):
            more = self.operations()
            turn += more
            if not all(isinstance(each, AddMessage) for each in more):
                break
        for operation in turn:
            self.term.store.append(operation)
        self.term.wait(lambda: all(operation in self.term.durable_operations for operation in turn))
        for operation in turn:
            self.note(operation)

    def note(self, operation: Operation) -> None:
        assert self.held is not None, "it was judged when the term began"
        if isinstance(operation, AddMessage):
            for owner in () if operation.is_duplicate else operation.owners:
                self.held[owner][operation.order_key] = operation.message.message_id
        elif isinstance(operation, RemoveMessage):
            del self.held[operation.owner][operation.order_key]
        elif isinstance(operation, Atomic):
            for part in operation.operations:
                self.note(part)
        elif isinstance(operation, EndTransaction):
            del self.prepared[operation.transaction]
            for owner, paged in operation.added:
                self.held[owner][paged.order_key] = paged.message.message_id
            for owner, order_key in operation.removed:
                del self.held[owner][order_key]
        elif isinstance(operation, RemoveOwner):
            self.held.pop(operation.owner, None)

    def judge(self) -> Held:
        """The store has what it reported, no id twice. Return what each queue and subscription has."""

        def look(state: State) -> tuple[dict[int, dict[int, str]], Held]:
            found = {
                owner: {order_key: entry.message_id for order_key, entry in state.entries(owner, 0)}
                for owner in state.owners
            }
            names = {owner: (each.destination, each.subscription_key) for owner, each in state.owners.items()}
            return found, {names[owner]: held for owner, held in found.items() if held}

        found, named = self.term.store.ask(look).result(30)
        if self.held is not None:
            assert {owner: held for owner, held in found.items() if held} == {o: h for o, h in self.held.items() if h}
        for held in found.values():
            assert len(set(held.values())) == len(held)
        self.held = defaultdict(dict, found)
        return named

    def next_term(self) -> None:
        """A stop or a crash, and the next master, which has an index, an old one, or the journal alone."""
        before = self.judge()
        (self.term.close if self.dice.random() < 0.2 else self.term.crash)()
        assert not check(self.directory).problems
        broker = self.dice.choice("ab")
        if self.dice.random() < 0.4:
            shutil.rmtree(f"{self.directory}/index/{broker}", ignore_errors=True)
        self.term = Term(self.directory, broker, SETTINGS)
        self.held = None
        assert self.judge() == before


def _removal(owner: int, holder: Holder, held: PagedMessage, transaction: TransactionId | None = None) -> RemoveMessage:
    id = held.message.message_id
    payload = encode_remove(holder[0], id, transaction, holder[1])
    return RemoveMessage(owner, held.order_key, held.location, id, payload, size=held.size)


def _ending(identity: TransactionId, *, is_commit: bool) -> EndTransaction:
    return EndTransaction(identity, is_commit, (encode_commit if is_commit else encode_rollback)(identity))


@pytest.mark.parametrize("life", range(rounds(20, 2000, quick=6)))
def test_a_replay_gives_what_the_store_had(tmp_path: Path, life: int) -> None:
    print(f"TANDEMMQ_SEED={SEED + life}")
    driver = Driver(str(tmp_path / "data"), random.Random(SEED + life))
    for _ in range(6):
        for _ in range(driver.dice.randrange(5, 40)):
            driver.step()
        driver.next_term()
    driver.term.close()
