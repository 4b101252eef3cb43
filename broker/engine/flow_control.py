"""Flow control: handle a message that would exceed a limit now.

The message waits, and so does its sender: a client that waits for an answer (RECEIPT, Response, ProducerAck) does not
get it yet, and a client that sends on without an answer is not read any more once too many of its commands wait.
Everything else on that connection continues, because acknowledgements free space. A policy may have the send fail at
once instead, or after a time (``send_fail_if_no_space``, ``send_fail_if_no_space_after_timeout``); without
``producer_flow_control`` it always fails at once.

Each limit has one line of waiting commands, which are carried out in the order of their arrival; no command overtakes
another that waits for the same limit. The lines are checked again every few milliseconds, because space becomes free in
many parts of the broker, and these need not report it.

When a client disconnects, its DISCONNECT waits for the messages that it sent before. When the connection is lost, a
command that has to be answered is dropped (the client sends it again), and any other is kept.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from tandemmq import log_events
from tandemmq.broker.core import names
from tandemmq.broker.core.advisor import FastProducerFact, FullFact
from tandemmq.broker.core.client import Client
from tandemmq.broker.core.commands import ClientError, ErrorKind, Send, refusal
from tandemmq.broker.core.containment import hang_up
from tandemmq.broker.core.memory import ENTRY_OVERHEAD_BYTES, Kind
from tandemmq.broker.core.slices import Pace, Work, is_done
from tandemmq.broker.engine.advisories import Advising, name_of
from tandemmq.broker.engine.clients import Clients
from tandemmq.broker.engine.limits import Line, MustWait, Waits
from tandemmq.broker.engine.part import Part, Shared, Timer
from tandemmq.broker.engine.publish import Sender
from tandemmq.broker.engine.transactions import Transactions
from tandemmq.store.records.message import Destination

log = logging.getLogger(__name__)

#: Maximum number of waiting producers that are named.
NAMED_MAX = 100

# Maximum number and size of the waiting commands of one connection: above it the connection is not read any more; and
# the maximum size for all connections: above it a send fails.
SENDS_MAX = 1000
BYTES_MAX = 1 << 20
BYTES_MAX_OF_ALL = 64 << 20
# Interval of the checks for room, and its maximum: it grows while there is no room.
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.005, 0.1

# Cost of one command that waited, or of a check without room, in items of a step.
_DONE = 8


@dataclass(slots=True, eq=False, repr=False)
class _Held:
    """A command that waits. ``deadline``: the time when it fails (0: never). ``committing``: the bytes of the
    transaction that it ends. ``goes_to``: all destinations that get a message from it, if there may be several."""

    client: Client
    command: Waits
    reason: MustWait
    since: int
    deadline: int
    weight: int
    committing: int
    goes_to: frozenset[Destination]
    is_gone: bool = False


@dataclass(slots=True, eq=False, repr=False)
class _Blocked:
    """A client with a waiting command, and the time of its last warning."""

    since: int
    warned: int
    held: dict[_Held, None] = field(default_factory=dict)
    composites: int = 0  # number of those that go to several destinations
    weight: int = 0
    is_unread: bool = False
    on_sent: Callable[[None], None] | None = None


class FlowControl(Part):
    """Holds the waiting commands, and carries them out in order, in steps, when there is space. ``carry_out`` carries
    out one; it returns the reason if the command has to wait again, or None if it is done."""

    def __init__(
        self,
        shared: Shared,
        sender: Sender,
        transactions: Transactions,
        clients: Clients,
        advising: Advising,
        carry_out: Callable[[Client, Waits], Work[MustWait | None]],
    ) -> None:
        super().__init__(shared)
        # True while any command waits: read directly, for each message.
        self.is_holding = False
        self.delayed = 0
        self.failed = 0
        self._advising = advising
        self._sender = sender
        self._transactions = transactions
        self._clients = clients
        self._carry_out = carry_out
        self._lines: dict[Line, deque[_Held]] = {}
        self._since: dict[Line, int] = {}
        self._blocked: dict[Client, _Blocked] = {}
        self._weight = 0
        self._next_deadline = 0
        self._is_retrying = False
        self._retry_seconds = RETRY_SECONDS_MIN
        self._retry_timer = Timer(shared.loop.call_later, lambda: self.retry(self._clock()))

    # ---- waiting

    def hold(self, client: Client, command: Waits, reason: MustWait) -> bool:
        """Let ``command`` wait, which exceeds a limit. Return False if it fails instead, with an error for its
        client."""
        policy = self._policies.of(reason.destination)
        if not policy.producer_flow_control or policy.send_fail_if_no_space:
            return False
        weight = command.message.size + ENTRY_OVERHEAD_BYTES if isinstance(command, Send) else 0
        if self._weight + weight > BYTES_MAX_OF_ALL:
            return False
        now = self._clock()
        timeout = policy.send_fail_if_no_space_after_timeout
        deadline = 0 if timeout is None else now + timeout
        committing = 0 if isinstance(command, Send) else self._transactions.held(client, command.transaction)
        held = _Held(client, command, reason, now, deadline, weight, committing, self._goes_to(client, command))
        if held.deadline and (not self._next_deadline or held.deadline < self._next_deadline):
            self._next_deadline = held.deadline
        self._enqueue(held)
        self._weight += weight
        self._memory.committing += committing
        client.holder.add(Kind.WAITING_SENDS, weight)
        self.delayed += 1
        self.is_holding = True
        blocked = self._blocked.get(client)
        is_first = blocked is None
        if blocked is None:
            blocked = self._blocked[client] = _Blocked(now, now)
        blocked.held[held] = None
        blocked.composites += len(held.goes_to) > 1
        blocked.weight += weight
        if is_first:
            if policy.blocked_producer_warning_interval:
                self._warn(client, blocked)
            self._publish_fast(client, reason)
        if (len(blocked.held) >= SENDS_MAX or blocked.weight >= BYTES_MAX) and not blocked.is_unread:
            blocked.is_unread = True
            client.stop_reading()
        self._retry_timer.set(self._retry_seconds)
        return True

    def follow(self, client: Client, command: Waits) -> bool:
        """Let ``command`` wait if it would overtake a command that waits for the same limit. Return whether it waits.
        Called while ``is_holding``."""
        ahead = self._ahead(client, command)
        if ahead is None:
            return False
        reason = ahead.reason
        if isinstance(command, Send):
            reason = replace(reason, destination=command.message.destination, count=1)
        return self.hold(client, command, reason)

    def _goes_to(self, client: Client, command: Waits) -> frozenset[Destination]:
        """Return the destinations where a message becomes visible by ``command``."""
        if not isinstance(command, Send):
            return self._transactions.goes_to(client, command.transaction)
        return frozenset(names.split(command.message.destination) if command.transaction is None else ())

    def _lines_of(self, client: Client, command: Waits) -> set[Line]:
        """Return the limits that ``command`` has to pass."""
        if isinstance(command, Send):
            return self._sender.lines_of(client, command.message)
        return self._transactions.lines_of(client, command.transaction)

    def _ahead(self, client: Client, command: Waits) -> _Held | None:
        blocked = self._blocked.get(client)
        if command.transaction is not None:
            for held in reversed([*blocked.held] if blocked is not None else []):
                if held.command.transaction == command.transaction:
                    return held
            if isinstance(command, Send):
                return None  # it becomes visible at the end of its transaction
        mine = None if blocked is None else self._mine_ahead(blocked, self._goes_to(client, command))
        if mine is not None:
            return mine
        # A line of a single destination comes first: all commands for that destination wait in it.
        for line in sorted(self._lines_of(client, command), key=lambda line: line[1] is None):
            if self._lines.get(line):
                return self._lines[line][-1]
        return None

    def _mine_ahead(
        self, blocked: _Blocked, goes_to: frozenset[Destination], until: _Held | None = None
    ) -> _Held | None:
        """Return the last waiting command of the same client that goes to one of ``goes_to``, if it or the new one has
        several destinations. The lines alone do not keep these in order, because each command waits in one line
        only."""
        if not blocked.composites and len(goes_to) <= 1:
            return None
        found = None
        for held in blocked.held:
            if held is until:
                break
            if (len(held.goes_to) > 1 or len(goes_to) > 1) and held.goes_to & goes_to:
                found = held
        return found

    def holds(self, client: Client, command: Waits) -> bool:
        """Return whether ``command`` still waits."""
        blocked = self._blocked.get(client)
        return blocked is not None and any(held.command is command for held in blocked.held)

    def holds_any_of(self, client: Client) -> bool:
        """Return whether a command of ``client`` waits."""
        return client in self._blocked

    def call_when_sent(self, client: Client, then: Callable[[None], None]) -> None:
        """Call ``then`` when no command of ``client`` waits any more, unless the client disconnects. Only for a client
        with a waiting command."""
        self._blocked[client].on_sent = then

    def rename(self, client: Client, transaction: str, other: str) -> None:
        """Rename a transaction in the commands that wait."""
        for held in self._blocked[client].held:
            if held.command.transaction == transaction:
                held.command.transaction = other

    def release(self, client: Client, transaction: str) -> None:
        """Drop the waiting commands of a transaction that is rolled back."""
        blocked = self._blocked.get(client)
        for held in [] if blocked is None else list(blocked.held):
            if held.command.transaction == transaction:
                self._end(held)
                client.send_receipt(held.command.receipt)

    def left(self, client: Client) -> None:
        """Drop the waiting commands that a client sends again after its connection is lost; keep the others."""
        blocked = self._blocked.get(client)
        if blocked is None:
            return
        blocked.on_sent = None
        for held in list(blocked.held):
            if held.command.transaction is not None or held.command.receipt is not None:
                self._end(held)

    def end(self) -> None:
        """End the term: all connections are over, and no waiting command is carried out."""
        self._lines.clear()
        self._since.clear()
        self._blocked.clear()
        self._weight = 0
        self._memory.committing = 0
        self.is_holding = False

    # ---- room again

    def retry(self, now: int) -> None:
        """Carry out, in steps, the waiting commands for which there is room; those that waited too long fail."""
        if self.is_holding and not self._is_retrying:
            work = self._retry(now)
            if not is_done(work):
                self._start(work)

    def _retry(self, now: int) -> Work[None]:
        pace = Pace()
        self._is_retrying = True
        try:
            if self._next_deadline and self._next_deadline <= now:
                yield from self._expire(now, pace)
            is_moving = False
            for line in list(self._lines):
                is_moving |= yield from self._move(line, pace)
        finally:
            self._is_retrying = False
        self._retry_seconds = RETRY_SECONDS_MIN if is_moving else min(self._retry_seconds * 2, RETRY_SECONDS_MAX)
        if self.is_holding:
            self._retry_timer.set(self._retry_seconds)

    def _move(self, line: Line, pace: Pace) -> Work[bool]:
        is_moving = False
        while waiting := self._lines.get(line):
            if pace.is_full(_DONE):
                yield
                continue
            held = waiting[0]
            if not held.is_gone:
                try:
                    if self._is_in_other_line(held, line):
                        continue
                    reason = yield from self._carry_out(held.client, held.command)
                    if reason is not None:
                        if reason.line == line:
                            return is_moving
                        self._change_line(held, line, reason)
                        continue
                except ClientError as error:
                    self._fail(held, error)
                except Exception:  # it must not block all others forever
                    hang_up(held.client.connection)
                is_moving = True
                self._end(held)
            if waiting and waiting[0] is held:
                waiting.popleft()
        if line in self._lines and not self._lines[line]:
            del self._lines[line]
            del self._since[line]
        self.is_holding = bool(self._lines)
        return is_moving

    def _is_in_other_line(self, held: _Held, line: Line) -> bool:
        """Return whether ``held`` moved to the end of another line, because one of its destinations now has its own
        line or an earlier command of its client waits there. So messages of one destination stay in order."""
        blocked = self._blocked[held.client]
        mine = self._mine_ahead(blocked, held.goes_to, held)
        if mine is not None and mine.reason.line != line:
            self._change_line(held, line, mine.reason)
            return True
        if (
            len(self._lines) == 1
            or line[1] is not None
            or (isinstance(held.command, Send) and held.command.transaction is not None)
        ):
            return False
        for other in self._lines_of(held.client, held.command):
            if other[1] is not None and other in self._lines:
                self._change_line(held, line, self._lines[other][-1].reason)
                return True
        return False

    def _change_line(self, held: _Held, line: Line, reason: MustWait) -> None:
        self._lines[line].popleft()
        held.reason = reason
        self._enqueue(held)

    def _enqueue(self, held: _Held) -> None:
        """Put ``held`` at the end of the line of its limit."""
        line = held.reason.line
        if line not in self._lines:
            self._lines[line] = deque()
            self._since[line] = self._clock()
            self._publish_full(held.reason)
        self._lines[line].append(held)

    def _expire(self, now: int, pace: Pace) -> Work[None]:
        self._next_deadline = 0
        late: list[_Held] = []
        for blocked in list(self._blocked.values()):
            if pace.is_full(1 + len(blocked.held) // 8):
                yield
            for held in blocked.held:
                if held.deadline and held.deadline <= now:
                    late.append(held)
                elif held.deadline and (not self._next_deadline or held.deadline < self._next_deadline):
                    self._next_deadline = held.deadline
        for held in late:
            if pace.is_full(_DONE):
                yield
            if held.is_gone:
                continue
            since = _time(self._since.get(held.reason.line, held.since))
            error = refusal(
                f"{held.reason.reason}: no room since {since}, waited for {now - held.since} ms "
                "(send_fail_if_no_space_after_timeout)",
                held.reason.advice,
                ErrorKind.RESOURCE,
            )
            try:
                self._fail(held, self._transactions.given_up(held.client, held.command, error))
            except Exception:
                hang_up(held.client.connection)
            self._end(held)

    def _fail(self, held: _Held, error: ClientError) -> None:
        self.failed += 1
        if held.client.is_open:
            self._clients.refuse(held.client, held.command, error)

    def _end(self, held: _Held) -> None:
        """End the wait of ``held``. It leaves its line when its turn comes."""
        if held.is_gone:
            return
        held.is_gone = True
        self._weight -= held.weight
        self._memory.committing -= held.committing
        client = held.client
        client.holder.add(Kind.WAITING_SENDS, -held.weight)
        blocked = self._blocked[client]
        del blocked.held[held]
        blocked.composites -= len(held.goes_to) > 1
        blocked.weight -= held.weight
        if blocked.is_unread and len(blocked.held) <= SENDS_MAX // 2 and blocked.weight <= BYTES_MAX // 2:
            blocked.is_unread = False
            if client.is_open:
                client.resume_reading()
        if not blocked.held:
            del self._blocked[client]
            if blocked.on_sent is not None:
                blocked.on_sent(None)

    # ---- warnings and figures

    def tick(self, now: int) -> None:
        """Warn, once a second, of producers that still wait, at the interval of the policy."""
        self.retry(now)
        for client, blocked in self._blocked.items():
            interval = self._policies.of(_first(blocked).reason.destination).blocked_producer_warning_interval
            if interval and now - blocked.warned >= interval:
                blocked.warned = now
                self._warn(client, blocked)

    def _warn(self, client: Client, blocked: _Blocked) -> None:
        log.warning("%s", sentence(self._figures(client, blocked)), extra=log_events.PRODUCER_BLOCKED)

    def _publish_full(self, reason: MustWait) -> None:
        destination = reason.destination
        if self._advising.has_listeners and self._policies.of(destination).advisory_when_full:
            self._advising.tell(FullFact(destination, reason.limit, reason.used))

    def _publish_fast(self, client: Client, reason: MustWait) -> None:
        destination = reason.destination
        if self._advising.has_listeners and self._policies.of(destination).advisory_when_full:
            id = next((id for id, named in client.producers.items() if named == destination), "-1:-1")
            self._advising.tell(FastProducerFact(name_of(client), id, destination))

    def blocked(self, most: int = NAMED_MAX) -> list[dict[str, Any]]:
        """Return the first ``most`` waiting clients: their limit, its owner, and since when. ``counts`` counts all."""
        return [self._figures(client, blocked) for client, blocked in islice(self._blocked.items(), most)]

    def _figures(self, client: Client, blocked: _Blocked) -> dict[str, Any]:
        reason = _first(blocked).reason
        return {
            "producer": name_of(client),
            "client_id": client.id,
            "peer": client.connection.peer,
            "destination": str(reason.destination),
            "limit": reason.limit,
            "of": "the broker" if reason.of is None else str(reason.of),
            "reason": reason.reason,
            "since": _time(blocked.since),
            "limit_reached_since": _time(self._since[reason.line]),
            "sends": len(blocked.held),
            "bytes": blocked.weight,
            "is_read": not blocked.is_unread,
        }

    @property
    def counts(self) -> dict[str, int]:
        return {
            "blocked_producers": len(self._blocked),
            "sends_waiting": sum(len(blocked.held) for blocked in self._blocked.values()),
            "sends_waiting_bytes": self._weight,
            "sends_delayed_total": self.delayed,
            "sends_delayed_failed_total": self.failed,
        }


def sentence(figures: dict[str, Any]) -> str:
    """Return an entry of ``FlowControl.blocked`` as a sentence."""
    return (
        f"producer {figures['producer']} ({figures['peer']}) has waited since {figures['since']} to send to "
        f"{figures['destination']}: {figures['reason']} ({figures['limit']} of {figures['of']}, reached since "
        f"{figures['limit_reached_since']}; {figures['sends']} sends wait)"
    )


def _first(blocked: _Blocked) -> _Held:
    return next(iter(blocked.held))


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
