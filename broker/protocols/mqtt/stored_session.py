"""Stored session: its own record, and those of its subscriptions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tandemmq.broker.core.commands import Ack, Begin, ClientError, Command, Commit, RemoveDestination, Send, Unsubscribe
from tandemmq.broker.protocols.mqtt.conversation import Conversation, Waiting, ignore, nothing
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

# So many deliveries at most are kept by one transaction. A record may hold a message (deliver.OWN_BYTES_MAX).
GATHERED_MAX: Final = 64


@dataclass(slots=True, eq=False, repr=False)
class Position:
    """Position of a subscription in the retained messages that it is owed: those of the topics after ``after`` ("": of
    all), in the order of topics, that are not newer than ``until`` (None: than what there is when they begin to be
    given). Newer ones come by the subscription itself."""

    after: str = ""
    until: int | None = None


@dataclass(slots=True, eq=False, repr=False)
class Subscription:
    """Topic filter of a client. ``id`` names it to the engine and is never given twice. ``share``: group and filter of
    a shared one. ``durable_name``: the durable subscription that gathers for it while its client is away. ``record``:
    what is kept of it. ``owed``: retained messages that are not acknowledged; ``owes_retained``: the record says that
    there are some, and ``position`` which. ``is_begun``: the engine got its Subscribe, and did not refuse. ``unsure``:
    so many of the next messages of a destination may have been sent by a former master. ``shuns_dollar``: it begins
    with a wildcard, and so means no topic that begins with $ (MQTT-4.7.2-1)."""

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
    shuns_dollar: bool = field(init=False)

    def __post_init__(self) -> None:
        self.shuns_dollar = self.pattern[:1] in ("#", "+")

    @property
    def pattern(self) -> str:
        """Topic filter without the group of a shared subscription."""
        return self.filter.topic_filter if self.share is None else self.share[1]


class StoredSession(KeptRecords):
    """``queue`` None: the session ends with its connection, and nothing is kept."""

    def __init__(self, conversation: Conversation) -> None:
        KeptRecords.__init__(self, conversation)
        self._conversation = conversation
        self._session: Record | None = None
        self._transaction = ""  # of the gathered commands
        self._gathered: list[Command] = []
        self._done: list[Callable[[], object]] = []  # to be called when that is stored
        self._moved: dict[Subscription, None] = {}  # whose positions it moves

    def failed(self, error: ClientError) -> None:
        """Hang up: a record cannot be stored."""
        self._conversation.hang_up(reason_of(error), error.message)

    def cut(self) -> None:
        """End it as KeptRecords does; gathered commands are not carried out."""
        KeptRecords.cut(self)
        self._gathered.clear()
        self._done.clear()

    # ---- what is begun together

    def gather(self, done: Callable[[], object]) -> tuple[str, list[Command]]:
        """Return the transaction for the records of this turn's deliveries, and its commands, to append to. ``done``:
        called once they hold. They are as one for the store, which costs less than one for each, and fail as one
        does."""
        if len(self._done) >= GATHERED_MAX:
            self._conversation.later(*self.gathered())
        if not self._done:
            self._transaction = self._conversation.next_transaction()
            self._conversation.later()
        self._done.append(done)
        return self._transaction, self._gathered

    def gathered(self) -> list[Command]:
        """Return the commands of the gathered transaction."""
        if not self._done:
            return []
        commands, self._gathered = self._gathered, []
        done, self._done = self._done, []
        moved, self._moved = self._moved, {}
        receipt = Waiting(lambda: _call(done), self.failed)
        ends: list[Command] = []  # of the records before; until then the later one counts
        for subscription in moved:
            former = subscription.record
            if former is not None and not subscription.is_left:
                commands.append(Send(self._subscription_message(subscription), self._transaction))
                ends += self.drop(former)  # prove: former-record-ends-last "ends" -> "commands"
        return [Begin(self._transaction), *commands, Commit(self._transaction, receipt), *ends]

    def moved(self, subscription: Subscription) -> None:
        """Note that the subscription's position (``Position``) moved. It is kept with the gathered commands, which
        have begun."""
        self._moved[subscription] = None

    # ---- the session itself

    def session_message(self, expiry: int, will: Will | None, left_at: int = 0) -> Message:
        """Return the record of the session and its owner. It replaces the former one."""
        principal = self._conversation.principal
        body = SessionRecord(expiry, principal.owner, principal.groups, will=will, left_at=left_at).encode()
        message, self._session = self.keep(Kind.SESSION, body)
        return message

    def resume(self, expiry: int, will: Will | None, receipt: Waiting) -> None:
        """Go on with the session that was found, without records that count no more."""
        name = self._conversation.next_transaction()
        self._conversation.later(
            Begin(name),
            *self.sweep(name),
            Send(self.session_message(expiry, will), name),
            Commit(name, receipt),
        )

    def leave(self, expiry: int, will: Will | None, now: int) -> list[Command]:
        """Return the commands that note that the client left in order."""
        former = self._session
        name = self._conversation.next_transaction()
        commands: list[Command] = [Begin(name), Send(self.session_message(expiry, will, now), name)]
        if former is not None and former.tag:
            commands.append(Ack(STATE, former.tag, name))  # prove: session-record-is-replaced-at-once ", name"
        commands.append(Commit(name, Waiting(nothing, ignore)))
        return commands

    def let_go(self) -> None:
        """Leave the session unchanged: the client is another user's."""
        self._conversation.later(Ack(STATE, self._mark_tag))

    def end(self, receipt: Waiting | None = None) -> list[Command]:
        """Return the commands that remove all of the session. ``begin`` may follow."""
        queue, self.queue = self.queue, None
        assert queue is not None, "it was stored"
        self._stale = []
        for kept in self._sent.values():
            kept.then = None
        self._sent.clear()
        self._session = None
        return [Unsubscribe(STATE), RemoveDestination(queue, receipt)]

    # ---- subscriptions

    def keep_subscription(self, subscription: Subscription, done: Callable[[], None] = nothing) -> list[Command]:
        """Return the commands that store the subscription as it is now, in place of its former record. ``done``: called
        once that holds."""
        former = subscription.record
        commands = self.send(self._subscription_message(subscription), Waiting(done, self.failed))
        if former is not None:
            commands += self.drop(former)
        return commands

    def _subscription_message(self, subscription: Subscription) -> Message:
        """Return the message with the subscription's present state: its record from now on."""
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
