"""Stored session: the record of the session, and the records of its subscriptions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tandemmq.broker.core.commands import Ack, Begin, ClientError, Command, Commit, RemoveDestination, Send, Unsubscribe
from tandemmq.broker.protocols.mqtt.conversation import Conversation, Receipt, ignore, nothing
from tandemmq.broker.protocols.mqtt.packets import Filter, Will
from tandemmq.broker.protocols.mqtt.reason_codes import reason_of
from tandemmq.broker.protocols.mqtt.session_records import (
    STATE,
    KeptRecords,
    Kind,
    Record,
    SessionRecord,
    SubscriptionRecord,
)
from tandemmq.store.records.message import Message

# Maximum number of deliveries whose records are stored in one transaction. A record may contain a message
# (deliver.OWN_BYTES_MAX).
GATHERED_MAX: Final = 64


@dataclass(slots=True, eq=False, repr=False)
class Position:
    """Retained messages that a subscription must still get: those of the topics after ``after`` ("": of all topics), in
    the order of topics, that are not newer than the number ``until`` (None: it is set when their delivery begins).
    Newer messages arrive through the subscription itself."""

    after: str = ""
    until: int | None = None


@dataclass(slots=True, eq=False, repr=False)
class Subscription:
    """Subscription of a client to one topic filter.

    ``id``: its id at the engine, never used twice. ``share``: group and filter of a shared subscription.
    ``durable_name``: the durable subscription that collects its messages while its client is away. ``record``: its
    stored record. ``owed``: number of retained messages that are not acknowledged. ``owes_retained``: the record states
    that retained messages are missing; ``position``: which ones. ``is_begun``: the engine received Subscribe, and has
    not refused it. ``unsure``: by destination, how many of the next messages a former master may have sent already.
    ``own_before``: number of messages with RETAIN that the client itself published on this connection before it
    subscribed; 0 if it gets no retained messages (``RetainedDelivery.is_earlier``).
    ``excludes_dollar``: the filter begins with a wildcard, so it does not match topics that begin with $
    (MQTT-4.7.2-1)."""

    id: str
    filter: Filter
    share: tuple[str, str] | None
    durable_name: str | None
    subscription_id: int | None
    is_auto: bool
    is_begun: bool = False
    is_left: bool = False
    record: Record | None = None
    owed: int = 0
    owes_retained: bool = False
    position: Position | None = None
    unsure: dict[str, int] = field(default_factory=dict)
    own_before: int = 0
    excludes_dollar: bool = field(init=False)

    def __post_init__(self) -> None:
        self.excludes_dollar = self.pattern[:1] in ("#", "+")

    @property
    def pattern(self) -> str:
        """Topic filter without the group of a shared subscription."""
        return self.filter.topic_filter if self.share is None else self.share[1]


class StoredSession(KeptRecords):
    """Records of one session. ``queue`` None: the session ends with its connection, and no records are stored."""

    def __init__(self, conversation: Conversation) -> None:
        KeptRecords.__init__(self, conversation)
        self._conversation = conversation
        self._session: Record | None = None
        self._transaction = ""  # transaction of the gathered commands
        self._gathered: list[Command] = []
        self._done: list[Callable[[], object]] = []  # called when the transaction is stored
        self._moved: dict[Subscription, None] = {}  # subscriptions whose positions the transaction moves

    def failed(self, error: ClientError) -> None:
        """End the connection: a record cannot be stored."""
        self._conversation.hang_up(reason_of(error), error.message)

    def cut(self) -> None:
        """Stop like ``KeptRecords.cut``, and drop the gathered commands."""
        KeptRecords.cut(self)
        self._gathered.clear()
        self._done.clear()

    # ---- records of one transaction

    def gather(self, done: Callable[[], object]) -> tuple[str, list[Command]]:
        """Return the name of the transaction for the records of this turn's deliveries, and its list of commands;
        append commands to the list. ``done`` is called when the transaction is durable. One transaction for all records
        costs less than one for each. If it fails, all records fail."""
        if len(self._done) >= GATHERED_MAX:
            self._conversation.later(*self.gathered())
        if not self._done:
            self._transaction = self._conversation.next_transaction()
            self._conversation.later()
        self._done.append(done)
        return self._transaction, self._gathered

    def gathered(self) -> list[Command]:
        """Return the commands of the gathered transaction, with its begin and commit, and begin a new one."""
        if not self._done:
            return []
        commands, self._gathered = self._gathered, []
        done, self._done = self._done, []
        moved, self._moved = self._moved, {}
        receipt = Receipt(lambda: _call(done), self.failed)
        ends: list[Command] = []  # remove the former records; until then the later record counts
        for subscription in moved:
            former = subscription.record
            if former is not None and not subscription.is_left:
                commands.append(Send(self._subscription_message(subscription), self._transaction))
                ends += self.drop(former)  # prove: former-record-ends-last "ends" -> "commands"
        return [Begin(self._transaction), *commands, Commit(self._transaction, receipt), *ends]

    def moved(self, subscription: Subscription) -> None:
        """Note that the subscription's position moved. The gathered transaction, which must have begun, stores it."""
        self._moved[subscription] = None

    # ---- the session itself

    def session_message(self, expiry: int, will: Will | None, left_at: int = 0) -> Message:
        """Return the message with a new record of the session, which replaces the former one."""
        principal = self._conversation.principal
        body = SessionRecord(expiry, principal.owner, principal.groups, will=will, left_at=left_at).encode()
        message, self._session = self.keep(Kind.SESSION, body)
        return message

    def resume(self, expiry: int, will: Will | None, receipt: Receipt) -> None:
        """Store a new record of the session that is resumed, and remove obsolete records."""
        name = self._conversation.next_transaction()
        self._conversation.later(
            Begin(name),
            *self.sweep(name),
            Send(self.session_message(expiry, will), name),
            Commit(name, receipt),
        )

    def leave(self, expiry: int, will: Will | None, now: int) -> list[Command]:
        """Return the commands that store that the client left with DISCONNECT."""
        former = self._session
        name = self._conversation.next_transaction()
        commands: list[Command] = [Begin(name), Send(self.session_message(expiry, will, now), name)]
        if former is not None and former.tag:
            commands.append(Ack(STATE, former.tag, name))  # prove: session-record-is-replaced-at-once ", name"
        commands.append(Commit(name, Receipt(nothing, ignore)))
        return commands

    def let_go(self) -> None:
        """Leave the stored session unchanged: it belongs to another user."""
        self._conversation.later(Ack(STATE, self._mark_tag))

    def end(self, receipt: Receipt | None = None) -> list[Command]:
        """Return the commands that remove all records of the session. ``begin`` may be called afterwards."""
        queue, self.queue = self.queue, None
        assert queue is not None, "a session that is removed was stored"
        self._stale = []
        for kept in self._sent.values():
            kept.then = None
        self._sent.clear()
        self._session = None
        return [Unsubscribe(STATE), RemoveDestination(queue, receipt)]

    # ---- subscriptions

    def keep_subscription(self, subscription: Subscription, done: Callable[[], None] = nothing) -> list[Command]:
        """Return the commands that replace the subscription's record by its present state. ``done`` is called when this
        is durable."""
        former = subscription.record
        commands = self.send(self._subscription_message(subscription), Receipt(done, self.failed))
        if former is not None:
            commands += self.drop(former)
        return commands

    def _subscription_message(self, subscription: Subscription) -> Message:
        """Return the message with a new record of the subscription's present state."""
        kept = SubscriptionRecord(
            subscription.filter, subscription.durable_name, subscription.subscription_id, subscription.owes_retained
        )
        if subscription.owes_retained and subscription.position is not None:
            kept.after, kept.until = subscription.position.after, subscription.position.until
        message, subscription.record = self.keep(Kind.SUBSCRIPTION, kept.encode())
        return message


def _call(all_of: Iterable[Callable[[], object]]) -> None:
    for each in all_of:
        each()
