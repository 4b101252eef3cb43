"""Delivery of retained messages to a client when a subscription begins. Pure.

For each retained message, a token (a message without content) goes through a temporary queue of the connection. So
retained messages are delivered and acknowledged like all others, and are limited by the same flow control. In a stored
session, the record of the subscription states which retained messages the client must still get, until all are
acknowledged. The record does not grow: it contains only a position (stored_session.Position). The position moves in the
transaction that stores the packet ids of the messages before it. After a reconnect, messages with a packet id are sent
again, and then the messages after the position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from tandemmq.broker.core.commands import AckMode, AddDestination, Command, Send, Subscribe
from tandemmq.broker.core.slices import ITEMS
from tandemmq.broker.protocols.mqtt.conversation import NEWEST, Conversation
from tandemmq.broker.protocols.mqtt.qos2 import Delivery
from tandemmq.broker.protocols.mqtt.stored_session import Position, StoredSession, Subscription
from tandemmq.broker.protocols.session import COMMANDS_MAX
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message

#: The id of the subscription to the temporary queue.
INBOX: Final = "inbox"
# Maximum number of tokens in the queue that are not delivered to the session yet.
AHEAD_MAX: Final = 100
# Maximum number of retained messages of the client itself that are remembered.
OWN_MAX: Final = 16


class RetainedDelivery:
    """Retained messages for one connection, one subscription after the other. ``on_gone`` is called for a message that
    was sent and is no longer the retained message of its topic; its argument is the message's name
    (``OutgoingRecord.name``)."""

    on_gone: Callable[[tuple[str, str]], None]

    def __init__(self, conversation: Conversation, stored: StoredSession) -> None:
        self._conversation = conversation
        self._stored = stored
        self._inbox = Destination(DestinationKind.TEMP_QUEUE, conversation.inbox_name)
        self._has_inbox = False
        # By message id of the token: the subscription, the retained message, and the position that moves when it is
        # sent.
        self._owed: dict[str, tuple[Subscription, Message, Position]] = {}
        # Topics and names of messages that were sent on a former connection.
        self._begun: deque[tuple[Subscription, str, tuple[str, str]]] = deque()
        # Subscriptions whose retained messages must be sent, and an iterator of the messages of the first of them.
        self._waiting: list[Subscription] = []
        self._messages: Iterator[Message | None] | None = None
        self._awaits_loading = False
        # The messages with RETAIN that this client published last: message id and number, by topic.
        self._own: dict[str, tuple[str, int]] = {}
        self.own_count = 0

    def published(self, message: Message, *, is_retained: bool) -> None:
        """Note a message that the client publishes with RETAIN. Subscribers get it when it is stored. ``is_retained``:
        False if it removes the retained message of its topic."""
        topic = message.destination.name
        self._own.pop(topic, None)
        if is_retained:
            self._own[topic] = message.message_id, self.own_count
            if len(self._own) > OWN_MAX:
                del self._own[next(iter(self._own))]
        self.own_count += 1

    def is_earlier(self, message: Message, subscription: Subscription) -> bool:
        """Return whether ``message`` was the retained message of its topic when this client subscribed, because this
        client had published it. It has the flag (MQTT-3.3.1-8), although it was not stored at that time."""
        own = self._own.get(message.destination.name)
        # prove: own-retained-is-earlier "own[1] < subscription.own_before" -> "True"
        return own is not None and own[0] == message.message_id and own[1] < subscription.own_before

    def cut(self) -> None:
        """Stop sending: the connection has ended."""
        self.on_gone = _ignore
        self._messages = None  # the iterator refers to its maker, which would keep both in memory

    @property
    def wants_turn(self) -> bool:
        """True if ``send_more`` can send messages now."""
        has_some = bool(self._waiting or self._begun)
        return has_some and len(self._owed) < AHEAD_MAX and self._conversation.hooks.is_loaded

    def begin(self, subscription: Subscription, position: Position | None = None) -> None:
        """Begin to send the retained messages that match the subscription's filter: all, or those after
        ``position``."""
        subscription.position = position = position or Position()
        if position.until is None:
            # The subscription already collects messages, so newer retained messages arrive as ordinary messages.
            position.until = self._conversation.hooks.newest
        if subscription not in self._waiting:
            self._waiting.append(subscription)
        elif self._waiting[0] is subscription:
            self._messages = None
        self._conversation.later()

    def send_again(self, subscription: Subscription, topic: str, name: tuple[str, str]) -> None:
        """Send the retained message of ``topic`` again if it is still the message ``name``. Calls must be in the order
        in which the messages were sent before."""
        self._begun.append((subscription, topic, name))

    def may_have_some(self, subscription: Subscription) -> bool:
        """Return False if no retained message matches the subscription."""
        return not self._conversation.hooks.is_loaded or any(True for _ in self._of(subscription, Position()))

    def _of(self, subscription: Subscription, position: Position) -> Iterator[Message | None]:
        """Yield the retained messages that the client may read, and None as in ``Hooks.retained``."""
        until = NEWEST if position.until is None else position.until
        found = self._conversation.hooks.retained(subscription.filter.topic_filter, position.after, until)
        for number, message in enumerate(found, 1):
            if message is None or self._may_read(message):
                yield message
            elif number % ITEMS == 0:
                yield None

    def _may_read(self, message: Message) -> bool:
        topic = message.original_destination
        return topic is not None and self._conversation.may_read(topic)

    def forget(self, subscription: Subscription) -> None:
        """Stop sending to a subscription that has ended."""
        if subscription in self._waiting:
            if self._waiting[0] is subscription:
                self._messages = None
            self._waiting = [each for each in self._waiting if each is not subscription]
        self._begun = deque(each for each in self._begun if each[0] is not subscription)

    def send_more(self, commands: list[Command]) -> None:
        """Add the commands that send the next tokens, up to AHEAD_MAX tokens in the queue."""
        conversation = self._conversation
        if (self._waiting or self._begun) and not conversation.hooks.is_loaded:
            if not self._awaits_loading:
                self._awaits_loading = True
                conversation.hooks.when_loaded(self._loaded)
            return
        while self._begun and len(self._owed) < AHEAD_MAX and len(commands) < COMMANDS_MAX:
            subscription, topic, name = self._begun.popleft()
            message = next((each for each in conversation.hooks.retained(topic) if each is not None), None)
            if message is not None and message.message_id == name[1] and self._may_read(message):
                self._send(subscription, message, Position(), commands)
            else:
                self.on_gone(name)
        while self._waiting and len(self._owed) < AHEAD_MAX and len(commands) < COMMANDS_MAX:
            subscription = self._waiting[0]
            position = subscription.position
            assert position is not None, "a subscription in _waiting has a position"
            if self._messages is None:
                self._messages = self._of(subscription, position)
            try:
                message = next(self._messages)
            except StopIteration:
                self._messages = None
                self._waiting.pop(0)
                self._settle(subscription, commands)
                continue
            if message is None:
                return  # a pause: the next turn of the loop continues
            self._send(subscription, message, position if message.persistent else Position(), commands)

    def _send(self, subscription: Subscription, message: Message, position: Position, commands: list[Command]) -> None:
        """Add the command that sends the token of a message to the queue."""
        conversation = self._conversation
        if not self._has_inbox:
            self._has_inbox = True
            commands.append(AddDestination(self._inbox))
            commands.append(Subscribe(INBOX, self._inbox, AckMode.INDIVIDUAL, prefetch=conversation.outgoing_max))
        token = Message(self._inbox, conversation.next_message_id(), b"", BodyKind.BYTES, timestamp=message.timestamp)
        subscription.owed += 1
        self._owed[token.message_id] = subscription, message, position
        commands.append(Send(token))

    def _loaded(self) -> None:
        self._awaits_loading = False
        self._conversation.later()

    def owed(self, token: Message) -> tuple[Subscription, Message, Position] | None:
        """Return the subscription and the retained message of a token, and the position that moves when the message is
        sent."""
        return self._owed.get(token.message_id)

    def arrived(self, token: Message) -> None:
        """Note that the token's message was sent to the client, or omitted."""
        self._owed.pop(token.message_id, None)
        if self._waiting or self._begun:
            self._conversation.later()

    def is_kept(self, delivery: Delivery) -> bool:
        """Return whether the subscription's record has a position that this message moves."""
        subscription = delivery.subscription
        return subscription.owes_retained and subscription.position is delivery.position is not None

    def advance(self, delivery: Delivery) -> None:
        """Move the position to a message that is sent when the gathered commands are durable. From then on, only the
        messages after it must still be sent."""
        if self.is_kept(delivery):
            assert delivery.position is not None, "a kept delivery has a position"
            delivery.position.after = delivery.topic
            self._stored.moved(delivery.subscription)

    def settled(self, subscription: Subscription, commands: list[Command]) -> None:
        """Note that one more retained message was acknowledged."""
        subscription.owed -= 1
        self._settle(subscription, commands)

    def _settle(self, subscription: Subscription, commands: list[Command]) -> None:
        """Update the subscription's record if all its retained messages were acknowledged."""
        if subscription.owes_retained and not subscription.owed and subscription not in self._waiting:
            subscription.owes_retained = False
            subscription.position = None
            if not subscription.is_left:
                commands += self._stored.keep_subscription(subscription)


def _ignore(name: tuple[str, str]) -> None:
    """Do nothing: the connection has ended."""
