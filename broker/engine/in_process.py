"""A client of the engine within the broker: commands go in, answers and deliveries come out, without a socket.

Messages that the broker handles for a user are treated like those of a client: they are checked, stored, synced and
charged to the user.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from types import coroutine
from typing import Any, Final, TypeVar

from tandemmq.broker.core.commands import (
    Ack,
    AckMode,
    Begin,
    ClientError,
    Command,
    Commit,
    Connect,
    Send,
    Subscribe,
    Unsubscribe,
    refusal,
)
from tandemmq.broker.core.memory import Holder
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.slices import Work
from tandemmq.broker.engine.engine import Engine
from tandemmq.store.records.message import Destination, Message
from tandemmq.store.records.transactions import XaTransactionId

#: Time limit for an answer of the engine: beyond it the engine has lost its store.
ANSWER_SECONDS_MAX: Final = 30.0
#: Messages of a browse in one batch, and messages that are decided upon together.
BATCH_MAX: Final = 100
BROWSED: Final = "browsed"

T = TypeVar("T")


class InProcessClient:
    """Connection and its session in one object (broker.core.client.Connection, broker.core.delivery.Session). Runs on
    the loop.

    ``id``: id of the connection. ``peer``: shown as its origin. ``is_bounded``: the code that uses this class limits
    its memory. ``state``: see ``Engine.opened_for``. The method ``closed`` of the engine ends it. Raises ClientError if
    the engine refuses a command.
    """

    survives_errors: Final = True
    can_pull: Final = True
    is_writable: Final = True
    certificate: Final = None
    has_hung_up: Final = False

    def __init__(
        self,
        engine: Engine,
        principal: Principal,
        id: str,
        peer: str,
        *,
        is_bounded: bool = False,
        state: Destination | None = None,
    ) -> None:
        self.client: Any = None  # the engine's slot
        self.is_held = False
        self.holder = Holder(engine.memory, is_bounded=is_bounded)
        self.id = id
        self.peer = peer
        self._engine = engine
        self._waiting: dict[Hashable, asyncio.Future[ClientError | None]] = {}
        self._receipts = itertools.count(1)
        self._is_shown: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._shown: list[Message] = []
        self._tag = 0  # of the last message shown
        self._has_browsed = False
        if state is None:
            engine.opened_as(self, principal)
        else:
            engine.opened_for(self, principal, state)

    def __repr__(self) -> str:
        return f"<{self.peer}>"

    @property
    def session(self) -> InProcessClient:
        """The client itself; an attribute would be a cycle that keeps it in memory."""
        return self

    # ---- commands

    async def do(self, command: Command) -> None:
        """Carry out a command. Return when it is complete, and durable if it stores anything. The receipt of the
        command is set here."""
        _raise_of(await self.do_all([command]))

    async def enter(self, command: Connect) -> None:
        """Take a client id; see ``Engine.enter``. Return when the client has it."""
        _raise_of(await self._ask([command], self._engine.enter))

    async def do_all(self, commands: Sequence[Command]) -> list[ClientError | None]:
        """Carry out many commands together. Return for each the reason why it was refused, or None."""
        return await self._ask(commands, self._engine.handle)

    async def send_all(self, messages: Sequence[Message]) -> None:
        """Send the messages in one transaction. Return when they are durable. ClientError: none were sent."""
        if messages:
            _raise_of(await self.do_all([Begin("all"), *(Send(each, "all") for each in messages), Commit("all")]))

    async def _ask(
        self, commands: Sequence[Command], ask: Callable[[InProcessClient, Any], None]
    ) -> list[ClientError | None]:
        waiting: list[asyncio.Future[ClientError | None]] = []
        for command in commands:
            receipt = next(self._receipts)
            command.receipt = receipt  # type: ignore[attr-defined]
            done: asyncio.Future[ClientError | None] = asyncio.get_running_loop().create_future()
            self._waiting[receipt] = done
            waiting.append(done)
            ask(self, command)
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await asyncio.gather(*waiting)
        except TimeoutError:
            raise _silence() from None
        finally:
            for command in commands:
                self._waiting.pop(command.receipt, None)  # type: ignore[attr-defined]

    async def browse(self, destination: Destination) -> AsyncGenerator[list[Message], None]:
        """Yield the messages of a queue, BATCH_MAX at a time. Consumers still get these messages. A caller that does
        not read to the end must close the generator."""
        self._begin_batch()
        self._has_browsed = False
        browser = Subscribe(BROWSED, destination, AckMode.RANGE, prefetch=BATCH_MAX, is_browser=True)
        try:
            await self.do(browser)  # all may have been shown by then
            while True:
                if not self._has_browsed and len(self._shown) < BATCH_MAX:
                    await self.await_answer(self._is_shown)
                shown, tag = self._shown, self._tag
                self._begin_batch()
                yield shown
                if self._has_browsed:
                    return
                self._engine.handle(self, Ack(BROWSED, tag, first=0))  # room for the next
        finally:
            if self.client is not None and BROWSED in self.client.subscriptions:
                self._engine.handle(self, Unsubscribe(BROWSED))

    def _begin_batch(self) -> None:
        self._shown = []
        self._is_shown = asyncio.get_running_loop().create_future()

    async def await_answer(self, answer: asyncio.Future[T]) -> T:
        """Return the result of ``answer``, which is expected soon. ClientError after ANSWER_SECONDS_MAX."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await answer
        except TimeoutError:
            raise _silence() from None

    def awaited(self) -> list[asyncio.Future[Any]]:
        """Return the futures that a caller may wait for."""
        return [*self._waiting.values(), self._is_shown]

    # ---- broker.core.client.Connection

    def touch(self) -> None:
        """Do nothing: there is no socket that could be idle."""

    def close(self, after_flush: bool = True) -> None:
        """Fail all waiting callers: the engine disconnects."""
        error = refusal(f"The broker ended the commands of {self.peer}")
        for each in self.awaited():
            if not each.done():
                each.set_exception(error)
                each.exception()  # no caller need wait for it

    def await_hang_up(self) -> None: ...

    def await_login(self) -> None: ...

    def stop_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    # ---- broker.core.delivery.Session

    def receipt(self, receipt: Any) -> None:
        tell(self._waiting.get(receipt), None)

    def deliver(
        self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode
    ) -> Callable[[], None] | None:
        assert subscription_id == BROWSED, "a client with other subscriptions overrides this method"
        self._shown.append(message)
        self._tag = tag
        if len(self._shown) == BATCH_MAX:
            tell(self._is_shown, None)
        return None

    def nothing(self, subscription_id: str) -> None:
        if subscription_id == BROWSED:
            self._has_browsed = True
            tell(self._is_shown, None)

    def fail(self, error: ClientError) -> None:
        tell(self._waiting.get(error.receipt), error)

    def connected(self, command: Connect, session_id: str, user: str | None = None) -> None:
        """Complete a login, or ``enter``."""
        tell(self._waiting.get(command.receipt), None)

    def tell_prefetch(self, subscription_id: str, prefetch: int) -> None: ...

    def close_consumer(self, subscription_id: str, error: ClientError) -> None:
        self.close()

    def prepared(self, receipt: Any, is_read_only: bool) -> None: ...

    def recovered(self, receipt: Any, branches: Sequence[XaTransactionId]) -> None: ...

    def drop_prepared(self) -> None: ...


def tell(waiting: asyncio.Future[T] | None, outcome: T) -> None:
    """Set the result of ``waiting``, if a caller still waits for it."""
    if waiting is not None and not waiting.done():
        waiting.set_result(outcome)


def _silence() -> ClientError:
    return refusal(f"The broker gave no answer in {ANSWER_SECONDS_MAX:.0f} s")


def _raise_of(answers: list[ClientError | None]) -> None:
    """Raise the first error, if any. It is popped: its traceback holds this frame, and would keep both in memory."""
    while answers:
        if answers[0] is not None:
            raise answers.pop(0)  # type: ignore[misc]
        del answers[0]


@coroutine  # a step yields None to the loop, as asyncio.sleep(0) does
def in_turns(work: Work[T]) -> Work[T]:
    """Await this: carry out ``work`` and return its result. Each of its steps has a turn of the loop."""
    return (yield from work)
