"""Requests to a store, its promises, and the states that are therefore allowed after a crash.

Actions take effect in the order of the requests. So after a power loss the state is that after the first k actions: k
is at least the number of promised actions, and at most the number of requested ones. This includes all promises:
nothing stored is lost, nothing removed comes back, order is kept, nothing is duplicated, a transaction happened
completely or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tandemmq.disk import Disk
from tandemmq.store.maintenance.compaction import CompactionReport
from tandemmq.store.operations import (
    AddMessage,
    AddSubscription,
    Atomic,
    EndTransaction,
    Operation,
    Owner,
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
)
from tandemmq.store.records.message import Destination, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId, XaTransactionId
from tandemmq.store.settings import StoreSettings
from tests.support.ci.verdicts import verdict
from tests.support.crash.recording_disk import Event, Note, RecordingDisk
from tests.support.store.queued_term import QueuedTerm
from tests.support.store.store_harness import Q, Term

# The visible state of a store: owner as text -> the ids of its messages, in order. A queue without messages is left
# out. A prepared transaction is also an owner; it has figures instead of ids.
State = tuple[tuple[str, tuple[str, ...]], ...]

# The messages that a transaction adds (destination, and subscription if it is not a queue) and removes (owner, and
# subscription).
Added = list[tuple[Destination, tuple[int, ...]]]
Removed = list[tuple[AddMessage | PagedMessage, int, str | None]]

PREPARED = "prepared "

# Bodies of messages of other brokers; bodies of TandemMQ's messages begin with the message id.
FOREIGN_BODIES: dict[str, bytes] = {}


@dataclass(frozen=True, slots=True)
class Effect:
    """One change of the visible state.

    ``kind``: add, remove, return (to its former place), begin (a subscription, a prepared transaction), end (an owner,
    a prepared transaction).
    """

    kind: str
    owner: str
    message_id: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the store in life ``life``; all its effects happen, or none. ``stores``: the stores concerned, if
    there are several."""

    life: int
    number: int
    effects: tuple[Effect, ...]
    stores: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Held:
    """The store reported the action of this number as durable."""

    life: int
    number: int


@dataclass(frozen=True, slots=True)
class Began:
    """A promotion is complete; ``state`` is what the new master found."""

    life: int
    state: State


def after(state: State, effects: Iterable[Effect]) -> State:
    """Return the state with these changes."""
    owners = {owner: list(ids) for owner, ids in state}
    for effect in effects:
        if effect.kind == "add":
            owners.setdefault(effect.owner, []).append(effect.message_id)
        elif effect.kind == "remove":
            owners[effect.owner].remove(effect.message_id)
        elif effect.kind == "return":
            ids = owners.setdefault(effect.owner, [])
            later = [place for place, other in enumerate(ids) if _age(other) > _age(effect.message_id)]
            ids.insert(later[0] if later else len(ids), effect.message_id)
        elif effect.kind == "begin":
            owners.setdefault(effect.owner, [effect.message_id] if effect.message_id else [])
        else:
            owners.pop(effect.owner, None)
    return canonical(owners)


def _age(message_id: str) -> tuple[int, int]:
    """Sort key: messages outside transactions are in the order of their ids (``Term.message``)."""
    epoch, _, number = message_id.removeprefix("ID:").partition("-")
    return int(epoch), int(number.rpartition(":")[2])


def canonical(owners: dict[str, list[str]]) -> State:
    return tuple(sorted((owner, tuple(ids)) for owner, ids in owners.items() if ids or is_subscription(owner)))


def drained(state: State, kept: str) -> State:
    """Return the state after all visible messages are acknowledged, except those of the owner ``kept``."""
    return canonical({owner: list(ids) if owner == kept or is_prepared(owner) else [] for owner, ids in state})


def is_prepared(owner: str) -> bool:
    return owner.startswith(PREPARED)


def is_subscription(owner: str) -> bool:
    return " for " in owner


class Ledger:
    """The states that each moment of a record allows. Pass the events in order; ``allowed``: the allowed states after
    them.

    ``must_last``: whether a promise holds against a power loss (sync policy "always").
    """

    def __init__(self, before: frozenset[State] = frozenset([()]), must_last: bool = True) -> None:
        self.allowed = before
        self._must_last = must_last
        self._life = 0
        self._states: list[State] = []
        self._held = 0

    @verdict
    def apply(self, event: Event) -> None:
        if not isinstance(event, Note):
            return
        what = event.what
        if not isinstance(what, Began | Asked | Held):
            return
        if isinstance(what, Began):
            assert what.state in self.allowed, f"found at a start: {difference(what.state, self.allowed)}"
            self._life, self._states, self._held = what.life, [what.state], 0
        elif what.life != self._life:
            # A deposed master may still get requests; it must not answer any more.
            assert not isinstance(what, Held), f"a deposed master promised {what}"
            return
        elif isinstance(what, Asked):
            assert what.number == len(self._states)
            self._states.append(after(self._states[-1], what.effects))
        elif isinstance(what, Held):
            assert what.number == self._held + 1, "promises are made in the order of the requests"
            self._held = what.number
        self.allowed = frozenset(self._states[self._held if self._must_last else 0 :])


def difference(found: State, allowed: Iterable[State]) -> str:
    """Return a description of the difference from the nearest allowed state."""
    has = dict(found)
    best: list[str] | None = None
    for state in allowed:
        should = dict(state)
        words: list[str] = []
        for owner in sorted(has.keys() | should.keys()):
            mine, theirs = has.get(owner), should.get(owner)
            if mine == theirs:
                continue
            if mine is None or theirs is None:
                words.append(f"{owner} is {'there, and should not be' if theirs is None else 'not there'}")
            lost = [i for i in theirs or () if i not in (mine or ())]
            back = [i for i in mine or () if i not in (theirs or ())]
            twice = [i for i in set(mine or ()) if (mine or ()).count(i) > 1]
            words += [f"{owner}: lost {lost}"] * bool(lost) + [f"{owner}: there again {back}"] * bool(back)
            words += [f"{owner}: twice {twice}"] * bool(twice)
            if not lost and not back and not twice:
                words.append(f"{owner}: another order, {mine} instead of {theirs}")
        if best is None or len(words) < len(best):
            best = words
    return "; ".join(best or ["no state is allowed"])


# ---- a store with a record of its promises


def owner_in_words(destination: Destination, client_id: str | None, name: str | None) -> str:
    return str(destination) if name is None else f"{destination} for {client_id}:{name}"


def words_of(owner: Owner) -> str:
    return owner_in_words(owner.destination, owner.client_id, owner.subscription_name)


def body_of(message_id: str, length: int) -> bytes:
    """Return a body that contains the message id."""
    return (message_id.encode() + b" ").ljust(length, b"=")


def seen(term: Term) -> State:
    """Return the state of the store, read as by a broker; each body must belong to its message."""
    owners: dict[str, list[str]] = {}
    for owner in term.owners:
        page = term.page(owner.id)
        for paged in page.messages:
            message_id = paged.message.message_id
            wanted = FOREIGN_BODIES.get(message_id, message_id.encode() + b" ")
            assert paged.message.body.startswith(wanted), f"{message_id} has another body"
        owners[words_of(owner)] = [paged.message.message_id for paged in page.messages]
    for transaction, added, removed, *_ in term.store.prepared():
        owners[prepared_in_words(transaction)] = [figures_in_words(added, removed)]
    return canonical(owners)


def prepared_in_words(transaction: TransactionId) -> str:
    return f"{PREPARED}{transaction}"


def figures_in_words(added: int, removed: int) -> str:
    return f"{added} in, {removed} out"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A transaction that waits for its outcome, with the effects of each outcome. ``unclaimed``: its messages for a
    topic without a subscription."""

    transaction: XaTransactionId
    on_commit: tuple[Effect, ...]
    on_rollback: tuple[Effect, ...]
    unclaimed: tuple[str, ...] = ()


class PromisingTerm(QueuedTerm):
    """A term whose requests and promises are recorded as events of its disk."""

    _lives = 0

    def __init__(
        self,
        directory: str,
        broker: str,
        settings: StoreSettings,
        disk: RecordingDisk,
        own: Disk | None = None,
        body_bytes: int = 300,
    ) -> None:
        self.disk = disk
        self.body_bytes = body_bytes
        self.names: dict[int, str] = {}
        self._numbers: dict[Any, int] = {}
        self._asked = 0
        self._open(directory, broker, settings, disk if own is None else own)
        PromisingTerm._lives += 1
        self.life = PromisingTerm._lives
        for owner in self.owners:
            self.names[owner.id] = words_of(owner)
        disk.note(Began(self.life, seen(self)))

    def _open(self, directory: str, broker: str, settings: StoreSettings, disk: Disk) -> None:
        QueuedTerm.__init__(self, directory, broker, settings, disk=disk)

    def stores_of(self, operation: Operation) -> frozenset[int]:
        """Return the stores that the operation concerns, if there are several."""
        return frozenset()

    def durable(self, operations: list[Operation]) -> None:
        for operation in operations:
            number = self._numbers.pop(operation, None)
            if number is not None:
                self.disk.note(Held(self.life, number))
        super().durable(operations)

    def ask(self, operation: Operation, *effects: Effect) -> None:
        self.store.append(operation)  # it may be refused; the turn has not ended yet
        self._asked += 1
        self._numbers[operation] = self._asked
        self.disk.note(Asked(self.life, self._asked, effects, self.stores_of(operation)))

    def wait_all(self) -> None:
        """Wait until all promises are made."""
        self.wait(lambda: not self._numbers)

    def queue(self, destination: Destination = Q) -> int:
        owner = self.store.queue(destination)
        self.names[owner] = str(destination)
        return owner

    # ---- requests

    def new_message(self, destination: Destination) -> Message:
        message = self.message(destination)
        message.body = body_of(message.message_id, self.body_bytes)
        return message

    def add(self, destination: Destination = Q, body: bytes | None = None, owners: tuple[int, ...] = ()) -> AddMessage:
        message = self.new_message(destination)
        held_by = owners or (self.queue(destination),)
        operation = AddMessage(message, held_by, encode_add(message, encode_message(message)))
        self.ask(operation, *self._added(operation))
        return operation

    def remove(self, added: AddMessage | PagedMessage, owner: int, key: str | None = None) -> RemoveMessage:
        operation = self._removal(added, owner, None, key)
        self.ask(operation, self._removed(operation))
        return operation

    def transact(self, number: int, added: Added, removed: Removed) -> Atomic:
        """Add and remove messages in one local transaction. Its order keys are set when it is durable."""
        transaction = LocalTransactionId("ID:client", number)
        parts, effects = self._parts(transaction, added, removed)
        for part in parts:
            if isinstance(part, AddMessage):
                part.is_new = True  # like a client's message, so that it may go through the queue
        operation = Atomic(parts, encode_commit(transaction))
        self.ask(operation, *effects)
        return operation

    def prepare(self, number: int, added: Added, removed: Removed) -> Prepared:
        """Prepare an XA transaction: none of its messages is visible, and the messages that it removes are withheld."""
        transaction = XaTransactionId(1, b"global", b"%d" % number)
        parts, effects = self._parts(transaction, added, removed)
        begun = Effect("begin", prepared_in_words(transaction), figures_in_words(len(added), len(removed)))
        removals = [effect for effect in effects if effect.kind == "remove"]
        self.ask(PrepareTransaction(transaction, parts, encode_prepare(transaction)), begun, *removals)
        ended = Effect("end", prepared_in_words(transaction))
        return Prepared(
            transaction,
            (ended, *(effect for effect in effects if effect.kind == "add")),
            (ended, *(Effect("return", effect.owner, effect.message_id) for effect in removals)),
            tuple(part.message.message_id for part in parts if isinstance(part, AddMessage) and not part.owners),
        )

    def end(self, prepared: Prepared, *, is_commit: bool, joined: tuple[int, ...] = ()) -> None:
        """Commit or roll back a prepared transaction. ``joined``: subscriptions that began since the prepare."""
        encode = encode_commit if is_commit else encode_rollback
        operation = EndTransaction(prepared.transaction, is_commit, encode(prepared.transaction))
        effects = prepared.on_commit if is_commit else prepared.on_rollback
        added = [Effect("add", self.names[owner], each) for each in prepared.unclaimed for owner in joined]
        self.ask(operation, *effects, *added)

    def compact(self) -> CompactionReport:
        """Compact until no file can be emptied any more."""
        report = self.store.compact()
        self.wait(report.done)
        return report.result()

    def _parts(
        self, transaction: TransactionId, added: Added, removed: Removed
    ) -> tuple[list[AddMessage | RemoveMessage], list[Effect]]:
        parts: list[AddMessage | RemoveMessage] = []
        effects: list[Effect] = []
        for destination, owners in added:
            message = self.new_message(destination)
            held_by = owners if owners or destination.is_topic else (self.queue(destination),)
            part = AddMessage(message, held_by, encode_add(message, encode_message(message), transaction))
            parts.append(part)
            effects += self._added(part)
        for message_in, owner, key in removed:
            removal = self._removal(message_in, owner, transaction, key)
            parts.append(removal)
            effects.append(self._removed(removal))
        return parts, effects

    def subscribe(self, destination: Destination, name: str) -> int:
        owner = self.store.subscription("client", name, destination)
        self.names[owner] = owner_in_words(destination, "client", name)
        payload = encode_subscription(destination, "client", name)
        self.ask(AddSubscription(owner, payload), Effect("begin", self.names[owner]))
        return owner

    def unsubscribe(self, destination: Destination, name: str, owner: int) -> None:
        self.ask(RemoveOwner(owner, encode_unsubscribe(destination, "client", name)), Effect("end", self.names[owner]))

    def remove_queue(self, destination: Destination) -> None:
        owner = self.queue(destination)
        self.ask(RemoveOwner(owner, encode_remove_destination(destination)), Effect("end", self.names[owner]))

    def _removal(
        self, added: AddMessage | PagedMessage, owner: int, transaction: TransactionId | None, key: str | None
    ) -> RemoveMessage:
        message = added.message
        payload = encode_remove(message.destination, message.message_id, transaction, key)
        return RemoveMessage(owner, added.order_key, added.location, message.message_id, payload, size=added.size)

    def _added(self, operation: AddMessage) -> list[Effect]:
        return [Effect("add", self.names[owner], operation.message.message_id) for owner in operation.owners]

    def _removed(self, operation: RemoveMessage) -> Effect:
        return Effect("remove", self.names[operation.owner], operation.message_id)


def messages_of(term: Term, owner: int) -> list[PagedMessage]:
    return term.page(owner).messages
