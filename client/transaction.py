"""A transaction: its messages and acknowledgements take effect all together or not at all.

The client keeps the messages of a transaction until its COMMIT is confirmed. If the connection is lost, the client
sends them again on the next connection: without COMMIT, none of them has taken effect. A COMMIT whose receipt was lost
may have taken effect. The client repeats it only if the repetition can do no harm: both brokers are TandemMQ, which
skips messages that it stored before; the transaction has no acknowledgements; and it has no more messages than the
producer audit certainly remembers. Otherwise the caller gets InDoubt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from tandemmq.client.connection import Connection
from tandemmq.client.errors import BrokerError, ClientError, Closed, InDoubt, TransactionLost
from tandemmq.client.frames import frame
from tandemmq.client.link import Link
from tandemmq.client.outbox import Numbering, Outgoing
from tandemmq.client.subscription import Received

# Half of the numbers that TandemMQ remembers of one producer by default (failover_producers_audit_depth).
REPEATED_NUMBERS_MAX = 1024


@dataclass(eq=False)
class Transaction:
    """Made by ``Client.begin``. ``async with`` commits at the end of the block, and aborts when the block raises."""

    _link: Link
    _numbering: Numbering
    _name: str
    _window: int
    _ended: Callable[[Transaction], None]

    def __post_init__(self) -> None:
        self._messages: list[Outgoing] = []
        self._unanswered = 0
        self._begun_on: Connection | None = None
        self._committed_on: Connection | None = None
        self._may_be_done = False  # COMMIT was sent and has no receipt
        self._is_known_there = False  # the broker to which COMMIT was sent knows numbered messages
        self._has_acknowledgements = False
        self._is_over = False
        self._is_lost = False
        self._refusal: BrokerError | None = None

    async def send(self, destination: str, body: bytes | str, headers: Mapping[str, str] | None = None) -> None:
        """Send one persistent message in the transaction.

        Raises TransactionLost, or BrokerError if an earlier message was refused.
        """
        self._check()
        await self._link.wait(self._has_room)
        self._check()
        connection = self._link.connection
        assert connection is not None, "the wait ended with a connection"
        self._begin_on(connection)
        message = self._numbering.message(destination, body, headers)
        self._messages.append(message)
        self._write(connection, message)

    async def acknowledge(self, message: Received) -> bool:
        """Acknowledge a message in the transaction. Return False if its connection is lost: it is redelivered."""
        self._check()
        connection = self._link.connection
        if connection is None or connection.number != message.connection or not self._begin_on(connection):
            return False
        self._has_acknowledgements = True
        connection.write(frame("ACK", {"id": message.headers["ack"], "transaction": self._name}))
        await self._link.wait(lambda: not connection.is_congested or self._link.connection is not connection)
        return True

    async def commit(self) -> None:
        """Commit the transaction. Returns when the whole transaction has taken effect.

        Raises BrokerError or TransactionLost if the transaction had no effect, and InDoubt if the outcome is unknown.
        """
        self._check()
        try:
            while not await self._commit_once():
                pass
        except BaseException as problem:
            # If COMMIT was sent on this connection, the transaction does not exist at the broker any more.
            connection = self._begun_on
            if connection is not None and connection is self._link.connection and self._committed_on is not connection:
                connection.write(frame("ABORT", {"transaction": self._name}))
            if self._may_be_done and isinstance(problem, ClientError) and not isinstance(problem, InDoubt):
                raise self._doubt() from problem
            raise
        finally:
            self._end()

    async def abort(self) -> None:
        """Undo the transaction. Returns when the broker has confirmed this, or when the connection is lost: the loss of
        the connection also undoes the transaction."""
        if self._is_over:
            return
        connection = self._begun_on
        self._end()
        if connection is not None and connection is self._link.connection:
            await self._link.request(connection, "ABORT", {"transaction": self._name})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            if not self._is_over:
                await self.commit()
            return
        try:
            await self.abort()
        except ClientError:
            pass  # the error of the block is raised; without a COMMIT, the transaction has no effect

    # ---- for the client

    def restore(self, connection: Connection) -> int:
        """Repeat the transaction on a new connection. Return the number of messages sent again."""
        if self._has_acknowledgements:
            # Acknowledgements were undone with their connection, and their messages are redelivered.
            self._is_lost = True
            return 0
        if not self._messages:
            return 0
        self._begin_on(connection)
        for message in self._messages:
            self._write(connection, message)
        return len(self._messages)

    # ---- inside

    async def _commit_once(self) -> bool:
        """Send COMMIT on the present connection. Return True if it was confirmed. False: repeat it on the next
        connection."""
        link = self._link
        if self._may_be_done and not self._is_repeatable():
            raise self._doubt()
        connection = await link.connected()
        self._begin_on(connection)
        await link.wait(lambda: self._unanswered == 0 or self._refusal is not None or link.connection is not connection)
        self._check_loss()
        if self._refusal is not None:
            raise self._refusal
        if link.connection is not connection:
            return False
        # Check again: during the waits, other tasks may have sent messages, and the broker may be another one now.
        if self._may_be_done and not (link.is_tandemmq and self._is_repeatable()):
            raise self._doubt()
        return await self._commit_on(connection)

    async def _commit_on(self, connection: Connection) -> bool:
        link = self._link
        answered: list[BrokerError | None] = []
        was_sent_before, self._may_be_done = self._may_be_done, True
        self._is_known_there = link.is_tandemmq
        self._committed_on = connection
        connection.write(link.frame_with_receipt("COMMIT", {"transaction": self._name}, answered.append))
        await link.wait(lambda: bool(answered) or link.connection is not connection)
        if answered and answered[0] is not None:
            self._may_be_done = was_sent_before  # the broker refused this COMMIT, and did nothing
            raise answered[0]
        return bool(answered)

    def _is_repeatable(self) -> bool:
        """Return whether a broker that executed the COMMIT certainly still knows all messages of the transaction, so
        that it ignores them if they are sent again."""
        if self._has_acknowledgements or not self._is_known_there:
            return False
        return not self._messages or self._numbering.last - self._messages[0].number < REPEATED_NUMBERS_MAX

    def _doubt(self) -> InDoubt:
        return InDoubt(
            f"the connection was lost before the receipt of COMMIT: {len(self._messages)} messages"
            f"{' and acknowledgements' if self._has_acknowledgements else ''} are stored all together, or not at all"
        )

    def _begin_on(self, connection: Connection) -> bool:
        """Send BEGIN unless it was sent. Return False if acknowledgements were lost with a former connection."""
        if self._begun_on is not connection:
            if self._has_acknowledgements:
                self._is_lost = True
                return False
            self._begun_on = connection
            self._unanswered = 0
            connection.write(frame("BEGIN", {"transaction": self._name}))
        return True

    def _write(self, connection: Connection, message: Outgoing) -> None:
        def answered(refusal: BrokerError | None) -> None:
            self._unanswered -= 1
            self._refusal = self._refusal or refusal

        self._unanswered += 1
        receipt = self._link.receipt_for(answered).encode()
        transaction = b"transaction:%b\n" % self._name.encode()
        connection.write(
            self._numbering.frame(message, receipt, is_tandemmq=self._link.is_tandemmq, transaction=transaction)
        )

    def _has_room(self) -> bool:
        connection = self._link.connection
        if connection is None:
            return False
        return self._unanswered < self._window and not connection.is_congested

    def _check(self) -> None:
        if self._is_over:
            raise Closed("the transaction is over")
        self._check_loss()
        if self._refusal is not None:
            raise self._refusal

    def _check_loss(self) -> None:
        if self._is_lost or (self._has_acknowledgements and self._begun_on is not self._link.connection):
            raise TransactionLost("the connection was lost; the transaction had no effect")

    def _end(self) -> None:
        self._is_over = True
        self._ended(self)
