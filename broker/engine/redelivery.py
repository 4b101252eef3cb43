"""Count how often each message came back because its consumer was lost, and make a dead letter of it in the end.

    came back     1, 2 ... maximum_redeliveries - 1    delivered again, with all others
                  maximum_redeliveries                 delivered again alone: it is a suspect
                  once more, when it was alone         a dead letter

A lost consumer had many messages, and at most one of them caused the loss. So during the last delivery of a suspect, no
other suspect of its queue is delivered: a harmless message is acknowledged then. Messages that a client returns itself
(it unsubscribes or disconnects) are counted, and never become dead letters.

A count is written when its message comes back, and before a suspect is delivered: so the next master knows it. No count
is written for a message that never comes back. Exception: a new master counts the first messages of each queue before
it delivers them, because one of them may have caused the end of the former master.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice

from tandemmq.broker.core.delivery import REDELIVERIES_MAX, Entry, QueueBase
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.engine.dead_letters import DeadLetters
from tandemmq.broker.engine.part import Part, Shared, Timer
from tandemmq.broker.engine.ports import Callback
from tandemmq.store.operations import CountDeliveries, Page

# Interval of the checks whether the suspect of a queue was acknowledged and the next one can follow; queues per check.
POLL_SECONDS = 0.02
QUEUES_AT_ONCE = 32
# Maximum time for which the next suspect of a queue waits until the consumer acknowledges the one before.
ALONE_MS_MAX = 10_000
# Maximum number of suspects that are remembered as delivered alone.
RELEASED_MAX = 10_000
# Limits of the counts that are written for one subscription that ends: messages, and their bytes. Further counts are
# known to this master only.
COUNTED_MAX = 1_000
COUNTED_BYTES_MAX = 8 * 1024 * 1024
# Limit for all subscriptions that end within a second, so that a planned handover does not wait for the counts.
COUNTED_ALL_BYTES_MAX = 16 * 1024 * 1024
SECOND_MS = 1_000
# Limits of one operation of the store, which is one write.
COUNTED_AT_ONCE = 128
COUNTED_AT_ONCE_BYTES = 1024 * 1024
# Messages that a new master counts before it delivers them: of one queue, and of all together.
FOUND_MAX = 1_000
FOUND_ALL_MAX = 10_000
FOUND_ALL_BYTES_MAX = 16 * 1024 * 1024

Key = tuple[QueueBase, int | str]


class Suspects(Part):
    """Counts messages that come back, and delivers suspects one after the other. Runs on the loop."""

    def __init__(self, shared: Shared, dead_letters: DeadLetters, dispatch: Callable[[QueueBase], None]) -> None:
        super().__init__(shared)
        self._dead_letters = dead_letters
        self._dispatch = dispatch
        self._waiting: dict[QueueBase, deque[Entry]] = {}
        self._out: dict[QueueBase, tuple[Entry, int]] = {}  # the suspect delivered alone, and the end of its time
        self._released: dict[Key, None] = {}  # the oldest first
        self._poll_timer = Timer(shared.loop.call_later, self._poll)
        self._counted_bytes = self._counted_since = 0
        self._found: dict[int, int] = {}  # by owner: number of messages counted before delivery
        self._found_count = self._found_bytes = 0

    # ---- messages that come back

    def comes_back(self, queue: QueueBase, entry: Entry, *, is_seen: bool, is_lost: bool) -> bool:
        """Handle a delivery of a subscription that ends. Return whether the message goes back to its queue."""
        most = self._most(queue)
        if not is_seen and _key(queue, entry) in self._released:  # prove: unsent-suspect-comes-again
            self.count(queue, (entry,))  # without the delivery that was counted in advance
            self._set_aside(queue, entry)
            return False
        if not is_seen or most is None:
            queue.comes_back(entry, is_seen=is_seen)
            return True
        if not is_lost:
            queue.comes_back(entry, is_seen=entry.redeliveries < most)
            return True
        if _key(queue, entry) in self._released:  # prove: only-what-was-alone-dies
            self._bury(queue, entry)
            return False
        if entry.redeliveries + 1 < most:
            queue.comes_back(entry, is_seen=True)
            return True
        entry.redeliveries = most
        self._set_aside(queue, entry)
        return False

    def redelivered(self, queue: QueueBase, entries: Sequence[Entry]) -> None:
        """Count messages that a client delivered to its application again. While it is connected,
        it decides when a message becomes a dead letter."""
        most = self._most(queue) or REDELIVERIES_MAX
        for entry in entries:
            if entry.redeliveries < most:
                entry.redeliveries += 1
        self.count(queue, entries)

    def count(self, queue: QueueBase, entries: Iterable[Entry]) -> None:
        """Write how often those messages came back, if they are stored."""
        if not queue.owner:
            return
        now = self._clock()
        if now - self._counted_since >= SECOND_MS:
            self._counted_bytes, self._counted_since = 0, now
        counts: dict[int, int] = {}
        number = total = size = 0
        for entry in entries:
            if not entry.order_key or not entry.redeliveries:
                continue
            number += 1
            total += entry.size
            is_much = total > COUNTED_BYTES_MAX or self._counted_bytes > COUNTED_ALL_BYTES_MAX
            if number > COUNTED_MAX or (is_much and number > 1):
                break
            self._counted_bytes += entry.size
            counts[entry.order_key] = entry.redeliveries
            size += entry.size
            if len(counts) >= COUNTED_AT_ONCE or size >= COUNTED_AT_ONCE_BYTES:
                self._append(CountDeliveries(queue.owner, counts))
                counts, size = {}, 0
        if counts:
            self._append(CountDeliveries(queue.owner, counts))

    def _most(self, queue: QueueBase) -> int | None:
        """Return the number of redeliveries, at least 1, that makes a message a suspect. None: it never is one."""
        most = self._policies.of(queue.destination).redelivery.maximum_redeliveries
        return None if most is None or queue.is_dead_letter_queue else min(max(most, 1), REDELIVERIES_MAX - 1)

    def _bury(self, queue: QueueBase, entry: Entry) -> None:
        self._released.pop(_key(queue, entry), None)
        queue.settle(entry)
        times = entry.redeliveries + 1
        cause = f"delivered {times} times to consumers that were lost before they acknowledged it"
        self._dead_letters.send_to_dlq(queue, entry, cause)

    # ---- deliveries of suspects

    def _set_aside(self, queue: QueueBase, entry: Entry) -> None:
        """Keep a suspect in flight, without a consumer, until its turn comes."""
        self._waiting.setdefault(queue, deque()).append(entry)
        self._poll_timer.set(POLL_SECONDS)

    def _poll(self) -> None:
        """Deliver the next suspects: the queues in turn, QUEUES_AT_ONCE at a time."""
        for queue in list(islice(self._waiting, QUEUES_AT_ONCE)):
            entries = self._waiting.pop(queue)
            if queue.is_dropped:
                self._out.pop(queue, None)
                for entry in entries:
                    queue.settle(entry)
                continue
            if queue.consumers and not self._is_one_out(queue):
                self._release(queue, entries.popleft())
            if entries:
                self._waiting[queue] = entries  # after the others
        for queue in list(islice(self._out, QUEUES_AT_ONCE)):
            if queue not in self._waiting:
                self._is_one_out(queue)
        if self._waiting or self._out:
            self._poll_timer.set(POLL_SECONDS)

    def _is_one_out(self, queue: QueueBase) -> bool:
        entry, until = self._out.get(queue, (None, 0))
        if entry is not None and self._clock() < until:
            for each in queue.consumers:
                if any(entry is held for held in (*each.unacked.values(), *each.enlisted.values())):
                    return True
        self._out.pop(queue, None)
        return False

    def _release(self, queue: QueueBase, entry: Entry) -> None:
        self._out[queue] = entry, self._clock() + ALONE_MS_MAX
        self._released[_key(queue, entry)] = None
        if len(self._released) > RELEASED_MAX:
            del self._released[next(iter(self._released))]

        def give_out(_: object = None) -> None:
            queue.give_back(entry, is_seen=False)
            self._dispatch(queue)

        if entry.order_key and queue.owner and not queue.is_dropped:
            # The count is written first: if this master ends because of it, the next one makes it a dead letter.
            counts = {entry.order_key: entry.redeliveries + 1}
            self._append(
                CountDeliveries(queue.owner, counts, Callback(None, give_out))
            )  # prove: suspect-is-counted-first
        else:
            give_out()

    # ---- messages that a new master finds

    def read(self, queue: Queue, page: Page, then: Callable[[], None]) -> None:
        """Count the messages of a page before their delivery. Call ``then``, which takes in the page: at once, or when
        the counts are written."""
        counts = {} if queue.is_rereading else self._to_count(queue, page)
        if not counts:
            then()
            return
        # Messages that become durable until then are only counted by the queue (window.py, rule 3), and are not in the
        # page: so it is not the last page, and the queue continues to read.
        page.is_end = False  # prove: late-page-has-no-end
        self._append(CountDeliveries(page.owner, counts, Callback(None, lambda _: then())))

    def _to_count(self, queue: Queue, page: Page) -> dict[int, int]:
        left = FOUND_MAX - self._found.get(page.owner, 0)
        most = self._most(queue)
        if left <= 0 or self._found_count >= FOUND_ALL_MAX or most is None:
            return {}
        counts: dict[int, int] = {}
        for paged in page.messages[:left]:
            times = paged.message.redelivery_counter
            if not self._store.is_of_former_term(page.owner, paged.order_key):
                if page.priority is None:
                    left = 0  # all that follow are new, too
                    break
                continue
            if times >= most or self._found_bytes + paged.size > FOUND_ALL_BYTES_MAX:
                continue
            self._found_bytes += paged.size
            counts[paged.order_key] = times + 1
        self._found[page.owner] = FOUND_MAX if not left else FOUND_MAX - left + len(counts)
        self._found_count += len(counts)
        return counts

    def look_through(self, queue: Queue) -> None:
        """Take out of the queue the messages that had come back too often before the queue read them."""
        most = self._most(queue)
        if most is None:
            return
        found: list[Entry] = []
        for _, entries in queue.take_out(partial(_came_back, most)):
            found += entries
        queue.in_flight += len(found)
        for entry in found:
            if entry.redeliveries > most:
                entry.redeliveries -= 1  # the last time was counted before
                self._bury(queue, entry)
            else:
                self._set_aside(queue, entry)


def _came_back(most: int, entry: Entry) -> bool:
    return entry.redeliveries >= most and entry.order_key > 0


def _key(queue: QueueBase, entry: Entry) -> Key:
    return queue, entry.order_key or entry.message.message_id
