"""Retained messages on their way to a client whose subscription began. Pure.

For each a message without content goes through a temporary queue of the connection, a few ahead of what the client
takes: so they are given out and acknowledged as all messages are. In a stored session the subscription's record says
that they are owed until all of them were acknowledged; a client that comes back before gets them anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tandemmq.broker.core.commands import AckMode, AddDestination, Command, Send, Subscribe
from tandemmq.broker.core.slices import ITEMS
from tandemmq.broker.protocols.mqtt.conversation import Conversation, Waiting, nothing
from tandemmq.broker.protocols.mqtt.outgoing import Subscription
from tandemmq.broker.protocols.mqtt.stored_session import StoredSession
from tandemmq.broker.protocols.session import COMMANDS_MAX
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message

#: The id of the subscription to the temporary queue.
INBOX: Final = "inbox"
# So many are in the queue, at most, and were not given to the session.
AHEAD_MAX: Final = 100


class RetainedSending:
    """Of one connection, one subscription after the other."""

    def __init__(self, conversation: Conversation, stored: StoredSession) -> None:
        self._conversation = conversation
        self._stored = stored
        self._inbox = Destination(DestinationKind.TEMP_QUEUE, conversation.inbox_name)
        self._has_inbox = False
        # By id of the message in the queue: for whom, and what.
        self._owed: dict[str, tuple[Subscription, Message]] = {}
        # Whose retained messages are to be sent, and those of the first of them.
        self._waiting: list[Subscription] = []
        self._messages: Iterator[Message | None] | None = None
        self._awaits_loading = False

    @property
    def wants_turn(self) -> bool:
        """Whether ``give`` has something to do now."""
        return bool(self._waiting) and len(self._owed) < AHEAD_MAX and self._conversation.hooks.is_loaded

    def begin(self, subscription: Subscription) -> None:
        """It is to have the retained messages that its filter means."""
        begun = 0 if self._messages is None else 1
        if subscription not in self._waiting[begun:]:
            self._waiting.append(subscription)
            self._conversation.later()

    def may_have_some(self, subscription: Subscription) -> bool:
        """False: there are none for it."""
        return not self._conversation.hooks.is_loaded or any(True for _ in self._of(subscription))

    def _of(self, subscription: Subscription) -> Iterator[Message | None]:
        """Those that the client may read, and None for a pause."""
        for number, message in enumerate(self._conversation.hooks.retained(subscription.filter.topic_filter), 1):
            if message is None or self._may_read(message):
                yield message
            elif number % ITEMS == 0:
                yield None

    def _may_read(self, message: Message) -> bool:
        topic = message.original_destination
        return topic is not None and self._conversation.may_read(topic)

    def forget(self, subscription: Subscription) -> None:
        """It is over."""
        if subscription in self._waiting:
            if self._waiting[0] is subscription:
                self._messages = None
            self._waiting = [each for each in self._waiting if each is not subscription]

    def give(self, commands: list[Command]) -> None:
        """The next ones, as many as may be."""
        conversation = self._conversation
        if self._waiting and not conversation.hooks.is_loaded:
            if not self._awaits_loading:
                self._awaits_loading = True
                conversation.hooks.when_loaded(self._loaded)
            return
        while self._waiting and len(self._owed) < AHEAD_MAX and len(commands) < COMMANDS_MAX:
            subscription = self._waiting[0]
            if self._messages is None:
                self._messages = self._of(subscription)
            try:
                message = next(self._messages)
            except StopIteration:
                self._messages = None
                self._waiting.pop(0)
                self._settle(subscription, commands)
                continue
            if message is None:
                return  # another turn goes on
            if not self._has_inbox:
                self._has_inbox = True
                commands.append(AddDestination(self._inbox))
                commands.append(Subscribe(INBOX, self._inbox, AckMode.INDIVIDUAL, prefetch=conversation.outgoing_max))
            token = Message(
                self._inbox, conversation.next_message_id(), b"", BodyKind.BYTES, timestamp=message.timestamp
            )
            subscription.owed += 1
            self._owed[token.message_id] = subscription, message
            commands.append(Send(token))

    def _loaded(self) -> None:
        self._awaits_loading = False
        self._conversation.later()

    def owed(self, token: Message) -> tuple[Subscription, Message] | None:
        """For which subscription it is, and the retained message."""
        return self._owed.get(token.message_id)

    def arrived(self, token: Message) -> None:
        """It is on its way to the client, or was left out."""
        self._owed.pop(token.message_id, None)
        if self._waiting:
            self._conversation.later()

    def settled(self, subscription: Subscription, commands: list[Command]) -> None:
        """One more was acknowledged."""
        subscription.owed -= 1
        self._settle(subscription, commands)

    def _settle(self, subscription: Subscription, commands: list[Command]) -> None:
        """If all of its retained messages were acknowledged, its record says so."""
        if subscription.owes_retained and not subscription.owed and subscription not in self._waiting:
            subscription.owes_retained = False
            if not subscription.is_left:
                commands += self._stored.keep_subscription(subscription, Waiting(nothing, self._stored.failed))
