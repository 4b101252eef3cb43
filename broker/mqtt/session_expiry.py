"""Sessions whose clients are away: when they end, and when their wills are due (MQTT 5.0, 3.1.2.11.2 and 3.1.3.2.2).

A will is published when its delay is over or its session ends, whichever comes first, unless its client comes back to
that session before. A session ends when its time is over, or its client begins a new one; its durable subscriptions
and its queue end with it. A session that is not stored ends with its connection.

Both times are in the session's record, so a new master has them, too: it reads the queues of all sessions while it
serves. A client that was connected to the former master has at least ``GRACE_SECONDS`` to come back. The time at which
a connection was lost is written only if the client does not come back within that time. So the next master does not
start the interval again, and a client that leaves and returns costs no record. The will and a record without it are one
transaction: either of the two masters publishes it, and only once, unless the broker dies in between. State that is not
stored ends with the broker: the living broker publishes the wills of such sessions.

The memory for this counts in the broker's budget (broker.core.memory). The broker acts under the client id, as the
client would, and stops when the client connects. ``wills`` publishes the wills.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final

from tandemmq import log_events
from tandemmq.broker.core.commands import ClientError, Connect, ErrorKind, RemoveDestination, Unsubscribe
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.memory import Holder
from tandemmq.broker.core.memory import Kind as Held
from tandemmq.broker.core.names import MQTT_SESSION
from tandemmq.broker.core.principal import ANONYMOUS, Principal
from tandemmq.broker.core.slices import ITEMS
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.in_process import InProcessClient, in_turns
from tandemmq.broker.mqtt.retained_messages import BROKER
from tandemmq.broker.mqtt.wills import MayRetain, Wills
from tandemmq.broker.protocols.mqtt.conversation import Left
from tandemmq.broker.protocols.mqtt.messages import bytes_of
from tandemmq.broker.protocols.mqtt.packets import Will
from tandemmq.broker.protocols.mqtt.session_records import (
    NEVER,
    Kind,
    RecordUnreadable,
    SessionRecord,
    SubscriptionRecord,
    client_id_of,
    queue_of,
    record,
)
from tandemmq.store.records.message import Destination, Message
from tandemmq.store.records.message_ids import broker_producer

log = logging.getLogger(__name__)

#: Time that clients have to come back to a new master before their wills are published.
GRACE_SECONDS: Final = 10.0
#: Delay after the engine had no room for a will, or for the end of a session.
AGAIN_SECONDS: Final = 10.0
#: Delay while the user of a will is not known yet.
SOON_SECONDS: Final = 0.2
#: Maximum number of jobs at the same time.
WORKERS: Final = 16
#: Memory of a client that is away, with its timers and without its will.
AWAY_BYTES: Final = 1_500


@dataclass(slots=True, eq=False, repr=False)
class _Away:
    """A session whose client is away, and the wanted state of its record, with the will that is not published yet.
    ``will_bytes``: memory of the will until it is published or dropped; ``is_publishing``: it is being published.
    ``state``: the queue with the record, if that must be kept up to date. ``is_noted``: the record says that the client
    is away; ``is_over``: its time is over."""

    client_id: str
    record: SessionRecord
    will_bytes: int
    state: Destination | None = None
    is_publishing: bool = False
    is_noted: bool = False
    is_over: bool = False

    @property
    def principal(self) -> Principal:
        """User of the session."""
        user = self.record.user
        return Principal(user or ANONYMOUS, self.record.groups, is_proved=user is not None)

    @property
    def will_delay(self) -> int:
        """Seconds until the will is to be published; 0: there is none."""
        return 0 if self.record.will is None else self.record.will.properties.will_delay or 0


class SessionExpiry:
    """Ends sessions and publishes wills of one term. On the loop. ``name`` is the broker's; ``clock`` returns
    milliseconds since 1970."""

    def __init__(self, engine: Engine, name: str, clock: Callable[[], int], may_retain: MayRetain) -> None:
        self._engine = engine
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._there: dict[str, list[bool]] = {}  # connected clients: for each connection whether it resumed a session
        self._away: dict[str, _Away] = {}
        self._due: list[tuple[float, int, _Away, Callable[[_Away], None]]] = []  # by time
        self._due_max = ITEMS  # beyond it, entries that are not awaited any more are removed
        self._holder = Holder(engine.memory, is_bounded=True)
        self._numbers = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._jobs: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._connection_id = f"ID:{name}-{engine.store.epoch}-mqtt"
        self._producer = broker_producer(self._connection_id)
        self.wills = Wills(engine, self._holder, clock, self._next_message_id, may_retain)
        self.ended = 0
        self._asked: set[asyncio.Task[None]] = set()  # look-ups of users
        self._task = self._loop.create_task(self._run(), name="mqtt-endings")

    def end(self) -> None:
        """End the term."""
        self._task.cancel()
        for each in self._asked:
            each.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due.clear()
        self._holder.end()

    @property
    def connected(self) -> int:
        """Number of connected clients."""
        return len(self._there)

    # ---- users of sessions

    def find_user(self, client_id: str, then: Callable[[str | ClientError | None], None]) -> None:
        queue = queue_of(client_id)
        if self._engine.waiting_in(queue) is None:
            then(None)
            return
        task = self._loop.create_task(self._find_user(queue, then), name="mqtt-session-user")
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def _find_user(self, queue: Destination, then: Callable[[str | ClientError | None], None]) -> None:
        found: str | ClientError | None = None
        try:
            kept = await self._read(queue)
            found = None if kept is None else kept.user
        except RecordUnreadable:
            pass  # its client begins a new session
        except ClientError as error:
            found = error
        then(found)

    # ---- events of sessions

    def _drop_will(self, away: _Away) -> None:
        """Drop a will that is published, or will not be."""
        away.record.will = None
        size, away.will_bytes = away.will_bytes, 0
        self.wills.hold(away.record.user, -size)

    def came(self, client_id: str, *, is_resumed: bool) -> None:
        self._there.setdefault(client_id, []).append(is_resumed)
        away = self._away.get(client_id)
        if away is None:
            return
        self._forget(away)
        if away.record.will is not None:
            if is_resumed:
                self._drop_will(away)  # MQTT-3.1.3-9
            else:
                away.state = None  # the session of that record is over
                self._publish_soon(away)

    def left(self, left: Left) -> None:
        there = self._there.get(left.client_id, [])
        if there:
            there.pop(0)
        user, groups = left.principal.owner, left.principal.groups
        kept = SessionRecord(left.expiry, user, groups, will=left.will, left_at=self._clock())
        away = _Away(left.client_id, kept, left.will_bytes)
        if left.will is None:
            self._drop_will(away)
        if there:  # it was taken over
            if away.will_delay and there[-1]:
                self._drop_will(away)
            self._publish_soon(away)
            return
        self._there.pop(left.client_id, None)
        if left.state is None:
            self._publish_soon(away)
            return
        away.state, away.is_noted = left.state, left.is_noted
        self._await(away, away.will_delay, left.expiry)

    # ---- time

    def _await(self, away: _Away, will_seconds: float, seconds: float) -> None:
        """Set the timers: the will is due after ``will_seconds``, and the end of the session after ``seconds``."""
        if away.record.will is None and seconds == NEVER:
            return
        self._away[away.client_id] = away
        self._holder.add(Held.STATE, AWAY_BYTES)
        will_seconds = min(will_seconds, seconds)
        if not will_seconds:
            self._publish_soon(away)  # also if its client comes back in the same turn
        elif away.record.will is not None:
            self._at(will_seconds, away, self._publish_soon)
        if seconds != NEVER:
            self._at(seconds, away, self._end_soon)
        if away.state is not None and not away.is_noted:
            self._at(GRACE_SECONDS, away, self._note_soon)

    def _at(self, seconds: float, away: _Away, then: Callable[[_Away], None]) -> None:
        heappush(self._due, (self._loop.time() + seconds, next(self._numbers), away, then))
        if len(self._due) > self._due_max:
            self._forget_times()
        self._wait()

    def _forget_times(self) -> None:
        """Remove the timers of clients that came back. A client can leave and return many times before its first timer
        ends."""
        self._due = [each for each in self._due if each[2].is_publishing or self._is_awaited(each[2])]
        heapify(self._due)
        self._due_max = 2 * len(self._due) + ITEMS

    def _is_awaited(self, away: _Away) -> bool:
        return self._away.get(away.client_id) is away

    def _wait(self) -> None:
        """Set the timer for what is due first."""
        if self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._due[0][0], self._look)

    def _look(self) -> None:
        # Only the entries that are due now. Entries that they add are handled in a later turn.
        now = self._loop.time()
        due = []
        while self._due and self._due[0][0] <= now:
            due.append(heappop(self._due))
        for _, _, away, then in due:
            then(away)
        self._wait()

    def _forget(self, away: _Away) -> None:
        if self._is_awaited(away):
            del self._away[away.client_id]
            self._holder.add(Held.STATE, -AWAY_BYTES)

    def _publish_soon(self, away: _Away) -> None:
        will, away.record.will = away.record.will, None
        if will is not None:
            away.is_publishing = True
            self._jobs.put_nowait(lambda: self._publish(away, will))

    def _note_soon(self, away: _Away) -> None:
        if self._may_note(away):
            self._jobs.put_nowait(lambda: self._note(away))

    def _may_note(self, away: _Away) -> bool:
        """Return whether the record must be written and no other write is in progress."""
        return self._is_awaited(away) and not (away.is_noted or away.is_publishing or away.is_over)

    def _end_soon(self, away: _Away) -> None:
        away.is_over = True
        if self._is_awaited(away) and not away.is_publishing:
            self._jobs.put_nowait(lambda: self._end_session(away))

    # ---- jobs

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(WORKERS):
                    tasks.create_task(self._work())
                tasks.create_task(self._look_through())
        except Exception:
            log.exception("the check of MQTT sessions %s", ERROR_OF_BROKER)

    async def _work(self) -> None:
        while True:
            job = await self._jobs.get()
            try:
                await job()
            except Exception:  # the other jobs continue
                log.exception("the end of an MQTT session %s", ERROR_OF_BROKER)

    def _client(self, away: _Away, what: str) -> InProcessClient:
        number = next(self._numbers)
        state = queue_of(away.client_id)
        peer = f"MQTT: {what} of {away.client_id}"
        return InProcessClient(self._engine, away.principal, f"mqtt-{number}", peer, state=state)

    def _next_message_id(self) -> str:
        return f"{self._producer}:{next(self._numbers)}"

    async def _publish(self, away: _Away, will: Will) -> None:
        """Publish a will, and record that it has been published."""
        client = self._client(away, "will")
        try:
            records = partial(self._record_without_will, away)
            if await self.wills.publish(client, away.client_id, away.record.user, will, records):
                away.is_noted = True
        except ClientError as error:
            seconds = SOON_SECONDS if error.kind is ErrorKind.TIMEOUT else AGAIN_SECONDS
            self._at(seconds, away, lambda away: self._jobs.put_nowait(lambda: self._publish(away, will)))
            return
        finally:
            self._engine.closed(client)
        self._drop_will(away)
        away.is_publishing = False
        if away.record.expiry == NEVER:
            self._forget(away)
        elif away.is_over:
            self._end_soon(away)

    def _record_without_will(self, away: _Away) -> list[Message]:
        """Return a record without the will, so that no master publishes it again; only for a session that is kept, and
        whose client has not come back and written another."""
        if away.state is None or not self._is_awaited(away):
            return []
        return [self._record(away, away.state)]

    def _record(self, away: _Away, state: Destination) -> Message:
        return record(state, self._next_message_id(), Kind.SESSION, away.record.encode(), self._clock())

    async def _note(self, away: _Away) -> None:
        """Record since when the client is away. Written under its client id, so before all that the client itself
        writes when it comes back."""
        state = queue_of(away.client_id)
        client = self._client(away, "the absence")
        try:
            await client.enter(Connect(away.client_id, state=state))
            if not self._may_note(away):
                return
            await client.send_all([self._record(away, state)])
            away.is_noted = True
        except ClientError as error:
            if self._may_note(away):
                log.info("the absence of MQTT client %s is not stored yet: %s", away.client_id, error.message)
                self._at(AGAIN_SECONDS, away, self._note_soon)
        finally:
            self._engine.closed(client)

    async def _end_session(self, away: _Away) -> None:
        """Delete the durable subscriptions and the queue of a session."""
        state = queue_of(away.client_id)
        client = self._client(away, "the end of the session")
        try:
            connect = Connect(away.client_id, state=state)
            await client.enter(connect)
            # prove: session-of-a-client-that-came-back "not self._is_awaited(away)" -> "False"
            if not self._is_awaited(away):
                return
            if connect.has_state:
                names: dict[str, None] = {}
                async with aclosing(client.browse(state)) as batches:
                    async for batch in batches:
                        names.update(dict.fromkeys(_durable_names(batch)))
                await client.do_all([Unsubscribe(None, durable_name=name) for name in names])
                await client.do(RemoveDestination(state))
            self.ended += 1
            self._forget(away)
        except ClientError as error:
            if self._is_awaited(away):  # otherwise its client has come back
                log.info("the session of MQTT client %s does not end yet: %s", away.client_id, error.message)
                self._at(AGAIN_SECONDS, away, self._end_soon)
        finally:
            self._engine.closed(client)

    # ---- a new term

    async def _look_through(self) -> None:
        """Take over the stored sessions whose clients are not connected."""
        for queue in await in_turns(self._engine.queues_named(MQTT_SESSION)):
            client_id = client_id_of(queue.name)
            if client_id in self._there or client_id in self._away:
                continue
            try:
                kept = await self._read(queue)
            except (RecordUnreadable, ClientError) as error:
                log.warning("%s cannot be read: %s", queue, error, extra=log_events.MQTT_SESSION_UNREADABLE)
                continue
            if kept is not None and client_id not in self._there and client_id not in self._away:
                self._take_over(client_id, queue, kept)

    async def _read(self, queue: Destination) -> SessionRecord | None:
        """Return the session record of a queue; None: it has none any more."""
        last: Message | None = None
        client = InProcessClient(self._engine, BROKER, f"mqtt-{next(self._numbers)}", f"MQTT: a look at {queue}")
        try:
            async with aclosing(client.browse(queue)) as batches:
                async for batch in batches:
                    last = next((each for each in reversed(batch) if each.type == Kind.SESSION), last)
        finally:
            self._engine.closed(client)
        return None if last is None else SessionRecord.decode(last.body)

    def _take_over(self, client_id: str, queue: Destination, kept: SessionRecord) -> None:
        now = self._clock()
        size = 0 if kept.will is None else bytes_of(kept.will)
        away = _Away(client_id, kept, size, queue, is_noted=kept.left_at > 0)
        self.wills.hold(kept.user, size)
        if kept.left_at:
            gone = max(0, now - kept.left_at) / 1000
            seconds = kept.expiry if kept.expiry == NEVER else max(0, kept.expiry - gone)
            self._await(away, max(0, away.will_delay - gone), seconds)
        else:  # the client was connected, or cut off
            kept.left_at = now
            # prove: time-to-come-back "max(kept.expiry, GRACE_SECONDS)" -> "kept.expiry"
            self._await(away, max(away.will_delay, GRACE_SECONDS), max(kept.expiry, GRACE_SECONDS))


def _durable_names(records: list[Message]) -> list[str]:
    """Return the names of the durable subscriptions in ``records``."""
    names = []
    for each in records:
        if each.type == Kind.SUBSCRIPTION:
            try:
                name = SubscriptionRecord.decode(each.body).durable_name
            except RecordUnreadable:
                continue
            if name is not None:
                names.append(name)
    return names
