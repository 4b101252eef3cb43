"""Scheduled messages: stored like any other, and sent when they are due.

A pending message is in a queue of the store that no client sees (``core.pending``). Memory holds only its due time and
order key, so that a million of them cost little; the message itself is read back when it is due. Then one Atomic stores
it in its destination, removes the pending copy and, if it repeats, stores the next one: at any crash all of that
happened or none of it. Nothing is sent twice, and nothing is lost.

After a promotion the times are read from the store, page by page; messages that are scheduled meanwhile are added. So a
large number of pending messages does not delay the take-over. It delays only the messages that are already due.

All methods are called on the event loop, and none waits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sortedcontainers import SortedList

from tandemmq import log_events
from tandemmq.broker.core import names
from tandemmq.broker.core.client import Client
from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.operations import encode_payload
from tandemmq.broker.core.scheduling.schedule import JOB_ID, PROPERTIES, REPEAT_MAX, Schedule
from tandemmq.broker.core.scheduling.scheduled_message import (
    PENDING,
    Due,
    again,
    due_of,
    occurrence,
    pending,
    run_of,
    shown,
)
from tandemmq.broker.core.slices import Pace, Work, begin
from tandemmq.broker.engine.part import Loop, Timer
from tandemmq.broker.engine.ports import Callback, DueSender
from tandemmq.limited_log import LimitedLog
from tandemmq.store.operations import AddMessage, Atomic, Operation, OrderKey, Page, PagedMessage, RemoveMessage
from tandemmq.store.records.commands import encode_remove
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.records.message_ids import broker_producer

log = logging.getLogger(__name__)

# Interval of ``tick``.
TICK_SECONDS = 1.0
PENDING_MESSAGES_MAX = 1_000_000
# Maximum number of messages that are read back and sent at the same time: with one sync.
FIRING_MAX = 500
# Cost of sending one, in items of a step.
_FIRED = 8
PAGE_MESSAGES = 500
PAGE_BYTES = 2 << 20
# Delay before a message that could not be sent is tried again, for example if its destination cannot be created.
PUT_OFF_MS = 60_000
# Delay of a message whose user is not known yet.
SOON_MS = 200
# A refused message that has repetitions left is tried again for this time before its schedule ends: the right or the
# user may be missing for a short time only, for example while a file is changed in two steps.
REFUSED_MS = 3_600_000
# Characters of an ended schedule in the reason.
SHOWN_CHARACTERS_MAX = 300
# Maximum number of waiting requests to ActiveMQ.Scheduler.Management.
REQUESTS_MAX = 16

MANAGEMENT = "ActiveMQ.Scheduler.Management"
ACTION = "AMQ_SCHEDULER_ACTION"
START_TIME, END_TIME = "ACTION_START_TIME", "ACTION_END_TIME"
_MARK = b"AMQ_SCHEDULED_"


@dataclass(frozen=True, slots=True)
class _Request:
    """A management request."""

    is_removal: bool
    job: str | None
    start: int | None
    end: int | None
    reply_to: Destination | None
    user: str | None  # owner of the messages that it covers; None: all users
    asker: Client

    def covers(self, due: Due) -> bool:
        if self.user is not None and due.user != self.user:
            return False
        if self.job is not None and due.job != self.job:
            return False
        return self.start is None or self.end is None or self.start <= due.time <= self.end


class Scheduler:
    """Keeps scheduled messages, and sends them when they are due. ``owner`` is the id of the queue PENDING in the
    store, ``count`` the number of its messages at promotion, ``epoch`` makes ids unique forever."""

    def __init__(
        self,
        append: Callable[[Operation], None],
        sender: DueSender,
        owner: int,
        count: int,
        epoch: int,
        loop: Loop,
        *,
        repeat_max: int = REPEAT_MAX,
    ) -> None:
        self.owner = owner
        self.sent = 0
        self._start = loop.start
        self._append = append
        self._due_timer = Timer(loop.call_later, lambda: self.tick(self._clock()))
        self._sender = sender
        self._clock = loop.clock
        self._since = loop.clock()
        self._zone = loop.zone
        self._repeat_max = repeat_max
        self._producer = broker_producer(f"ID:scheduler-{epoch}")
        self._sequence = 0
        self._dues: SortedList[tuple[int, OrderKey]] = SortedList()
        self._firing = 0  # number of messages that are being sent
        # Time of the next attempt for messages that could not be sent, in place of their due time.
        self._put_off: dict[OrderKey, int] = {}
        self._limited = LimitedLog(log)
        self._requests: deque[_Request] = deque()
        self._is_request_begun = False
        self._unread = count
        self._is_begun = self.is_loaded = count == 0
        # First message that ``durable`` reported: it and later ones must not be read as well.
        self._first_new: OrderKey | None = None

    @property
    def count(self) -> int:
        """Number of scheduled messages; an estimate while they are being read."""
        return len(self._dues) + self._firing + self._unread

    @property
    def next_due(self) -> int | None:
        """Time when ``tick`` has something to do next; None: no scheduled message is known, or due messages are being
        sent, and ``tick`` follows by itself."""
        return self._dues[0][0] if self._dues and not self._firing else None

    # ---- in

    def take(self, message: Message, user: str | None = None) -> Message | None:
        """Return the message to store for ``owner`` in place of ``message``, if that is scheduled; None: it is not.
        ``user``: its owner.

        It is pending once ``durable`` says so. Raises a ClientError, not fatal, for a schedule that cannot be kept.
        """
        if not may_be_scheduled(message):
            return None
        schedule = Schedule.of(message.properties, self._repeat_max)
        if schedule is None:
            return None
        schedule.check_copies(len(names.split(message.destination)), self._repeat_max)
        if self.count >= PENDING_MESSAGES_MAX:
            raise refusal(
                f"{self.count} scheduled messages are waiting already",
                "No more are accepted until some are sent or removed.",
                ErrorKind.RESOURCE,
            )
        time = schedule.first(self._clock(), self._zone)
        return pending(message, Due(time, schedule.repeat, message.message_id, user))

    def manage(self, message: Message, user: str | None, asker: Client) -> None:
        """Carry out the request of a message to MANAGEMENT for the messages of that user (None: of all users). The
        request goes to no consumer; ``asker`` sends the requested copies.

        BROWSE sends a copy of each pending message to its reply-to, REMOVE (of the job that the property scheduledJobId
        names) and REMOVEALL remove; the properties ACTION_START_TIME and ACTION_END_TIME limit it to messages by their
        times.
        """
        properties = message.properties or {}
        action = properties.get(ACTION)
        job = properties.get(JOB_ID)
        understood = {"BROWSE": message.reply_to is not None, "REMOVE": isinstance(job, str), "REMOVEALL": True}
        if not understood.get(str(action)):
            raise refusal(
                f"{MANAGEMENT} does not understand {str(action)[:40]!r}",
                f"{ACTION} is BROWSE (with a reply-to), REMOVE (with {JOB_ID}) or REMOVEALL.",
            )
        if len(self._requests) >= REQUESTS_MAX:
            raise refusal(f"{REQUESTS_MAX} requests to {MANAGEMENT} wait", "Send it again later.", ErrorKind.RESOURCE)
        self._requests.append(
            _Request(
                is_removal=action != "BROWSE",
                job=str(job) if action == "REMOVE" else None,
                start=_time(START_TIME, properties.get(START_TIME)),
                end=_time(END_TIME, properties.get(END_TIME)),
                reply_to=message.reply_to,
                user=user,
                asker=asker,
            )
        )
        self._begin_request()

    # ---- time

    def tick(self, now: int) -> None:
        """Send the messages that are due at ``now``: FIRING_MAX at a time, the earliest first."""
        if not self._is_begun:
            self._is_begun = True
            self._load_after(0)
        dues = self._dues
        if self._firing or not dues or dues[0][0] > now:
            self._await_next()
            return
        count = min(FIRING_MAX, dues.bisect_right((now, _LAST_KEY)))
        due = {order_key: time for time, order_key in dues[:count]}
        del dues[:count]
        self._firing = count
        fire = Callback(None, lambda page: begin(self._fire_all(page, due), self._start))
        self._append(Page(self.owner, 0, count, PAGE_BYTES, fire, keys=due.keys()))

    # ---- back from the store

    def durable(self, operation: AddMessage) -> None:
        """Add a message that is stored as pending."""
        if not operation.is_duplicate:
            self.added(operation.message, operation.order_key)
            self._await_next()

    def _both_pending(self, atomic: Atomic) -> None:
        """Add the messages that replace a cron entry: the one to be sent, and the next entry."""
        for part in atomic.operations:
            if isinstance(part, AddMessage):
                self.durable(part)

    def _fire_all(self, page: Page, dues: dict[OrderKey, int]) -> Work[None]:
        """Send each of ``dues`` that still exists, the earliest first. Those without room in the page are due again."""
        found = {each.order_key: each for each in page.messages}
        behind = _LAST_KEY if page.is_end or not found else page.messages[-1].order_key
        left = [(time, order_key) for order_key, time in dues.items() if order_key > behind]
        self._dues.update(left)
        self._firing -= len(left)
        pace = Pace()
        acting: dict[str | None, Client] = {}
        for order_key in dues:
            if order_key > behind:
                continue
            # Not there: it was removed while the page was read.
            if order_key in found:
                yield from self._fire(found[order_key], acting, pace)
            self._firing -= 1
            if pace.is_full(_FIRED):
                yield
        self.tick(self._clock())

    def _await_next(self) -> None:
        """Set a timer for the next due message, if it is due before the next tick."""
        due = self.next_due
        if due is None:
            return
        seconds = max(0, due - self._clock()) / 1000
        if seconds < TICK_SECONDS:
            self._due_timer.set(seconds)

    def added(self, waiting: Message, order_key: OrderKey) -> None:
        """Record that ``waiting`` is pending."""
        if self._first_new is None:
            self._first_new = order_key
        self._dues.add((due_of(waiting).time, order_key))

    def _load_after(self, after: OrderKey) -> None:
        self._ask(after, Callback(None, self._load))

    def _load(self, page: Page) -> None:
        """Take in a page of the messages that were pending at promotion."""
        is_end = page.is_end or not page.messages
        for found in page.messages:
            if self._first_new is not None and found.order_key >= self._first_new:
                is_end = True
                break
            self._unread = max(0, self._unread - 1)
            self._dues.add((due_of(found.message).time, found.order_key))
        if not is_end:
            self._load_after(page.messages[-1].order_key)
            return
        self._unread = 0
        self.is_loaded = True
        self._begin_request()
        self.tick(self._clock())

    def _ask(self, after: OrderKey, completion: Callback) -> None:
        self._append(Page(self.owner, after, PAGE_MESSAGES, PAGE_BYTES, completion))

    def _fire(self, found: PagedMessage, acting: dict[str | None, Client], pace: Pace) -> Work[None]:
        """Send one due message, and replace it by its next copy. ``acting``: clients that act for the users of this
        page."""
        now = self._clock()
        waiting = found.message
        due = due_of(waiting)
        try:
            schedule = Schedule.of(waiting.properties, self._repeat_max)
        except ClientError:  # accepted by a broker that allowed more: it is sent this once
            schedule = None
        try:
            if waiting.original_destination is None:
                log.error("%s is removed, because it names no destination", due.job)
                self._append(self._removal(found))
            else:
                yield from self._send(found, due, schedule, now, acting, pace)
        except ClientError as error:
            if error.kind is ErrorKind.TIMEOUT:
                self._try_later(found, now + SOON_MS)
                return
            text = f"scheduled message {due.job} for {waiting.original_destination} cannot be sent now, and is tried"
            text += f" again in {PUT_OFF_MS // 1000} s: {error.message}"
            event = log_events.DENIED if error.kind is ErrorKind.SECURITY else None
            self._limited.warning("scheduler", error.kind.name, text, event)
            self._try_later(found, now + PUT_OFF_MS)
        except Exception:  # the next ones are due as well
            log.exception("scheduled message %s for %s %s", due.job, waiting.original_destination, ERROR_OF_BROKER)
            self._try_later(found, now + PUT_OFF_MS)
        else:
            self._put_off.pop(found.order_key, None)

    def _send(
        self,
        found: PagedMessage,
        due: Due,
        schedule: Schedule | None,
        now: int,
        acting: dict[str | None, Client],
        pace: Pace,
    ) -> Work[None]:
        """Send a message for its user, with the rights that the user has now. If the user or the right to write is
        missing, it becomes a dead letter, and its schedule ends once that has lasted for REFUSED_MS: otherwise it would
        be refused again and again. For any other reason it waits."""
        waiting = found.message
        parts: list[AddMessage | RemoveMessage] = [self._removal(found)]
        message = occurrence(waiting, schedule, now, self._new_id())
        run = None if schedule is None else schedule.run
        following = None if schedule is None else schedule.next(due.time, now, due.left, self._zone)
        try:
            client = acting.get(due.user)
            if client is None:
                client = acting[due.user] = self._sender.acting_for(due.user)
            # Each run of a cron entry is stored, also if its message is not persistent.
            if run is not None or (following is not None and message.persistent):
                self._sender.check_room(message)  # prove: repeated-messages-wait-for-room
            if run is not None:
                self._sender.check_due(client, message)
                first = Due(run.first(due.time, self._zone), run.repeat, due.job, due.user)
                parts.append(self._addition(run_of(waiting, first, self._new_id())))
            if following is not None:
                parts.append(self._addition(again(waiting, Due(*following, due.job, due.user), self._new_id())))
            if run is not None:
                self._append(Atomic(parts, None, Callback(None, self._both_pending)))
            else:
                yield from self._sender.send_due(client, message, parts, pace)
                self.sent += 1
        except ClientError as error:
            if error.kind is not ErrorKind.SECURITY:
                raise
            has_more = run is not None or following is not None
            # prove: schedules-outlast-a-moment "REFUSED_MS" -> "0"
            if has_more and now - max(due.time, self._since) < REFUSED_MS:
                raise
            cause = f"not sent when it was due, {_end_of(waiting, schedule)}: "
            # Other users may read the letter: only the log names the operation and the destination that its user has no
            # right to.
            shown = (
                cause + "its user is unknown, or has no write right on all destinations that it reaches. See the log."
            )
            place = self._sender.bury_due(due.user, message, shown, parts[:1])  # prove: refused-when-due-is-kept
            text = f"scheduled message {due.job} for {message.destination}: {cause}{error.message}"
            if place is None:
                log.warning("%s (no dead letter is kept of it)", text, extra=log_events.DENIED)
            else:  # the dead letter has the same cause
                self._limited.warning("scheduler", "refused", f"{text} (dead letter in {place})", log_events.DENIED)

    def _try_later(self, found: PagedMessage, time: int) -> None:
        self._put_off[found.order_key] = time
        self._dues.add((time, found.order_key))

    def _new_id(self) -> str:
        self._sequence += 1
        return f"{self._producer}:{self._sequence}"

    def _addition(self, message: Message) -> AddMessage:
        return AddMessage(message, (self.owner,), encode_payload(message))

    def _removal(self, found: PagedMessage) -> RemoveMessage:
        message_id = found.message.message_id
        payload = encode_remove(PENDING, message_id)
        return RemoveMessage(self.owner, found.order_key, found.location, message_id, payload, None, found.size)

    # ---- management

    def _begin_request(self) -> None:
        """Begin the next request: one at a time, and only when everything pending is known."""
        if self._requests and self.is_loaded and not self._is_request_begun:
            self._is_request_begun = True
            self._read_after(0, self._requests[0])

    def _read_after(self, after: OrderKey, request: _Request) -> None:
        self._ask(after, Callback(None, lambda page: begin(self._answer_page(page, request), self._start)))

    def _answer_page(self, page: Page, request: _Request) -> Work[None]:
        """Carry out a request for one page of pending messages."""
        pace = Pace()
        for found in page.messages:
            if pace.is_full(_FIRED):
                yield
            due = due_of(found.message)
            if not request.covers(due):
                continue
            if request.is_removal:
                self._forget(found, due.time)
            elif request.reply_to is not None:
                try:
                    copy = shown(found.message, request.reply_to, self._new_id())
                    yield from self._sender.send_due(request.asker, copy, (), pace)
                except ClientError as error:
                    log.warning("pending messages cannot be shown to %s: %s", request.reply_to, error.message)
                    page.is_end = True
                    break
        if page.messages and not page.is_end:
            self._read_after(page.messages[-1].order_key, request)
            return
        self._requests.popleft()
        self._is_request_begun = False
        self._begin_request()
        self._await_next()

    def _forget(self, found: PagedMessage, time: int) -> None:
        place = (self._put_off.pop(found.order_key, time), found.order_key)
        if place in self._dues:  # otherwise it is being sent, or was sent
            self._dues.remove(place)
            self._append(self._removal(found))


def _end_of(waiting: Message, schedule: Schedule | None) -> str:
    """Return the schedule that ends with a refused message, so that a user can schedule it again."""
    if schedule is None or (schedule.cron is None and not schedule.repeat):
        return "and it was scheduled once"
    properties = waiting.properties or {}
    terms = ", ".join(f"{name}={properties[name]!r}" for name in PROPERTIES if name in properties)
    return f"and its schedule ends ({terms[:SHOWN_CHARACTERS_MAX]})"


def may_be_scheduled(message: Message) -> bool:
    """Return whether the properties of ``message``, which may still be bytes, must be read. A result of False is
    certain."""
    raw = message.raw
    if raw is not None:
        return message.may_have_properties and _MARK in raw
    if message.marshalled is not None:
        return _MARK in message.marshalled
    properties = message.properties
    if properties is not None:
        for name in properties:
            if name.startswith("AMQ_SCHEDULED_"):
                return True
    return False


def is_management(destination: Destination) -> bool:
    """Return whether the destination takes requests to the scheduler: it is one topic, and rights are given for it.
    SchedulerBroker.send accepts destinations of any kind whose names begin so, without regard to case."""
    return destination.kind is DestinationKind.TOPIC and destination.name == MANAGEMENT


def _time(name: str, value: object) -> int | None:
    """Return a time among the properties of a request: a number, or a text that is one."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < _DIGITS_MAX:
        return int(value)
    raise refusal(f"{name} is {str(value)[:40]!r}", "Milliseconds since 1970 are expected.")


_DIGITS_MAX = 19
_LAST_KEY: OrderKey = 1 << 96  # after every order key
