"""Transactions of an AMQP connection (AMQP 1.0, part 4). Pure.

    declare      Begin                 discharge    Commit; or Abort
    transfer     Send                  disposition  accepted: Ack; any other outcome: after the commit

The engine commits messages and accepted deliveries atomically. It supports no other outcome in a transaction: such a
delivery stays unacknowledged in the engine until the commit, and gets its outcome after it. If the broker ends between
the two, the message is redelivered.

After a rollback, deliveries that the client settled count as failed and return to their destination; those that it did
not settle stay with the client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from tandemmq.broker.core.commands import Ack, ClientError, Command, ErrorKind, GiveBack, Hold, ProtocolFailure, refusal
from tandemmq.broker.protocols.amqp.errors import UNKNOWN_TRANSACTION, AmqpError, Scope
from tandemmq.broker.protocols.amqp.links import Callbacks, InLink, OutLink, command_of, do_nothing, rejection_text
from tandemmq.broker.protocols.amqp.schema import Accepted, Composite, TransactionalState

# Limit of deliveries with an outcome in one transaction.
RETIRED_MAX: Final = 10_000
# Memory of a run of deliveries with an outcome, of a delivery id, and of a character of the reason.
_RETIRED_BYTES: Final = 400
_DELIVERY_ID_BYTES: Final = 40
_CHARACTER_BYTES: Final = 4
# Memory for outcomes that a connection reserves at once.
_HELD_BYTES: Final = 64 * 1024
_ID_BYTES: Final = 8


class Run:
    """Deliveries of a link, with all tags from ``first`` to ``last``. ``ids``: their delivery ids, in the same order;
    empty after the client has settled them."""

    __slots__ = ("first", "ids", "last", "link")

    def __init__(self, link: OutLink, tag: int, id: int) -> None:
        self.link = link
        self.first = self.last = tag
        self.ids = [id]


class Deliveries(Protocol):
    """Deliveries of a session to its client, as a transaction uses them."""

    def resume(self, run: Run) -> None:
        """Make deliveries unsettled again, without an outcome."""

    def settle(self, run: Run, state: Any) -> None:
        """Settle deliveries with this outcome."""


class _Retired:
    """Deliveries with an outcome in a transaction. ``run`` has no ids if the client has settled them."""

    __slots__ = ("deliveries", "outcome", "run")

    def __init__(self, deliveries: Deliveries, run: Run, outcome: Any) -> None:
        self.deliveries = deliveries
        self.run = run
        self.outcome = outcome


class Transaction:
    """An open transaction. ``control``: the link that declared it; ``name``: its name in the engine; ``accepted``: the
    state of accepted deliveries. ``has_failed``: an operation was refused, so the transaction can only be rolled back.
    ``outcome_bytes``: memory of its outcomes."""

    __slots__ = ("_all", "_count", "_retired", "accepted", "control", "has_failed", "id", "name", "outcome_bytes")

    def __init__(self, all: Transactions, control: InLink, number: int) -> None:
        self._all = all
        self.outcome_bytes = 0
        self.control = control
        self.name = str(number)
        self.id = number.to_bytes(_ID_BYTES, "big")
        self.accepted = self.state(Accepted())
        self.has_failed = False
        self._retired: list[_Retired] = []
        self._count = 0

    def state(self, outcome: Composite | None) -> TransactionalState:
        """Return the state of a delivery with this outcome in the transaction."""
        return TransactionalState(self.id, outcome)

    def failure(self, reason: str) -> ProtocolFailure:
        """Mark the transaction as failed; return the command that marks it in the engine."""
        self.has_failed = True
        return ProtocolFailure(refusal(reason, kind=ErrorKind.STATE, receipt=self._receipt()), self.name)

    def _receipt(self) -> Callbacks:
        """Return the receipt of a command whose failure the client learns only at the commit."""
        return Callbacks(do_nothing, self._failed)

    def _failed(self, error: ClientError) -> None:
        self.has_failed = True

    def retire(
        self, deliveries: Deliveries, run: Run, outcome: Any, *, is_settled: bool, commands: list[Command]
    ) -> None:
        """Note the outcome that deliveries get at the commit. ``is_settled``: the client has settled them."""
        self._count += len(run.ids)
        if is_settled:
            run.ids.clear()
        if self._count > RETIRED_MAX:
            if not self.has_failed:
                commands.append(self.failure(f"it has outcomes of more than {RETIRED_MAX} deliveries"))
            _give_back(deliveries, run, commands, is_failed=False)
            return
        link = run.link
        if isinstance(outcome, Accepted) and not self.has_failed:
            # The commit fails if the engine no longer has the delivery, because another consumer may get the message.
            count = run.last - run.first + 1
            commands.append(Ack(link.id, run.last, self.name, self._receipt(), first=run.first, count=count))
        last = self._retired[-1] if self._retired else None
        if (
            last is not None
            and is_settled
            and not last.run.ids
            and last.run.link is link
            and last.run.last + 1 == run.first
            and last.outcome == outcome
        ):
            last.run.last = run.last
        else:
            self._retired.append(_Retired(deliveries, run, outcome))
            size = _RETIRED_BYTES + len(run.ids) * _DELIVERY_ID_BYTES + len(rejection_text(outcome)) * _CHARACTER_BYTES
            self.outcome_bytes += size
            self._all.count(size, commands)

    def commit(self) -> list[Command]:
        """Settle the deliveries that the client did not settle, and return the commands for outcomes other than
        accepted. The engine has committed the transaction."""
        commands: list[Command] = []
        for each in self._retired:
            run = each.run
            if run.link.is_over:
                continue  # the end of the link released them
            if not isinstance(each.outcome, Accepted):
                commands.append(command_of(run.link, run.first, run.last, each.outcome, None))
            if run.ids:
                each.deliveries.settle(run, each.outcome)
        return commands

    def roll_back(self) -> list[Command]:
        """Make the deliveries that the client did not settle unsettled again, and return the commands that release the
        others."""
        commands: list[Command] = []
        for each in self._retired:
            _give_back(each.deliveries, each.run, commands, is_failed=True)
        return commands


def _give_back(deliveries: Deliveries, run: Run, commands: list[Command], *, is_failed: bool) -> None:
    if run.link.is_over:
        return  # the end of the link released them
    if run.ids:
        deliveries.resume(run)
    else:
        commands.append(GiveBack(run.link.id, run.first, run.last, is_failed=is_failed))


class Transactions:
    """Open transactions of a connection. The engine limits their number (``transactions_max``). ``refused`` is called
    if there is no memory for their outcomes."""

    __slots__ = ("_bytes", "_held_bytes", "_last", "_open", "_refused")

    def __init__(self, refused: Callable[[ClientError], None]) -> None:
        self._open: dict[bytes, Transaction] = {}
        self._last = 0
        self._refused = refused
        self._bytes = 0  # memory of the outcomes in open transactions
        self._held_bytes = 0  # memory that the engine counts for them

    def declare(self, control: InLink) -> Transaction:
        """Open a transaction."""
        self._last += 1
        found = Transaction(self, control, self._last)
        self._open[found.id] = found
        return found

    def find(self, id: bytes, scope: Scope) -> Transaction:
        """Return an open transaction. Raises AmqpError with this scope."""
        found = self._open.get(id)
        if found is None:
            raise AmqpError(UNKNOWN_TRANSACTION, f"there is no transaction {id[:32].hex()}", scope)
        return found

    def end(self, transaction: Transaction) -> None:
        """Forget a transaction that ends."""
        if self._open.pop(transaction.id, None) is not None:
            self._bytes -= transaction.outcome_bytes

    def count(self, size: int, commands: list[Command]) -> None:
        """Count the memory of outcomes. The engine counts its peak."""
        self._bytes += size
        needed = self._bytes - self._held_bytes
        if needed > 0:
            needed = max(needed, _HELD_BYTES)
            # prove: amqp-outcomes-are-counted "Hold(needed" -> "Hold(0"
            commands.append(Hold(needed, Callbacks(do_nothing, self._refused)))
            self._held_bytes += needed

    def declared_by(self, control: InLink) -> list[Transaction]:
        """Return the open transactions that a link declared."""
        return [each for each in self._open.values() if each.control is control]
