"""A store without a disk: the contract of ``store.store.Store`` in memory, for tests of the layers above the store.

Operations appended in one turn of the loop come back in the next, in order, as one batch. Order keys increase like
those of a journal, so the rules for operations are those of the real store: pages, atomic operations, prepared
transactions, owners. The state is only in the object: ``owners`` and ``prepared`` return it to an engine that is
started with it later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from sortedcontainers import SortedDict

from tandemmq.store.operations import (
    AddConnection,
    AddMessage,
    AddSubscription,
    Atomic,
    CountDeliveries,
    EndTransaction,
    Engine,
    Operation,
    Owner,
    Page,
    PagedMessage,
    PreparedTransaction,
    PrepareTransaction,
    RemoveMessage,
    RemoveOwner,
)
from tandemmq.store.records.altered import altered
from tandemmq.store.records.audit import ProducerAudit
from tandemmq.store.records.commands import RemoveMessage as RemoveCommand
from tandemmq.store.records.commands import Subscription, decode, subscription_key
from tandemmq.store.records.connection_owners import ConnectionUsers
from tandemmq.store.records.hints import user_in
from tandemmq.store.records.message import Destination
from tandemmq.store.settings import StoreSettings
from tandemmq.store.state.copies import Copies
from tandemmq.store.state.keys import rank_of, terms_of
from tandemmq.store.writer.space import StoreFull

# With more pending operations than this producers must wait.
PENDING_OPERATIONS_MAX = 20_000
# With more content than this a message is refused.
BYTES_MAX = 1 << 30
# Number of messages of ended owners that are removed in one turn of the loop.
LET_GO_AT_ONCE = 256
_RECORD_OVERHEAD = 5
_DEFAULTS = StoreSettings()


def _is_never_forgotten(add: AddMessage) -> bool:
    """Return whether the audit knows all messages, so that a message it does not know is stored nowhere."""
    return False


class MemoryStore:
    """The store of a broker without persistence. ``call_soon`` runs a function in the next turn of the loop."""

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], *, epoch: int = 1, bytes_max: int = BYTES_MAX
    ) -> None:
        self.epoch = epoch
        self.is_congested = False
        self.bytes = 0
        self._call_soon = call_soon
        self.bytes_max = bytes_max
        self._engine: Engine | None = None
        self._turn: list[Operation] = []
        self.handed_over = 0  # operations so far
        self.appended: list[Operation] | None = None  # None until a test sets it
        self._location = 0
        self._began_at = 0
        self._owners: dict[int, Owner] = {}
        self._messages: dict[int, SortedDict] = {}  # owner -> order key -> PagedMessage
        self._ended: list[SortedDict] = []  # messages of ended owners
        self._queues: dict[Destination, int] = {}
        self._subscriptions: dict[tuple[Destination, str], int] = {}
        self._prepared: dict[str, PrepareTransaction] = {}
        self._withheld: dict[int, set[int]] = {}  # owner -> order keys of messages that a prepared transaction removes
        self.taken: Counter[str] = Counter()
        self._next_owner = 1
        self._connections = ConnectionUsers()
        self._audit = ProducerAudit(_DEFAULTS.failover_producers_audit_depth, _DEFAULTS.max_failover_producers_to_track)
        self._audit.user_of = self._connections.user

    def start(self, engine: Engine) -> None:
        """Begin to serve ``engine``. Pending operations of another engine are done first, and not reported."""
        self._apply_turn()
        self.taken.clear()
        self._began_at = self._location
        self._engine = engine

    def owners(self) -> list[Owner]:
        """Return all queues and durable subscriptions with their current content, without messages that a prepared
        transaction removes."""
        found = []
        for owner in self._owners.values():
            messages = self._messages[owner.id]
            size = sum(message.size for message in messages.values())
            count = len(messages) - len(self._withheld.get(owner.id, ()))
            found.append(
                Owner(
                    owner.id,
                    owner.destination,
                    count,
                    size,
                    owner.client_id,
                    owner.subscription_name,
                    selector=owner.selector,
                    no_local=owner.no_local,
                    pattern=owner.pattern,
                    user=owner.user,
                )
            )
        return found

    def connections(self) -> list[tuple[str, str]]:
        """Like ``Store.connections``."""
        return self._connections.pairs()

    def prepared(self) -> list[PreparedTransaction]:
        """Return the transactions that are prepared now: in doubt until EndTransaction."""
        found = []
        known = {owner.id: owner.destination for owner in self.owners()}
        for prepare in self._prepared.values():
            adds = [part for part in prepare.operations if isinstance(part, AddMessage) and not part.is_duplicate]
            removals = [part for part in prepare.operations if isinstance(part, RemoveMessage)]
            adds_to = frozenset(part.message.destination for part in adds)
            removes_from = frozenset(known[part.owner] for part in removals if part.owner in known)
            found.append(PreparedTransaction(prepare.transaction, len(adds), len(removals), adds_to, removes_from))
        return found

    def user_balance(self, user: str) -> int:
        """Like ``Store.user_balance``, computed at each call."""
        sizes = {
            held.location: held.size
            for messages in (*self._messages.values(), *self._ended)
            for held in messages.values()
            if held.message.sender == user
        }
        prepared = (part for each in self._prepared.values() for part in each.operations)
        adds = (part for part in prepared if isinstance(part, AddMessage) and not part.is_duplicate)
        sizes.update((add.location, add.size) for add in adds if add.message.sender == user)
        return sum(sizes.values()) - self.taken[user]

    def may_speak(self) -> bool:
        """Return True, because this memory is not shared."""
        return True

    def take_reports(self) -> bool:
        """Return False: reports are delivered without this call."""
        return False

    def check_fence_soon(self) -> None:
        """Do nothing: there is no fence."""

    def queue(self, destination: Destination) -> int:
        """Return the owner id of a queue, a new one if it is unknown."""
        found = self._queues.get(destination)
        if found is None:
            found = self._queues[destination] = self._add_owner(destination)
        return found

    def subscription(self, client_id: str, name: str, destination: Destination) -> int:
        """Return the owner id of a durable subscription, a new one if it does not exist (any more)."""
        key = destination, subscription_key(client_id, name)
        found = self._subscriptions.get(key)
        if found is None:
            found = self._subscriptions[key] = self._add_owner(destination, client_id, name)
        return found

    def _add_owner(self, destination: Destination, client_id: str | None = None, name: str | None = None) -> int:
        number = self._next_owner
        self._next_owner += 1
        self._owners[number] = Owner(number, destination, 0, 0, client_id, name)
        self._messages[number] = SortedDict()
        return number

    def append(self, operation: Operation) -> None:
        """Hand over one operation; it comes back through ``Engine.durable`` in the next turn.

        Raises StoreFull for an AddMessage above the limit. Atomic operations are always accepted: they are rare and
        bounded, and most of them only move dead letters.
        """
        if type(operation) is AddMessage and self.bytes + len(operation.payload) > self.bytes_max:
            raise StoreFull(self._full())
        if not self._turn:
            self._call_soon(self._report)
        self._turn.append(operation)
        self.handed_over += 1
        if self.appended is not None:
            self.appended.append(operation)
        if type(operation) is RemoveOwner:
            self._forget(self._owners[operation.owner])
        if len(self._turn) > PENDING_OPERATIONS_MAX:
            self.is_congested = True

    def is_of_former_term(self, owner: int, order_key: int) -> bool:
        """Return whether the message was there at the start of the current engine."""
        return order_key >> 32 <= self._began_at

    @property
    def is_full(self) -> bool:
        """Return whether the limit is reached: then no transaction that stores messages is committed."""
        return self.bytes >= self.bytes_max

    @property
    def full_reason(self) -> str:
        """Return why the store is full, as a sentence; empty if it is not."""
        return self._full() if self.is_full else ""

    def _full(self) -> str:
        return f"the store in memory holds bytes_max ({self.bytes_max} bytes)"

    def _report(self) -> None:
        operations = self._apply_turn()
        if self._engine is None or not operations:
            return
        self._engine.durable(operations)
        if self.is_congested:
            self.is_congested = False
            self._engine.drained()

    def _apply_turn(self) -> list[Operation]:
        operations, self._turn = self._turn, []
        for operation in operations:
            self._apply(operation)
        return operations

    def _apply(self, operation: Operation) -> None:
        for part in (operation,) if isinstance(operation, AddMessage) else getattr(operation, "operations", ()):
            if isinstance(part, AddMessage) and part.message.sender is not None:
                self.taken[part.message.sender] += part.charged
        if isinstance(operation, AddMessage):
            if Copies(self._came_before, _is_never_forgotten).is_duplicate(operation):
                return
            self._place(operation)
            operation.order_key = operation.location << 32
            self._add(operation)
        elif isinstance(operation, RemoveMessage):
            self._remove(operation)
        elif isinstance(operation, Page):
            self._read(operation)
        elif isinstance(operation, Atomic):
            self._apply_together(operation)
        elif isinstance(operation, PrepareTransaction):
            self._prepare(operation)
        elif isinstance(operation, EndTransaction):
            self._end(operation)
        elif isinstance(operation, RemoveOwner):
            if not self._ended:
                self._call_soon(self._let_go)
            self._ended.append(self._messages.pop(operation.owner))
            del self._owners[operation.owner]
            self._withheld.pop(operation.owner, None)
        elif isinstance(operation, CountDeliveries):
            for order_key, count in operation.counts.items():
                messages = self._messages.get(operation.owner, {})
                held = messages.get(order_key)
                if held is not None:  # pages contain earlier messages
                    message = altered(held.message, redelivery_counter=count)
                    messages[order_key] = PagedMessage(order_key, held.location, held.size, message)
        elif isinstance(operation, AddConnection):
            self._location += len(operation.payload) + _RECORD_OVERHEAD
            self._connections.know([operation.pair])
        else:
            assert isinstance(operation, AddSubscription), "unknown operation"
            self._location += len(operation.payload) + _RECORD_OVERHEAD
            self._describe(operation)

    def _forget(self, owner: Owner) -> None:
        """Remove an owner; its name is free at once."""
        if owner.subscription_name is None:
            del self._queues[owner.destination]
        else:
            assert owner.client_id is not None, "a durable subscription is a client's"
            del self._subscriptions[owner.destination, subscription_key(owner.client_id, owner.subscription_name)]

    def _let_go(self) -> None:
        """Remove some messages of ended owners; the rest is removed in the next turns."""
        messages = self._ended[-1]
        for _ in range(min(LET_GO_AT_ONCE, len(messages))):
            self.bytes -= messages.popitem()[1].size
        if not messages:
            self._ended.pop()
        if self._ended:
            self._call_soon(self._let_go)

    def _describe(self, subscription: AddSubscription) -> None:
        command = decode(subscription.payload)
        assert isinstance(command, Subscription), "the record of a new subscription is a Subscription"
        assert command.info is not None, "the record of a new subscription has a description"
        owner = self._owners[subscription.owner]
        terms = terms_of(command.destination, command.info, user_in(subscription.payload))
        owner.selector, owner.no_local, owner.pattern, owner.user = terms

    def _apply_together(self, atomic: Atomic) -> None:
        copies = Copies(self._came_before, _is_never_forgotten)
        parts = [
            part for part in atomic.operations if not isinstance(part, AddMessage) or not copies.is_duplicate(part)
        ]
        for part in parts:
            if isinstance(part, AddMessage):
                self._place(part)
        commit = None
        if atomic.commit is not None:
            commit = self._location
            self._location += len(atomic.commit) + _RECORD_OVERHEAD
        for number, part in enumerate(parts):
            if isinstance(part, AddMessage):
                part.order_key = part.location << 32 if commit is None else commit << 32 | number
                self._add(part)
            else:
                self._remove(part)

    def _prepare(self, prepare: PrepareTransaction) -> None:
        key = prepare.transaction.key
        prepare.is_refused = key in self._prepared
        if prepare.is_refused:
            return
        self._prepared[key] = prepare
        copies = Copies(self._came_before, _is_never_forgotten)
        for part in prepare.operations:
            if isinstance(part, RemoveMessage):
                self._withheld.setdefault(part.owner, set()).add(part.order_key)
            elif not copies.is_duplicate(part):
                self._place(part)
                self.bytes += part.size
        self._location += len(prepare.prepare) + _RECORD_OVERHEAD

    def _end(self, end: EndTransaction) -> None:
        prepare = self._prepared.pop(end.transaction.key, None)
        end.is_unknown = prepare is None
        if prepare is None:
            return
        self._location += len(end.payload) + _RECORD_OVERHEAD
        place = self._location << 32  # after every message added before
        for number, part in enumerate(prepare.operations):
            if isinstance(part, RemoveMessage):
                self._end_removal(part, end)
            elif not part.is_duplicate:
                self.bytes -= part.size
                if end.is_commit:
                    part.order_key = place | number
                    part.owners = self._owners_at_end(part)
                    self._add(part)
                    end.added += [(owner, self._messages[owner][part.order_key]) for owner in part.owners]
                elif part.is_audited:
                    self._audit.forget(part.message.message_id)

    def _end_removal(self, remove: RemoveMessage, end: EndTransaction) -> None:
        messages = self._messages.get(remove.owner)
        if messages is None:  # the owner and its messages are removed
            return
        self._withheld[remove.owner].discard(remove.order_key)
        if end.is_commit:
            self._remove(remove)
            end.removed.append((remove.owner, remove.order_key))
        else:
            end.returned.append((remove.owner, messages[remove.order_key]))

    def _owners_at_end(self, add: AddMessage) -> tuple[int, ...]:
        """Return the owners that get a prepared message when it becomes visible: as in a replay, all that exist then
        except those left out. A queue that was removed in the meantime begins again."""
        destination = add.message.destination
        if not destination.is_topic:
            return (self.queue(destination),)
        commands = [decode(payload) for payload in add.unmatched_acks]
        unmatched_acks = {command.subscription_key for command in commands if isinstance(command, RemoveCommand)}
        return tuple(
            owner
            for (topic, key), owner in self._subscriptions.items()
            if topic == destination and key not in unmatched_acks
        )

    def _came_before(self, add: AddMessage) -> bool:
        return self._audit.is_duplicate(add.message.message_id)

    def _place(self, add: AddMessage) -> None:
        add.size = len(add.payload) + _RECORD_OVERHEAD
        self._location += add.size
        add.location = self._location

    def _add(self, add: AddMessage) -> None:
        for owner in add.owners:
            self._messages[owner][add.order_key] = PagedMessage(add.order_key, add.location, add.size, add.message)
            self.bytes += add.size

    def _remove(self, remove: RemoveMessage) -> None:
        del self._messages[remove.owner][remove.order_key]
        self.bytes -= remove.size

    def _read(self, page: Page) -> None:
        page.is_end = True
        messages = self._messages.get(page.owner)
        if messages is None:
            return
        total = 0
        withheld = self._withheld.get(page.owner, ())
        rank = None if page.priority is None else rank_of(page.priority)
        keys = messages.irange(page.after, inclusive=(False, False)) if page.keys is None else sorted(page.keys)
        for order_key in keys:
            if order_key in withheld or order_key not in messages:
                continue
            found = messages[order_key]
            if rank is not None and rank_of(found.message.priority) != rank:
                continue
            if page.messages and (len(page.messages) >= page.count or total + found.size > page.bytes_max):
                page.is_end = False
                break
            page.messages.append(found)
            total += found.size
