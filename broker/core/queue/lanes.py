"""Lanes: which consumer may take which message when the consumers of a queue differ.

A queue needs no lanes if its consumers have no selectors, have the same priority and are not exclusive, and its
messages have no groups: any consumer with credit takes the next message. Otherwise each waiting message is put into a
*lane*: a queue of messages that the same consumers may take.

    consumers   A: colour = 'red'    B: all    C: colour = 'red', but exclusive -> the only one
    lanes       (A, B)  1 4 5        (B)  2 3          messages that no consumer takes are in no lane

So a slow consumer does not delay the others, and no selector tests a message twice before the consumers change. Lanes
are served in the order of their first messages, so each consumer receives its messages in the queue's order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import chain, compress, islice
from operator import attrgetter, itemgetter, not_

from tandemmq.broker.core.charging import takes
from tandemmq.broker.core.delivery import Entry, Selector, Subscription
from tandemmq.broker.core.queue.backlog import NOTHING_KNOWN, Backlog, Known
from tandemmq.broker.core.queue.groups import Groups
from tandemmq.broker.core.queue.ordering import PIECE_MAX, take_out
from tandemmq.broker.core.slices import Pace, Work

_entry = itemgetter(1)
_priority = attrgetter("priority")
# After this number of consumers without room, all consumers are filtered for room at once.
LOOKED_AT_MAX = 32
# Maximum length of one heap of a lane, so that a search through it is short.
LATE_MAX = PIECE_MAX
# Number of lanes beyond which the empty ones are removed. The others are bounded by the waiting messages.
_LANES = 64


class Lane:
    """Messages that ``takers`` may take, by position. ``tiers``: the consumers by priority, the highest first."""

    __slots__ = ("_late", "_narrowed", "_turns", "_waiting", "takers", "tiers")

    def __init__(self, takers: Sequence[Subscription]) -> None:
        self._waiting: deque[Entry] = deque()
        # Heaps, none of them empty, of entries that arrived after entries of a later position.
        self._late: list[list[tuple[int, Entry]]] = []
        self.takers = dict.fromkeys(takers)
        by_priority: dict[int, list[Subscription]] = {}
        for taker in takers:
            by_priority.setdefault(taker.priority, []).append(taker)
        self.tiers = [by_priority[priority] for priority in sorted(by_priority, reverse=True)]
        self._turns = [0] * len(self.tiers)
        # In this round, by tier: the consumers with room, if there are very many.
        self._narrowed: dict[int, list[Subscription]] = {}

    def __len__(self) -> int:
        return len(self._waiting) + sum(map(len, self._late))

    @property
    def first(self) -> Entry:
        """Next entry; there must be one."""
        waiting = self._waiting
        late = self._late
        if late:
            position, entry = (late[0] if len(late) == 1 else min(late))[0]
            if not waiting or position < waiting[0].position:
                return entry
        return waiting[0]

    def push(self, entry: Entry) -> None:
        """Add ``entry``."""
        waiting = self._waiting
        if not waiting or waiting[-1].position < entry.position:
            waiting.append(entry)
            return
        late = self._late
        if late and len(late[-1]) < LATE_MAX:
            heappush(late[-1], (entry.position, entry))
        else:
            late.append([(entry.position, entry)])

    def pop(self) -> None:
        """Remove ``first``."""
        waiting = self._waiting
        late = self._late
        if late:
            heap = late[0] if len(late) == 1 else min(late)
            if not waiting or heap[0][0] < waiting[0].position:
                heappop(heap)
                if not heap:
                    late.remove(heap)
                return
        waiting.popleft()

    def entries(self) -> Iterator[Entry]:
        """Iterate over all entries."""
        return chain(self._waiting, map(_entry, chain.from_iterable(self._late)))

    def take_out(self, is_chosen: Callable[[Entry], bool]) -> Iterator[tuple[int, list[Entry]]]:
        """Remove the chosen entries, piece by piece; between two pieces the lane may change. Yield the number of
        examined entries and the removed ones of each piece."""
        waiting = self._waiting
        for piece in take_out(waiting, is_chosen):
            yield piece
            if waiting is not self._waiting:  # its entries wait elsewhere now
                break
        for heap in list(self._late):
            if any(heap is each for each in self._late):
                are_chosen = list(map(is_chosen, map(_entry, heap)))
                found = list(compress(map(_entry, heap), are_chosen))
                if found:
                    heap[:] = compress(heap, map(not_, are_chosen))
                    heapify(heap)
                if not heap:
                    self._late = [each for each in self._late if each]
                yield len(are_chosen), found

    def take_runs(self) -> list[deque[Entry]]:
        """Remove all entries and return them as sorted runs."""
        runs = [self._waiting, *(deque(map(_entry, sorted(heap))) for heap in self._late)]
        self._waiting = deque()
        self._late = []
        return runs

    def count_before(self, position: int) -> int:
        return sum(entry.position < position for entry in self.entries())

    def add(self, taker: Subscription) -> None:
        """Add a taker after the others."""
        self.takers[taker] = None
        tier = next((each for each in self.tiers if each[0].priority == taker.priority), None)
        if tier is None:
            self.tiers.append([taker])
            self.tiers.sort(key=lambda each: -each[0].priority)
        else:
            tier.append(taker)
        self._renumber()

    def remove(self, taker: Subscription) -> None:
        """Remove a taker that is not the last."""
        del self.takers[taker]
        tier = next(each for each in self.tiers if each[0].priority == taker.priority)
        tier.remove(taker)
        if not tier:
            self.tiers.remove(tier)
        self._renumber()

    def _renumber(self) -> None:
        self._turns = [0] * len(self.tiers)
        self._narrowed.clear()

    def begin_round(self) -> None:
        """Compute again which consumers have room."""
        for number, narrowed in self._narrowed.items():
            turn = self._turns[number]
            self._turns[number] = self.tiers[number].index(narrowed[turn - 1]) + 1 if narrowed else 0
        self._narrowed.clear()

    def taker(self, held_back: Collection[Subscription]) -> Subscription | None:
        """Return the consumer for the next message: of those with room, the ones of the highest priority in turn. None:
        no consumer."""
        for number, tier in enumerate(self.tiers):
            if self._narrowed:
                tier = self._narrowed.get(number, tier)
            while True:
                count = len(tier)
                turn = self._turns[number]
                for step in range(turn, min(turn + count, turn + LOOKED_AT_MAX)):
                    subscription = tier[step % count]
                    if subscription.credit > 0 and subscription.outlet.is_writable and subscription not in held_back:
                        self._turns[number] = (step + 1) % count
                        return subscription
                if count <= LOOKED_AT_MAX:
                    break
                tier = self._narrowed[number] = [each for each in with_space(tier, turn) if each not in held_back]
                self._turns[number] = 0
        return None

    @property
    def has_space(self) -> bool:
        """True if a consumer might take the next message."""
        return any(each.credit > 0 and each.outlet.is_writable for each in self.takers)


@dataclass(slots=True, eq=False, repr=False)
class Lanes:
    """Lanes of one queue for ``consumers``, those that receive messages now."""

    groups: Groups = field(default_factory=Groups, init=False)
    backlog: Backlog = field(default_factory=Backlog, init=False)  # entries to be placed
    consumers: list[Subscription] = field(default_factory=list, init=False)
    # A choice is the set of consumers with the same selector, which tests a message once for all of them. By its
    # number, in increasing order.
    _choices: dict[int, tuple[Selector | None, set[Subscription]]] = field(default_factory=dict, init=False)
    _numbers: dict[Selector | None, int] = field(default_factory=dict, init=False)
    _next: int = field(default=0, init=False)
    expensive: int = field(default=0, init=False)  # choices with an expensive selector
    # By the numbers of the choices that match.
    _lanes: dict[tuple[int, ...], Lane] = field(default_factory=dict, init=False)
    _lanes_max: int = field(default=_LANES, init=False)
    _by_owner: dict[Subscription, Lane] = field(default_factory=dict, init=False)

    def set_consumers(self, consumers: Sequence[Subscription]) -> None:
        """Replace the consumers. First move the waiting entries to the backlog."""
        self._empty(self._by_owner.values(), NOTHING_KNOWN._replace(is_grouped=True))
        self._empty(self._lanes.values(), NOTHING_KNOWN)
        self.groups.forget_best()
        master = exclusive(consumers)
        self.consumers = list(consumers) if master is None else [master]
        self._choices = {}
        self._numbers = {}
        self.expensive = 0
        self._lanes = {}
        self._lanes_max = _LANES
        self._by_owner = {}
        for consumer in self.consumers:
            self._choose(consumer)

    def _empty(self, lanes: Iterable[Lane], known: Known) -> None:
        """Move the waiting entries of ``lanes`` to the backlog."""
        for lane in lanes:
            for run in lane.take_runs():
                self.backlog.add(run, known)

    def _choose(self, consumer: Subscription) -> tuple[int, bool]:
        """Return the number of the consumer's choice, and whether it is new."""
        selector = consumer.selector
        number = self._numbers.get(selector)
        if number is not None:
            self._choices[number][1].add(consumer)
            return number, False
        number = self._numbers[selector] = self._next
        self._next += 1
        self._choices[number] = (selector, {consumer})
        self.expensive += selector is not None and not selector.is_cheap
        return number, True

    @property
    def choices(self) -> int:
        """Number of choices: the maximum number of selectors that test a message."""
        return len(self._choices)

    @property
    def selectors(self) -> Collection[Selector | None]:
        """Selectors that test each message that is placed."""
        return self._numbers.keys()

    @property
    def requested(self) -> int:
        """All choices below this number have tested all waiting messages, or are to test them."""
        return self._next

    def join(self, consumer: Subscription) -> bool:
        """Add a consumer. Only if no consumer is exclusive. Return whether its selector must test the waiting messages,
        which are then in the backlog."""
        self.consumers.append(consumer)
        self.groups.forget_best()
        number, is_new = self._choose(consumer)
        if not is_new:
            for each in self._lanes_of(number):
                each.add(consumer)
            return False
        for key, lane in self._lanes.items():
            self._empty((lane,), Known(key, number, is_grouped=False))
        self._lanes = {}
        return True

    def leave(self, consumer: Subscription) -> Work[None]:
        """Remove a consumer; its messages are then in the backlog. Only if no consumer is exclusive. Return the work
        that frees its groups (``Groups.leave``)."""
        self.consumers.remove(consumer)
        owned = self._by_owner.pop(consumer, None)
        orphans = () if owned is None else tuple(owned.entries())
        if owned is not None:
            self._empty((owned,), NOTHING_KNOWN)
        freed = self.groups.leave(consumer, orphans)
        number = self._numbers[consumer.selector]
        takers = self._choices[number][1]
        takers.remove(consumer)
        if takers:
            for each in self._lanes_of(number):
                each.remove(consumer)
            return freed
        del self._choices[number]
        del self._numbers[consumer.selector]
        self.expensive -= consumer.selector is not None and not consumer.selector.is_cheap
        for key in [key for key in self._lanes if number in key]:
            others = tuple(other for other in key if other != number)
            self._empty((self._lanes.pop(key),), Known(others, self._next, is_grouped=False))
        return freed

    def _lanes_of(self, number: int) -> list[Lane]:
        """Return the lanes of the consumers of choice ``number``."""
        return [lane for key, lane in self._lanes.items() if number in key]

    def waiting(self) -> list[Lane]:
        """Return the lanes that are not empty."""
        return [lane for lane in (*self._lanes.values(), *self._by_owner.values()) if lane]

    def test(self, entry: Entry, known: Known, count_max: int, pace: Pace) -> Known:
        """Test ``entry`` with the next choices, at least one and at most ``count_max``, until the time of ``pace``'s
        step is over. Return the facts that are known about it then. For very many or expensive choices, because
        ``place`` tests all remaining ones at once."""
        below = known.below
        numbers = list(islice((number for number in self._choices if number >= below), count_max + 1))
        rest = numbers.pop() if len(numbers) > count_max else self._next
        message = entry.message
        wanted = []
        is_late = False
        for number in numbers:
            if is_late:
                rest = number
                break
            selector, takers = self._choices[number]
            if selector is None or selector.is_cheap:
                if selector is None or selector.matches(message):
                    wanted.append(number)
                continue
            if takes(selector, message, next(iter(takers)).outlet.holder):
                wanted.append(number)
            is_late = pace.is_late
        return known._replace(key=(*known.key, *wanted), below=rest)

    def place(self, entry: Entry, known: Known = NOTHING_KNOWN) -> bool:
        """Put ``entry`` into its lane. False: no consumer takes it, and the caller decides where it goes."""
        message = entry.message
        if known.is_grouped and message.group_id is not None:
            self.groups.done(message.group_id)
        choices = self._choices
        if known.below == 0:
            matching = tuple(
                number for number, (selector, _) in choices.items() if selector is None or selector.matches(message)
            )
        elif known.below == self._next:
            matching = tuple(filter(choices.__contains__, known.key))
        else:
            below = known.below
            matching = tuple(
                chain(
                    filter(choices.__contains__, known.key),
                    (
                        number
                        for number, (selector, _) in choices.items()
                        if number >= below and (selector is None or selector.matches(message))
                    ),
                )
            )
        if not matching:
            return False
        lane = self._lanes.get(matching)
        if lane is None:
            lane = self._new_lane(matching)
        if message.group_id is not None:
            owner = self.groups.owner(message.group_id, message.group_sequence, lane.takers, lane.tiers[0])
            lane = self._by_owner.get(owner) or self._by_owner.setdefault(owner, Lane((owner,)))
        lane.push(entry)
        return True

    def _new_lane(self, matching: tuple[int, ...]) -> Lane:
        lanes = self._lanes
        if len(lanes) >= self._lanes_max:
            lanes = self._lanes = {key: lane for key, lane in lanes.items() if lane}
            self._lanes_max = max(_LANES, 2 * len(lanes))
        lane = lanes[matching] = Lane(self._takers(matching))
        return lane

    def _takers(self, matching: tuple[int, ...]) -> list[Subscription]:
        takers = {taker for number in matching for taker in self._choices[number][1]}
        return [each for each in self.consumers if each in takers]

    def entries(self) -> list[Entry]:
        """Return all waiting entries, in any order."""
        return list(chain.from_iterable(self.snapshot()))

    def snapshot(self) -> list[Iterable[Entry]]:
        """Return the entries as ``entries`` does, in parts that stay as they are now. A part's messages are read only
        when the caller iterates over it."""
        parts: list[Iterable[Entry]] = [list(lane.entries()) for lane in self.waiting()]
        parts += (list(run) for run, _ in self.backlog.runs())
        return parts

    def clear(self) -> None:
        """Remove all waiting entries, also those that wait for the owner of their group."""
        grouped = [lane.entries() for lane in self._by_owner.values()]
        grouped += [iter(run) for run, known in self.backlog.runs() if known.is_grouped]
        for entry in chain.from_iterable(grouped) if len(self.groups) else ():
            if entry.message.group_id is not None:
                self.groups.done(entry.message.group_id)
        self.backlog.clear()
        for lane in self.waiting():
            lane.take_runs()


def exclusive(consumers: Iterable[Subscription]) -> Subscription | None:
    """Return the consumer that receives all messages: the first exclusive one of the highest priority (ActiveMQ's
    Queue.addSubscription)."""
    return max((each for each in consumers if each.is_exclusive), key=_priority, default=None)


def with_space(consumers: Sequence[Subscription], turn: int) -> list[Subscription]:
    """Return the consumers that may receive a message now, starting at the present turn."""
    return [each for each in chain(consumers[turn:], consumers[:turn]) if each.credit > 0 and each.outlet.is_writable]
