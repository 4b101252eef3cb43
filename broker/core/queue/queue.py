"""Queue of messages in order, given in turn to the consumers that have credit. It returns its decisions, and
does not carry them out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Final

from tandemmq.broker.core.delivery import REDELIVERIES_MAX, Delivery, Entry, Outlet, Subscription
from tandemmq.broker.core.memory import QUEUE_LINK_BYTES, TAKER_BYTES, Kind, Memory
from tandemmq.broker.core.queue.assignment import TAKEN_MAX, Assignment
from tandemmq.broker.core.queue.browse import Browse, in_order_of_queue, not_placed
from tandemmq.broker.core.queue.consumers import Choices, ConsumerCounts, Start
from tandemmq.broker.core.queue.lanes import LOOKED_AT_MAX, with_space
from tandemmq.broker.core.queue.priorities import KEY_BITS
from tandemmq.broker.core.queue.window import COPIED, Window
from tandemmq.broker.core.slices import ITEMS, Pace, Work, nothing

# Bounds of one call of dispatch: the outlets are checked again before they receive more.
ROUND_MESSAGES = 128
ROUND_BYTES: Final = 128 * 1024
# A queue with more entries in its lanes keeps the lanes, even if it no longer needs them: only few entries are quickly
# merged into one row.
GATHERED_MAX = 10_000

_position: Final = attrgetter("position")
_weight: Final = attrgetter("weight")


def _link_bytes(subscription: Subscription) -> int:
    """Return the bytes of a place in a queue, without the selector."""
    return QUEUE_LINK_BYTES if subscription.selector is None else QUEUE_LINK_BYTES + TAKER_BYTES


@dataclass(slots=True, eq=False, repr=False)
class Queue(Window):
    """Queue: its window, and its consumers."""

    owners: tuple[int, ...] = field(init=False)
    expires: bool = field(default=True, init=False)  # whether its messages expire
    is_leaving: bool = field(default=False, init=False)  # unused: it ends unless a client names it now
    has_more: bool = field(default=False, init=False)  # the last round of dispatch ended at its bound
    topic: object | None = field(default=None, init=False)  # the topic that feeds it, of a durable subscription
    # While it is paused: the consumers that take part again when it resumes. None: it is not paused.
    _set_aside: list[Subscription] | None = field(default=None, init=False)
    # Condition of its first delivery; None: as soon as there is a consumer.
    start: Start | None = field(default=None, init=False)
    in_flight: int = field(default=0, init=False)
    dequeued: int = field(default=0, init=False)
    _consumer_counts: ConsumerCounts = field(default_factory=ConsumerCounts, init=False)
    _turn: int = field(default=0, init=False)
    _choices: Choices | None = field(default=None, init=False)  # set once a consumer has a selector
    # It keeps its assignment until fewer messages wait, even if it does not need it.
    _is_long: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        Window.__post_init__(self)
        self.owners = (self.owner,)
        # By ActiveMQ's names: ``ActiveMQ.DLQ`` and ``ActiveMQ.DLQ.…``.
        self.is_dead_letter_queue = f"{self.destination.name}.".startswith("ActiveMQ.DLQ.")
        self._reroute()

    def __repr__(self) -> str:
        return f"<Queue {self.destination}, {self.count} messages>"

    @property
    def count(self) -> int:
        """Number of all messages: ready, delivered and not acknowledged, and those that only the store holds."""
        return self.held + self.in_flight + self.unread + self.skipped.count

    # ---- consumers

    @property
    def users(self) -> list[Subscription]:
        """All consumers that take part, or will when the queue is resumed."""
        return self.consumers if self._set_aside is None else [*self.consumers, *self._set_aside]

    @property
    def is_paused(self) -> bool:
        return self._set_aside is not None

    def pause(self) -> None:
        """Stop deliveries, except to consumers with ``takes_paused``. Earlier deliveries may be acknowledged."""
        if self._set_aside is None:
            self._set_aside = self.consumers
            self._let_take_part([])

    def resume(self) -> None:
        """Resume deliveries; the caller dispatches."""
        aside, self._set_aside = self._set_aside, None
        if aside is not None:
            self._let_take_part([*self.consumers, *aside])

    def _let_take_part(self, consumers: list[Subscription]) -> None:
        """Replace the consumers that take part."""
        self.consumers = consumers
        self._consumer_counts = ConsumerCounts()
        for each in consumers:
            self._consumer_counts.joined(each)
        self._recall()
        self._reroute(newcomers=consumers)

    def open(self, subscription: Subscription, payer: Memory | None = None) -> None:
        """Let ``subscription`` take part from now on, or when the queue is resumed. ``payer``: where its memory counts;
        None: for its client."""
        counted = subscription.queues[self] = payer or subscription.outlet.holder
        counted.add(Kind.STATE, _link_bytes(subscription))
        if subscription.selector is not None:
            if self._choices is None:
                self._choices = Choices(self.share.memory)
            self._choices.joined(subscription.selector, counted)
        if self._set_aside is not None and not subscription.takes_paused:
            self._set_aside.append(subscription)
            return
        self.consumers.append(subscription)
        self._consumer_counts.joined(subscription)
        if subscription.selector not in self.skipped.refused_by:
            self._recall()
        if self.assignment is None or self._consumer_counts.exclusive:
            self._reroute(newcomers=(subscription,))
        else:
            self.assignment.join(subscription)

    def close(self, subscription: Subscription, came_back: deque[Entry] | None = None) -> Work[None]:
        counted = subscription.queues.pop(self, None)
        if counted is not None:
            counted.add(Kind.STATE, -_link_bytes(subscription))
            if subscription.selector is not None and self._choices is not None:
                self._choices.left(subscription.selector, counted)
        is_consumer = subscription in self.consumers
        if is_consumer:
            self.consumers.remove(subscription)
            self._consumer_counts.left(subscription)
        elif self._set_aside is not None and subscription in self._set_aside:
            self._set_aside.remove(subscription)
        if came_back is None:
            came_back = self._taken_from(subscription)
        if self.is_dropped:
            return self._settle_all(came_back)
        self._take_in_again(came_back)
        if is_consumer:
            is_open_to_all = subscription.is_exclusive or not self.consumers
            if subscription.is_exclusive:
                self._recall()  # other selectors did not test these messages
            if self.assignment is not None and not is_open_to_all and not self._consumer_counts.exclusive:
                freed = self.assignment.leave(subscription)
                self._is_long = self._gathers > GATHERED_MAX
                if not self._needs_assignment:
                    self._reroute()
                return freed
            freed = nothing() if self.assignment is None else self.assignment.end(subscription)
            self._reroute(newcomers=self.consumers if is_open_to_all else ())
            return freed
        return nothing()

    def browse(self, subscription: Subscription, pace: Pace) -> Work[Browse]:
        """Return a walk of ``subscription``, which takes no part in the queue, through all present messages: after the
        first step the queue may change."""
        count = self.count
        # Copies of lists, without work for each message, are made at once.
        entries: list[Iterable[Entry]] = [list(self.ready), list(self.returned.entries())]
        if self.assignment is not None:
            entries.extend(self.assignment.snapshot())
        for consumer in self.users:
            held = (consumer.unacked, consumer.enlisted)
            entries.extend(filter(self._is_of_this, list(each.values())) for each in held if each)
        behind = [
            not_placed(number << KEY_BITS, list(level.waiting), list(level.unplaced))
            for number, level in enumerate(self.levels.all)
        ]
        if pace.is_full(1 + count // COPIED):
            yield
        every = chain.from_iterable(entries), chain.from_iterable(behind)
        volatile, kept = yield from in_order_of_queue(*every, pace, is_prioritized=self.is_prioritized)
        browse = Browse(subscription, self.owner, self._settings, volatile, count, is_prioritized=self.is_prioritized)
        yield from browse.keep(kept, pace)
        return browse

    def _is_of_this(self, entry: Entry) -> bool:
        return entry.queue is self

    # ---- assignment

    def _reroute(self, newcomers: Iterable[Subscription] = ()) -> None:
        """Place the waiting messages again: the consumers changed, or the assignment is not needed any more."""
        assignment = self.assignment
        self._is_long = self._gathers > GATHERED_MAX
        if not self._needs_assignment:
            self._gather()
            if assignment is not None:
                assignment.end_groups()
            self.assignment = None
            return
        if assignment is None:
            levels = self.levels if self.is_prioritized else None
            floor = 0 if self.is_prioritized else self._level.position
            assignment = self.assignment = Assignment(self._settings, self.share, self.skipped, floor, levels)
        assignment.set_consumers(self.consumers, newcomers)

    @property
    def _needs_assignment(self) -> bool:
        return bool(
            self.is_prioritized
            or self.has_groups
            or self.skipped.count
            or not self._consumer_counts.are_alike
            or self._gathers > GATHERED_MAX
        )

    @property
    def _gathers(self) -> int:
        """Number of entries that ``_gather`` would sort."""
        return 0 if self.assignment is None else len(self.ready) + self.assignment.held

    def _gather(self) -> None:
        """Move all waiting entries back to ``ready`` and ``returned``."""
        assignment = self.assignment
        if assignment is None:
            return
        self.ready_weight += assignment.weight + assignment.unwanted_weight
        self.ready = deque(sorted([*self.ready, *assignment.clear()], key=_position))

    # ---- out

    def dispatch(self, now: int) -> list[Delivery]:
        """Return the next deliveries, in a bounded round (``has_more``: call again). ``now`` in milliseconds.

        A delivery to an AUTO subscription is settled with it; all others are in flight from now on.
        """
        if self.assignment is not None and self._is_long and not self._needs_assignment:
            self._reroute()
        if self.assignment is not None:
            return self._dispatch_by(self.assignment, now)
        deliveries: list[Delivery] = []
        consumers = self.consumers
        count = len(consumers)
        ready = self.ready
        returned = self.returned.heap
        turn = self._turn
        idle = 0
        round_bytes = 0
        in_flight = 0
        late = 0
        self.has_more = False
        writable: Outlet | None = None  # it has room; meanwhile only the memory that it holds can change this
        while (ready or returned) and idle < count:
            if turn >= count:
                turn = 0
            subscription = consumers[turn]
            outlet = subscription.outlet
            if subscription.credit <= 0 or (
                (outlet is not writable or subscription.holder.is_held_back) and not outlet.is_writable
            ):
                turn += 1
                idle += 1
                if idle == LOOKED_AT_MAX:
                    consumers = with_space(consumers, turn)
                    count = len(consumers)
                    turn = idle = 0
                continue
            writable = outlet
            if returned and not (ready and ready[0].position < returned[0][0]):
                entry = self.returned.take()
                weight = entry.weight
            else:
                entry = ready.popleft()
                weight = entry.weight
                self.ready_weight -= weight
            expiration = entry.message.expiration
            if expiration and expiration <= now:
                self.expired.append(entry)
                late += 1
                if late >= ROUND_MESSAGES:
                    self.has_more = True
                    break
                continue
            turn += 1
            idle = 0
            deliveries.append((subscription, subscription.hand(entry), entry))
            if subscription.is_auto:
                self.forget(entry)
            else:
                in_flight += 1
            round_bytes += weight
            if round_bytes >= ROUND_BYTES or len(deliveries) >= ROUND_MESSAGES:
                self.has_more = True
                break
        if consumers is self.consumers:
            self._turn = turn
        elif deliveries:
            self._turn = self.consumers.index(deliveries[-1][0]) + 1
        self.in_flight += in_flight
        self.dispatched += len(deliveries)
        return deliveries

    def _dispatch_by(self, assignment: Assignment, now: int) -> list[Delivery]:
        self.has_more = False
        if not self.consumers:
            return []
        # New and returned messages go there first, as many as a step allows.
        if self.returned.heap:
            run = self.returned.take_run(TAKEN_MAX)
            assignment.take_in(run, sum(map(_weight, run)))
        ready = self.ready
        if ready:
            piece = [ready.popleft() for _ in range(min(len(ready), TAKEN_MAX))]
            piece.sort(key=_position)
            weight = sum(map(_weight, piece)) if ready else self.ready_weight
            self.ready_weight -= weight
            assignment.take_in(deque(piece), weight)
        if self.returned.heap or ready:
            self.has_more = True
            return []
        deliveries, expired, self.has_more = assignment.dispatch(now, self.dequeued, ROUND_MESSAGES, ROUND_BYTES)
        self.expired += expired
        for subscription, _, entry in deliveries:
            if subscription.is_auto:
                self.forget(entry)
            else:
                self.in_flight += 1
        self.dispatched += len(deliveries)
        return deliveries

    def settle(self, entry: Entry) -> None:
        self.in_flight -= 1
        self.dequeued += 1
        if self.assignment is not None:
            self.assignment.gone(entry)
        self.share.give(entry)

    def forget(self, entry: Entry) -> None:
        """Remove ``entry``, which is neither ready nor in flight."""
        self.in_flight += 1  # because ``settle`` subtracts it
        self.settle(entry)

    def give_back(self, entry: Entry, *, is_seen: bool = True) -> None:
        if self.is_dropped:
            self.settle(entry)
            return
        self.in_flight -= 1
        if self.assignment is not None:
            self.assignment.gone(entry)
        self.mark_returned(entry, is_seen=is_seen)
        self.returned.add(entry)

    def undeliver(self, entry: Entry) -> None:
        if self.is_dropped:
            return
        self.dequeued -= 1
        self.in_flight += 1
        self.share.take(entry)
        self.give_back(entry, is_seen=False)

    def mark_returned(self, entry: Entry, *, is_seen: bool) -> None:
        """Do the first half of ``give_back``, which may be long before the second (``close``)."""
        # prove: redeliveries-end " and entry.redeliveries < REDELIVERIES_MAX"
        if is_seen and entry.redeliveries < REDELIVERIES_MAX:
            entry.redeliveries += 1
        expiration = entry.message.expiration
        if expiration and (not self.expiring_at or expiration < self.expiring_at):
            self.expiring_at = expiration

    def comes_back(self, entry: Entry, *, is_seen: bool) -> None:
        self.mark_returned(entry, is_seen=is_seen)
        if self.assignment is not None:
            self.assignment.comes_back(entry)

    def _taken_from(self, subscription: Subscription) -> deque[Entry]:
        unacked = subscription.unacked
        mine = [entry for entry in unacked.values() if entry.queue is self]
        subscription.unacked = {tag: entry for tag, entry in unacked.items() if entry.queue is not self}
        for entry in mine:
            subscription.let_go(entry)
            self.comes_back(entry, is_seen=True)
        return deque(sorted(mine, key=_position))

    def _take_in_again(self, run: deque[Entry]) -> None:
        """Do the second half of ``give_back`` for many entries: all of them return at once."""
        self.in_flight -= len(run)
        if self.assignment is not None:
            self.assignment.all_gone(run)
        self.returned.add_run(run)

    def _settle_all(self, entries: deque[Entry]) -> Work[None]:
        pace = Pace()
        while entries:
            self.settle(entries.pop())
            if pace.is_full():
                yield

    def drop(self) -> Work[None]:
        """Delete the queue. Its consumers are closed already, or see an empty queue. The steps of the returned work
        free its memory."""
        entries = [*self.expired, *self.ready, *self.returned.entries(), *self.levels.take_all()]
        if self.assignment is not None:
            entries += self.assignment.clear()
            self.assignment.end_groups()
        self.expired.clear()
        self.ready.clear()
        self.ready_weight = 0
        self.returned.keep(())
        self.skipped.clear()
        self._delivered_before.clear()
        self.is_behind = self.is_paged = False
        self.is_dropped = True
        self.unread = 0
        return self._forget_all(entries)

    def _forget_all(self, entries: list[Entry]) -> Work[None]:
        while entries:
            for entry in entries[-ITEMS:]:
                self.forget(entry)
            del entries[-ITEMS:]
            yield
