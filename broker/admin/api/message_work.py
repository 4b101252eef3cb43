"""Operations on many messages: browse, move, copy, delete, purge, and retry dead letters.

A moved message is added at its target and removed here in one operation of the store. Messages that are delivered to
other consumers are not changed. If a task ends early, the messages that it took and did not process return to the
queue, and do not count as delivered.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tandemmq.broker.admin.answers import Answers, Rows, page_of, rendered
from tandemmq.broker.admin.api.operator_client import TAKEN, Delivery, OperatorClient, operator_client
from tandemmq.broker.admin.api.shown_messages import in_list, whole
from tandemmq.broker.admin.api.tasks import Task
from tandemmq.broker.admin.callers import Caller
from tandemmq.broker.core.access import Operation
from tandemmq.broker.core.commands import (
    Ack,
    AddDestination,
    ClientError,
    ErrorKind,
    Move,
    RemoveDestination,
    Send,
    refusal,
)
from tandemmq.broker.core.selector import Selector, compile_selector
from tandemmq.broker.core.selector.headers import STORED_ID
from tandemmq.broker.core.slices import WEIGHED_BYTES, Pace, Work
from tandemmq.broker.engine.dead_letters import CAUSE_PROPERTY, DELIVERY_MODE_PROPERTY
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.in_process import BATCH_MAX
from tandemmq.broker.engine.slicing import Slices
from tandemmq.store.operations import AddMessage
from tandemmq.store.records.altered import EXPIRATION_PROPERTY, altered, with_own_id
from tandemmq.store.records.message import Destination, Message
from tandemmq.store.records.message_ids import broker_producer
from tandemmq.store.state.state import State
from tandemmq.store.store import Store

#: Limit of the time of a browse. The answer then has the messages that were found so far.
BROWSE_SECONDS_MAX: Final = 10.0
#: Limit of the messages named in one request.
IDS_MAX: Final = 100
#: Limit of the messages that are held until they are rendered together.
RENDERED_MAX: Final = 16
#: Interval of the checks whether the retried messages of a trial were consumed.
CHECK_SECONDS: Final = 0.2
#: Numbers of messages in the trials of ``retry``, before all others are retried.
TRIAL: Final = (1, 10)
#: Count of a task: dead letters that ``retry`` leaves, because the destination where they died is not known.
UNKNOWN_ORIGIN: Final = "of_unknown_origin"

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Choice:
    """Chosen messages of a queue: the id of a message is in ``ids``, and it matches ``selector``. An empty ``ids`` and
    a ``selector`` of None match all. At most ``limit`` are chosen, the oldest first; None: no limit."""

    selector: str | None = None
    ids: tuple[str, ...] = ()
    limit: int | None = None

    @property
    def condition(self) -> str | None:
        """Selector for ``ids`` and ``selector`` together; None: all messages."""
        if not self.ids:
            return self.selector
        quoted = ", ".join("'" + id.replace("'", "''") + "'" for id in self.ids)
        named = f"{STORED_ID} IN ({quoted})"
        return named if self.selector is None else f"({self.selector}) AND {named}"


class MessageWork:
    """Operations of one caller on the messages of one engine. All methods raise ClientError."""

    def __init__(self, engine: Engine, caller: Caller) -> None:
        self._engine = engine
        self._store = engine.store
        self._caller = caller

    # ---- reading

    async def browse(self, queue: Destination, choice: Choice, after: int, limit: int, answers: Answers) -> bytes:
        """Return the JSON of a page: at most ``limit`` messages of ``choice``, after the first ``after`` messages, and
        only as many as fit into an answer of ``answers``. ``following`` in the JSON is the ``after`` of the next page;
        null: this is the last page. The search ends BROWSE_SECONDS_MAX after it has visited the first ``after``
        messages."""
        rows = Rows(answers.bytes_max)
        following: int | None = None
        waiting: list[tuple[int, Message]] = []

        async def render() -> int | None:
            """Return the ``after`` of a page that begins with the first message that does not fit; None: all fit."""
            count = await answers.run(rendered(rows, waiting, lambda each: in_list(each[1], each[0])))
            before = waiting[count][0] - 1 if count < len(waiting) else None
            waiting.clear()
            return before

        async with aclosing(self._seen(queue, choice, after)) as seen:
            async for place, message in seen:
                if message is None or len(rows.parts) + len(waiting) == limit:
                    following = place if message is None else place - 1
                    break
                waiting.append((place, message))
                if len(waiting) == RENDERED_MAX and (following := await render()) is not None:
                    break
        if waiting and (before := await render()) is not None:
            following = before
        return page_of(rows, following)

    async def read(self, queue: Destination, id: str, after: int) -> dict[str, Any] | None:
        """Return the message with that id, searched after the first ``after`` messages; None: there is none. Raises
        ClientError if the search takes more than BROWSE_SECONDS_MAX."""
        async with aclosing(self._seen(queue, Choice(), after)) as seen:
            async for place, message in seen:
                if message is None:
                    end = f"the search ended after {BROWSE_SECONDS_MAX:.0f} s, at message {place}"
                    raise refusal(f"{end}: continue with after={place}", kind=ErrorKind.RESOURCE)
                if message.message_id == id:
                    return whole(message)
        return None

    async def _seen(
        self, queue: Destination, choice: Choice, after: int
    ) -> AsyncGenerator[tuple[int, Message | None], None]:
        """Yield the place (from 1) and the message for each chosen message after the first ``after``. At the time
        limit, yield the last visited place and None."""
        condition = choice.condition
        selector = None if condition is None else compile_selector(condition)
        loop = asyncio.get_running_loop()
        end: float | None = None
        place = 0
        pace = Pace()
        async with operator_client(self._engine, self._caller) as operator, aclosing(operator.browse(queue)) as batches:
            async for batch in batches:
                for message in batch:
                    place += 1
                    if place > after and (selector is None or await takes(selector, message, pace)):
                        yield place, message
                if end is None:
                    end = loop.time() + BROWSE_SECONDS_MAX if place > after else None
                elif loop.time() > end:
                    yield place, None
                    return

    # ---- changing

    async def _each(
        self,
        task: Task,
        queue: Destination,
        choice: Choice,
        process: Callable[[OperatorClient, Sequence[Delivery]], Awaitable[int]],
        *,
        batch: int = BATCH_MAX,
        per_second: float | None = None,
    ) -> None:
        """Take the chosen messages, and call ``process`` with at most ``batch`` of them at a time. It returns how many
        of them count for the limit of ``choice``."""
        # No more messages are taken than the queue has now, so the task ends although new ones arrive.
        left = self._row(queue)["messages"]
        wanted = left if choice.limit is None else choice.limit
        if choice.ids:  # a retried message may come back as a dead letter with its id
            wanted = min(wanted, len(choice.ids))
        loop = asyncio.get_running_loop()
        async with operator_client(self._engine, self._caller) as operator, operator.taking(queue, choice.condition):
            while left > 0 and wanted > 0 and not task.is_to_stop:
                began = loop.time()
                taken: list[Delivery] = []
                while len(taken) < min(batch, left, wanted):
                    delivery = await operator.take()
                    if delivery is None:
                        break
                    taken.append(delivery)
                if not taken:
                    return
                left -= len(taken)
                done = await process(operator, taken)
                wanted -= done
                if per_second is not None and done and left > 0 and wanted > 0:
                    await asyncio.sleep(max(0.0, done / per_second - (loop.time() - began)))

    def _row(self, queue: Destination) -> dict[str, Any]:
        """Return the row of a queue, which may have been deleted since the request. Raises ClientError."""
        try:
            return self._engine.inventory.destination(queue)
        except KeyError:
            raise refusal(f"{queue} was deleted", kind=ErrorKind.DESTINATION) from None

    async def delete(self, queue: Destination, choice: Choice, task: Task) -> None:
        self._engine.check(self._caller.principal, Operation.REMOVE, queue)

        async def process(operator: OperatorClient, taken: Sequence[Delivery]) -> int:
            await operator.do(Ack(TAKEN, taken[-1].tag, first=taken[0].tag))
            task.count("deleted", len(taken))
            return len(taken)

        await self._each(task, queue, choice, process)

    async def purge(self, queue: Destination, task: Task) -> None:
        """Delete all messages. A queue that has no consumers and is not paused is deleted and created again, which is
        fast for any number of messages."""
        self._engine.check(self._caller.principal, Operation.REMOVE, queue)
        row = self._row(queue)
        if not self._engine.consumers_of(queue) and not row["consumers_paused"] and not row["producers_paused"]:
            async with operator_client(self._engine, self._caller) as operator:
                _raise_first(await operator.do_all([RemoveDestination(queue), AddDestination(queue)]))
            task.count("deleted", row["messages"])
            return
        await self.delete(queue, Choice(), task)

    async def move(self, queue: Destination, target: Destination, choice: Choice, task: Task) -> None:
        if target == queue:
            raise refusal(f"the target is the queue itself, {queue}", kind=ErrorKind.DESTINATION)

        async def process(operator: OperatorClient, taken: Sequence[Delivery]) -> int:
            return len(await self._move(task, "moved", partial(self._moved, target), operator, taken))

        await self._each(task, queue, choice, process)

    async def _move(
        self,
        task: Task,
        word: str,
        changed: Callable[[Message], Message],
        operator: OperatorClient,
        taken: Sequence[Delivery],
    ) -> list[Move]:
        moves = [Move(TAKEN, each.tag, changed(each.message)) for each in taken]
        errors = await operator.do_all(moves)
        task.count(word, errors.count(None))
        _raise_first(errors)
        return moves

    async def copy(self, queue: Destination, target: Destination, choice: Choice, task: Task) -> None:
        """Copy messages. Each copy has a new id, and its property ``originalMessageId`` names the original."""
        condition = choice.condition
        selector = None if condition is None else compile_selector(condition)
        left = choice.limit
        pace = Pace()
        async with operator_client(self._engine, self._caller) as operator, aclosing(operator.browse(queue)) as batches:
            async for batch in batches:
                chosen = [each for each in batch if selector is None or await takes(selector, each, pace)][:left]
                errors = await operator.do_all([Send(self._copied(target, each)) for each in chosen])
                task.count("copied", errors.count(None))
                _raise_first(errors)
                left = None if left is None else left - len(chosen)
                if left == 0 or task.is_to_stop:
                    return

    def _moved(self, target: Destination, message: Message) -> Message:
        """Return the message for its target. It gets a new id if it has an original destination: then it may be one of
        several copies with one id, and a queue cannot store two messages with the same id."""
        if message.original_destination is None:  # prove: copies-that-move-have-ids-of-their-own
            return altered(message, destination=target)
        return self._copied(target, message)

    def _copied(self, target: Destination, message: Message) -> Message:
        message_id = f"{broker_producer(f'ID:operator-{self._store.epoch}')}:{next(_numbers)}"
        return with_own_id(message, message_id, destination=target)

    # ---- dead letters

    async def count_retry(self, queue: Destination, choice: Choice, task: Task) -> None:
        """Count the messages that ``retry`` would return, by the destination where they became dead letters."""
        left = choice.limit
        async with aclosing(self._seen(queue, choice, 0)) as seen:
            async for _, message in seen:
                if message is None:
                    task.note(f"the count is not complete: the search ended after {BROWSE_SECONDS_MAX:.0f} s")
                    return
                origin = origin_of(message)
                task.count(UNKNOWN_ORIGIN if origin is None else str(origin))
                if origin is not None and left is not None:
                    left -= 1
                if left == 0 or task.is_to_stop:
                    return

    async def retry(
        self, queue: Destination, choice: Choice, task: Task, *, rate: float | None, is_tried: bool, wait_seconds: float
    ) -> None:
        """Return dead letters to the destinations where they became dead letters; those of unknown origin stay, and do
        not count for the limit of ``choice``. ``is_tried``: retry one, then ten, as trials. The others stay if a trial
        message becomes a dead letter again, or is not consumed within ``wait_seconds``. ``rate``: messages per second;
        None: no limit."""
        steps: list[int | None] = [*TRIAL, None] if is_tried else [None]
        left = choice.limit
        for step in steps:
            count = min((each for each in (step, left) if each is not None), default=None)
            before = task.counts.get("retried", 0)
            failed = await self._retry_some(
                queue,
                Choice(choice.selector, choice.ids, count),
                task,
                rate,
                wait_seconds if step is not None else None,
            )
            retried_now = task.counts.get("retried", 0) - before
            left = None if left is None else left - retried_now
            if failed:
                task.is_to_stop = True
                task.note(failed)
            if task.is_to_stop or left == 0 or (step is not None and retried_now < step):
                return

    async def _retry_some(
        self, queue: Destination, choice: Choice, task: Task, rate: float | None, wait_seconds: float | None
    ) -> str | None:
        """Return why ``retry`` must stop; None: continue. ``wait_seconds`` None: do not wait for the outcome."""
        moved: list[Move] = []
        unknown = 0

        async def process(operator: OperatorClient, taken: Sequence[Delivery]) -> int:
            nonlocal unknown
            known = [each for each in taken if origin_of(each.message) is not None]
            unknown += len(taken) - len(known)
            if unknown > task.counts.get(UNKNOWN_ORIGIN, 0):  # each step meets those of the steps before
                task.counts[UNKNOWN_ORIGIN] = unknown
            moved.extend(await self._move(task, "retried", retried, operator, known))
            return len(known)

        batch = BATCH_MAX if rate is None else max(1, min(BATCH_MAX, int(rate)))
        if wait_seconds is None:
            await self._each(task, queue, choice, process, batch=batch, per_second=rate)
            return None
        with self._engine.watching_dead_letters() as died:
            await self._each(task, queue, choice, process, batch=batch, per_second=rate)
            return await self._outcome(moved, died, task, wait_seconds) if moved else None

    async def _outcome(self, moved: Sequence[Move], died: Counter[str], task: Task, wait_seconds: float) -> str | None:
        """Return why a trial failed within ``wait_seconds``; None: all its messages were consumed, or the outcome is
        unknown."""
        added = [add for move in moved for add in move.added]
        ids = {each.message.message_id for move in moved for each in (move.added or (move,))}
        end = asyncio.get_running_loop().time() + wait_seconds
        while not task.is_to_stop:
            again = sum(died[id] > 0 for id in ids)
            if again:
                task.count("failed_again", again)
                return f"{again} of {len(ids)} trial messages became dead letters again: the others were not retried"
            waiting = await self._waiting(added)
            if waiting is None:
                task.note("the outcome of a trial is unknown: its messages are not stored, or in several stores")
                return None
            if not waiting:
                # The removal of a message and its dead letter are one operation. So a message that was removed without
                # a dead letter was consumed.
                if not any(died[id] for id in ids):
                    return None
                continue
            if asyncio.get_running_loop().time() > end:
                return f"{waiting} of {len(ids)} trial messages were not consumed within {wait_seconds:.0f} s"
            await asyncio.sleep(CHECK_SECONDS)
        return None

    async def _waiting(self, added: Sequence[AddMessage]) -> int | None:
        """Return how many of the added messages are still stored; None: unknown."""
        if not isinstance(self._store, Store) or not added:
            return None
        places = [(owner, each.order_key) for each in added for owner in each.owners]

        def ask(state: State) -> int:
            return sum(state.entry(owner, order_key) is not None for owner, order_key in places)

        return await asyncio.wrap_future(self._store.ask(ask))


def origin_of(letter: Message) -> Destination | None:
    """Return the destination where the message became a dead letter; None: unknown."""
    origin = letter.original_destination
    return None if origin == letter.destination else origin


def retried(letter: Message) -> Message:
    """Return the message as it was before it became a dead letter."""
    properties = letter.properties or {}
    return altered(
        letter,
        destination=origin_of(letter),
        is_original=True,
        persistent=properties.get(DELIVERY_MODE_PROPERTY) != "NON_PERSISTENT",
        redelivery_counter=0,
        properties_removed=(CAUSE_PROPERTY, EXPIRATION_PROPERTY, DELIVERY_MODE_PROPERTY),
    )


def _raise_first(errors: Sequence[ClientError | None]) -> None:
    """Raise the first of ``errors`` that is not None."""
    for error in errors:
        if error is not None:
            raise error


async def takes(selector: Selector, message: Message, pace: Pace) -> bool:
    """Return whether the selector matches. An expensive selector runs in a turn of the loop that all callers share."""
    if selector.is_cheap and not pace.is_full(1 + message.size // WEIGHED_BYTES):
        return selector.matches(message)

    def ask() -> Work[bool]:
        return selector.matches(message)
        yield

    return await Slices(asyncio.get_running_loop()).run(ask())
