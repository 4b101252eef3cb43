"""Expiry of sessions whose clients are away, and publication of their wills (MQTT 5.0, 3.1.2.11.2 and 3.1.3.2.2).

A will is published when its delay is over or its session ends, whichever is first, unless its client resumes the
session before. A session ends when its Session Expiry Interval is over, or when its client begins a new session. Its
durable subscriptions and its queue are then deleted. A session that is not stored ends with its connection.

Both intervals are in the session's record. A new master reads the queues of all sessions while it serves clients. A
client that was connected to the former master has at least ``GRACE_SECONDS`` to reconnect. The time at which a
connection was lost is stored only if the client does not reconnect within that time: so the next master does not start
the interval again, and a short absence costs no record. The will is published in one transaction with a record that no
longer contains it, so that only one master publishes it. Wills of sessions that are not stored are lost if the broker
dies.

The memory of absent clients counts in the broker's memory (broker.core.memory). The broker acts under the client id of
the absent client, and stops when the client connects. ``wills`` publishes the wills.
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
from tandemmq.broker.protocols.mqtt.conversation import ConnectionEnd
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

#: Time that clients have to reconnect to a new master before their wills are published.
GRACE_SECONDS: Final = 10.0
#: Delay before a retry if the engine refused a will or the end of a session.
RETRY_SECONDS: Final = 10.0
#: Delay before a retry if the user of a will is not known yet.
USER_RETRY_SECONDS: Final = 0.2
#: Maximum number of concurrent jobs.
WORKERS: Final = 16
#: Memory of an absent client, with its timers and without its will.
AWAY_BYTES: Final = 1_500


@dataclass(slots=True, eq=False, repr=False)
class _Away:
    """A session whose client is absent. ``record``: the wanted content of its record, with the will that is not
    published yet. ``will_bytes``: memory of the will until it is published or dropped. ``is_publishing``: the will is
    being published. ``state``: the queue with the record, if the record must be kept up to date. ``is_noted``: the
    stored record has the time when the client left. ``is_over``: the session has expired."""

    client_id: str
    record: SessionRecord
    will_bytes: int
    state: Destination | None = None
    is_publishing: bool = False
    is_noted: bool = False
    is_over: bool = False

    @property
    def principal(self) -> Principal:
        """Principal for the user of the session."""
        user = self.record.user
        return Principal(user or ANONYMOUS, self.record.groups, is_proved=user is not None)

    @property
    def will_delay(self) -> int:
        """Will Delay Interval in seconds; 0: no delay or no will."""
        return 0 if self.record.will is None else self.record.will.properties.will_delay or 0


class SessionExpiry:
    """Ends sessions and publishes wills in one term. Runs on the loop. ``name``: the broker's name. ``clock`` returns
    milliseconds since 1970."""

    def __init__(self, engine: Engine, name: str, clock: Callable[[], int], may_retain: MayRetain) -> None:
        self._engine = engine
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        # Connected clients, by client id: for each connection whether it resumed a session.
        self._connected: dict[str, list[bool]] = {}
        self._away: dict[str, _Away] = {}
        self._due: list[tuple[float, int, _Away, Callable[[_Away], None]]] = []  # heap of timers, by time
        self._due_max = ITEMS  # number of timers above which those of clients that returned are removed
        self._holder = Holder(engine.memory, is_bounded=True)
        self._numbers = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._jobs: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._connection_id = f"ID:{name}-{engine.store.epoch}-mqtt"
        self._producer = broker_producer(self._connection_id)
        self.wills = Wills(engine, self._holder, clock, self._next_message_id, may_retain)
        self.ended = 0
        self._lookups: set[asyncio.Task[None]] = set()  # tasks that look up users
        self._task = self._loop.create_task(self._run(), name="mqtt-endings")

    def end(self) -> None:
        """End the term."""
        self._task.cancel()
        for each in self._lookups:
            each.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due.clear()
        self._holder.end()

    @property
    def connected(self) -> int:
        """Number of connected clients."""
        return len(self._connected)

    # ---- users of sessions

    def find_user(self, client_id: str, then: Callable[[str | ClientError | None], None]) -> None:
        queue = queue_of(client_id)
        if self._engine.waiting_in(queue) is None:
            then(None)
            return
        task = self._loop.create_task(self._find_user(queue, then), name="mqtt-session-user")
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)

    async def _find_user(self, queue: Destination, then: Callable[[str | ClientError | None], None]) -> None:
        found: str | ClientError | None = None
        try:
            kept = await self._read(queue)
            found = None if kept is None else kept.user
        except RecordUnreadable:
            pass  # the client then begins a new session
        except ClientError as error:
            found = error
        then(found)

    # ---- events of sessions

    def _drop_will(self, away: _Away) -> None:
        """Drop a will that was published or is not needed any more, and free its memory."""
        away.record.will = None
        size, away.will_bytes = away.will_bytes, 0
        self.wills.hold(away.record.user, -size)

    def client_connected(self, client_id: str, *, is_resumed: bool) -> None:
        self._connected.setdefault(client_id, []).append(is_resumed)
        away = self._away.get(client_id)
        if away is None:
            return
        self._forget(away)
        if away.record.will is not None:
            if is_resumed:
                self._drop_will(away)  # MQTT-3.1.3-9
            else:
                away.state = None  # the client began a new session; the former one has ended
                self._publish_soon(away)

    def client_left(self, end: ConnectionEnd) -> None:
        connections = self._connected.get(end.client_id, [])
        if connections:
            connections.pop(0)
        user, groups = end.principal.owner, end.principal.groups
        kept = SessionRecord(end.expiry, user, groups, will=end.will, left_at=self._clock())
        away = _Away(end.client_id, kept, end.will_bytes)
        if end.will is None:
            self._drop_will(away)
        if connections:  # a newer connection of the client has taken over the session
            if away.will_delay and connections[-1]:
                self._drop_will(away)
            self._publish_soon(away)
            return
        self._connected.pop(end.client_id, None)
        if end.state is None:
            self._publish_soon(away)
            return
        away.state, away.is_noted = end.state, end.is_noted
        self._await(away, away.will_delay, end.expiry)

    # ---- time

    def _await(self, away: _Away, will_seconds: float, seconds: float) -> None:
        """Set the timers: publish the will after ``will_seconds``, and end the session after ``seconds``."""
        if away.record.will is None and seconds == NEVER:
            return
        self._away[away.client_id] = away
        self._holder.add(Held.STATE, AWAY_BYTES)
        will_seconds = min(will_seconds, seconds)
        if not will_seconds:
            self._publish_soon(away)  # even if the client reconnects in the same turn of the loop
        elif away.record.will is not None:
            self._at(will_seconds, away, self._publish_soon)
        if seconds != NEVER:
            self._at(seconds, away, self._end_soon)
        if away.state is not None and not away.is_noted:
            self._at(GRACE_SECONDS, away, self._note_soon)

    def _at(self, seconds: float, away: _Away, then: Callable[[_Away], None]) -> None:
        heappush(self._due, (self._loop.time() + seconds, next(self._numbers), away, then))
        if len(self._due) > self._due_max:
            self._drop_timers()
        self._wait()

    def _drop_timers(self) -> None:
        """Remove the timers of clients that returned. A client can leave and return many times before its first timer
        ends."""
        self._due = [each for each in self._due if each[2].is_publishing or self._is_awaited(each[2])]
        heapify(self._due)
        self._due_max = 2 * len(self._due) + ITEMS

    def _is_awaited(self, away: _Away) -> bool:
        return self._away.get(away.client_id) is away

    def _wait(self) -> None:
        """Set the loop's timer to the earliest entry."""
        if self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._due[0][0], self._on_timer)

    def _on_timer(self) -> None:
        # Handle only the entries that are due now. Entries that these add are handled in a later turn.
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
        """Return whether the record must be written, and no other write of it is in progress."""
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
                tasks.create_task(self._read_stored())
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
        """Publish a will, and store a record without it in the same transaction."""
        client = self._client(away, "will")
        try:
            records = partial(self._record_without_will, away)
            if await self.wills.publish(client, away.client_id, away.record.user, will, records):
                away.is_noted = True
        except ClientError as error:
            seconds = USER_RETRY_SECONDS if error.kind is ErrorKind.TIMEOUT else RETRY_SECONDS
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
        """Return a record without the will, so that no master publishes the will again. Return no record if the session
        is not stored, or if its client has reconnected and stored another one."""
        if away.state is None or not self._is_awaited(away):
            return []
        return [self._record(away, away.state)]

    def _record(self, away: _Away, state: Destination) -> Message:
        return record(state, self._next_message_id(), Kind.SESSION, away.record.encode(), self._clock())

    async def _note(self, away: _Away) -> None:
        """Store when the client left. The write uses its client id, so it is complete before the client can reconnect
        and write a record."""
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
                log.info("the absence of MQTT client %s cannot be stored yet: %s", away.client_id, error.message)
                self._at(RETRY_SECONDS, away, self._note_soon)
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
                log.info("the session of MQTT client %s cannot be deleted yet: %s", away.client_id, error.message)
                self._at(RETRY_SECONDS, away, self._end_soon)
        finally:
            self._engine.closed(client)

    # ---- a new term

    async def _read_stored(self) -> None:
        """Read the stored sessions of the former term, and set the timers of those whose clients are not connected."""
        for queue in await in_turns(self._engine.queues_named(MQTT_SESSION)):
            client_id = client_id_of(queue.name)
            if client_id in self._connected or client_id in self._away:
                continue
            try:
                kept = await self._read(queue)
            except (RecordUnreadable, ClientError) as error:
                log.warning("%s cannot be read: %s", queue, error, extra=log_events.MQTT_SESSION_UNREADABLE)
                continue
            if kept is not None and client_id not in self._connected and client_id not in self._away:
                self._take_over(client_id, queue, kept)

    async def _read(self, queue: Destination) -> SessionRecord | None:
        """Return the session record in a queue; None: the queue has none."""
        last: Message | None = None
        client = InProcessClient(self._engine, BROKER, f"mqtt-{next(self._numbers)}", f"MQTT: reads {queue}")
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
            absent_seconds = max(0, now - kept.left_at) / 1000
            seconds = kept.expiry if kept.expiry == NEVER else max(0, kept.expiry - absent_seconds)
            self._await(away, max(0, away.will_delay - absent_seconds), seconds)
        else:  # the client was connected when the former term ended
            kept.left_at = now
            # prove: time-to-come-back "max(kept.expiry, GRACE_SECONDS)" -> "kept.expiry"
            self._await(away, max(away.will_delay, GRACE_SECONDS), max(kept.expiry, GRACE_SECONDS))


def _durable_names(records: list[Message]) -> list[str]:
    """Return the names of the durable subscriptions in ``records``, the messages of a session's queue."""
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
