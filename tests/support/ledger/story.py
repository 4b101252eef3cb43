"""A random story of one client: what it does by any protocol, and what it writes into its book.

The client decides all of it from a seed, and knows by its own book what each queue and subscription must hold.
"""

from __future__ import annotations

import itertools
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.ledger.book import Book, Line, now_ms

WAIT_SECONDS_MAX: Final = 60.0
QUEUES: Final = ("queue://orders", "queue://prices", "queue://slow.busy")
TOPIC: Final = "topic://news"
LETTERS: Final = "queue://ActiveMQ.DLQ.Queue."
SHORT_MS: Final = 30
SELECTOR: Final = "colour = 'red'"


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent. ``expires``: milliseconds since 1970; 0: never."""

    key: str
    body: str
    is_text: bool
    priority: int
    persistent: bool
    expires: int
    properties: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Received:
    """``handle`` is what the client needs to acknowledge it."""

    id: str
    body: str
    properties: dict[str, Any]
    handle: Any = field(repr=False)

    @property
    def key(self) -> str:
        return key_of(self.properties, self.body)


@dataclass(frozen=True, slots=True)
class Subscription:
    client: str
    name: str
    topic: str
    selector: str | None

    def __str__(self) -> str:
        return f"{self.client}:{self.name}"

    def takes(self, colour: str) -> bool:
        return self.selector is None or colour == "red"


SUBSCRIPTIONS: Final = (Subscription("one", "all", TOPIC, None), Subscription("two", "reds", TOPIC, SELECTOR))


def key_of(properties: dict[str, Any], body: str) -> str:
    return str(properties.get("key") or body.partition(" ")[0])


class Client(ABC):
    """What a protocol does. Each call returns when the broker has confirmed it."""

    has_branches: bool

    @abstractmethod
    def send(self, to: str, messages: Sequence[Message], transaction: str | None) -> None: ...

    @abstractmethod
    def begin(self, transaction: str) -> None: ...

    @abstractmethod
    def end(self, transaction: str, *, is_commit: bool) -> None: ...

    @abstractmethod
    def receive(
        self, source: str, count: int, selector: str | None = None, subscription: Subscription | None = None
    ) -> list[Received]:
        """So many, which must come. Consumers stay open until ``release``."""

    @abstractmethod
    def acknowledge(self, received: Received, transaction: str | None) -> None: ...

    @abstractmethod
    def refuse(self, received: Received) -> None:
        """It becomes a dead letter."""

    @abstractmethod
    def release(self) -> None: ...

    @abstractmethod
    def subscribe(self, subscription: Subscription) -> None: ...

    @abstractmethod
    def unsubscribe(self, subscription: Subscription) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Story:
    """``holds``: source and subscription -> what it must hold, in order."""

    def __init__(self, client: Client, book: Book, chance: random.Random, name: str = "k") -> None:
        self._client = client
        self._book = book
        self._chance = chance
        self._numbers = itertools.count(1)
        self._name = name
        self._subscribed: list[Subscription] = []
        self._holds: dict[tuple[str, str | None], list[Message]] = {}

    def go_on(self, steps: int) -> None:
        deeds = (
            *[self.send] * 6, *[self.publish] * 4, *[self.take] * 8, *[self.take_topic] * 4, self.take_selected,
            *[self.commit_sends] * 2, *[self.commit_takes] * 2, self.kill, self.expire, self.subscribe,
            self.unsubscribe, self.moment,
        )  # fmt: skip
        self.subscribe()
        for _ in range(steps):
            self._chance.choice(deeds)()
        # Each kind once at least.
        for deed in dict.fromkeys(deeds):
            deed()

    # ---- sending

    def _message(self, colour: str | None = None, *, ttl_ms: int = 0) -> Message:
        key = f"{self._name}{next(self._numbers)}"
        kind = self._chance.random()
        body = "beat" if kind < 0.1 else "" if kind < 0.15 else f"{key} " + "x" * self._chance.choice((10, 300, 3000))
        colour = colour or self._chance.choice(("red", "blue"))
        expires = now_ms() + ttl_ms if ttl_ms else 0
        properties = {"key": key, "colour": colour}
        return Message(
            key, body, self._chance.random() < 0.5, self._chance.choice((1, 4, 4, 9)), True, expires, properties
        )

    def _send(self, to: str, messages: list[Message], transaction: str | None = None) -> None:
        with self._book.around() as lines:
            self._client.send(to, messages, transaction)
            lines += [_sent(to, message, transaction) for message in messages]

    def _arrive(self, to: str, messages: Sequence[Message]) -> None:
        if not to.startswith("topic://"):
            self._holds.setdefault((to, None), []).extend(messages)
            return
        for subscription in self._subscribed:
            for message in messages:
                if subscription.takes(message.properties["colour"]):
                    self._holds.setdefault((to, str(subscription)), []).append(message)
                else:
                    self._book.write("skipped", source=to, subscription=str(subscription), key=message.key)

    def send(self) -> None:
        self._some_to(self._chance.choice(QUEUES))

    def publish(self) -> None:
        self._some_to(TOPIC)

    def _some_to(self, to: str) -> None:
        messages = [self._message() for _ in range(self._chance.randrange(1, 12))]
        self._send(to, messages)
        self._arrive(to, messages)

    def commit_sends(self) -> None:
        is_commit = self._chance.random() < 0.7
        transaction = self._begin()
        sends = [(self._chance.choice((*QUEUES, TOPIC)), [self._message() for _ in range(3)]) for _ in range(2)]
        for to, messages in sends:
            self._send(to, messages, transaction)
        self._end(transaction, is_commit=is_commit)
        if is_commit:
            for to, messages in sends:
                self._arrive(to, messages)

    def _begin(self) -> str:
        transaction = f"{self._name}-t{next(self._numbers)}"
        self._client.begin(transaction)
        return transaction

    def _end(self, transaction: str, *, is_commit: bool) -> None:
        with self._book.around() as lines:
            self._client.end(transaction, is_commit=is_commit)
            outcome = "committed" if is_commit else "rolled_back"
            lines.append({"do": "transaction", "name": transaction, "outcome": outcome})

    # ---- receiving

    def take(self) -> None:
        self._take(self._chance.choice(QUEUES))

    def take_selected(self) -> None:
        self._take(self._chance.choice(QUEUES), SELECTOR)

    def take_topic(self) -> None:
        if self._subscribed:
            self._take(TOPIC, subscription=self._chance.choice(self._subscribed))

    def commit_takes(self) -> None:
        transaction = self._begin()
        is_commit = self._chance.random() < 0.7
        self._take(self._chance.choice(QUEUES), transaction=transaction, is_commit=is_commit)

    def _take(
        self, source: str, selector: str | None = None, subscription: Subscription | None = None,
        transaction: str | None = None, *, is_commit: bool = True,
    ) -> None:  # fmt: skip
        owner = source, None if subscription is None else str(subscription)
        held = self._holds.get(owner, [])
        there = [each for each in held if selector is None or each.properties["colour"] == "red"]
        wanted = self._chance.randrange(1, 10)
        received = self._receive(source, min(len(there), wanted), selector, subscription)
        for each in received:
            with self._book.around() as lines:
                self._client.acknowledge(each, transaction)
                lines.append({"do": "acknowledged", **_from(owner), "key": each.key, "transaction": transaction})
        if transaction is not None:
            self._end(transaction, is_commit=is_commit)
        self._client.release()
        if is_commit:
            gone = {each.key for each in received}
            self._holds[owner] = [each for each in held if each.key not in gone]

    def _receive(
        self, source: str, count: int, selector: str | None = None, subscription: Subscription | None = None
    ) -> list[Received]:
        owner = source, None if subscription is None else str(subscription)
        received = self._client.receive(source, count, selector, subscription) if count else []
        for each in received:
            told = {"key": each.key, "id": each.id, "properties": each.properties}
            self._book.write("received", **_from(owner), **told)
        return received

    # ---- dead letters

    def kill(self) -> None:
        source = self._chance.choice(QUEUES)
        if not self._holds.get((source, None)):
            self._some_to(source)
        began = now_ms()
        (received,) = self._receive(source, 1)
        self._client.refuse(received)
        self._client.release()
        self._holds[source, None] = [each for each in self._holds[source, None] if each.key != received.key]
        self._find_letters("dead", source, [received.key], began)

    def expire(self) -> None:
        """Messages that nobody takes in time, in a queue where older ones do not stand before them."""
        source = self._chance.choice(QUEUES)
        count = self._chance.randrange(1, 6)
        messages = [self._message(ttl_ms=SHORT_MS) for _ in range(count)]
        began = now_ms()
        self._send(source, messages)
        time.sleep(max(0, messages[-1].expires + 2 - now_ms()) / 1000)  # what is waited for is the time itself
        live = self._message()
        self._send(source, [live])
        self._arrive(source, [live])
        # Brokers look whether a message has expired when they hand it out.
        self._receive(source, len(self._holds[source, None]))
        self._find_letters("expired", source, [each.key for each in messages], began)
        self._client.release()

    def _find_letters(self, why: str, source: str, keys: Sequence[str], began: int) -> None:
        """Wait until all are in the queue of dead letters, and take some of them."""
        letters = LETTERS + source.removeprefix("queue://")
        owner = letters, None
        held = self._holds.setdefault(owner, [])
        received = self._receive(letters, len(held) + len(keys))
        new = [each for each in received if each.key in keys]
        assert sorted(each.key for each in new) == sorted(keys), (keys, [each.key for each in received])
        for each in new:
            cause = each.properties.get("dlqDeliveryFailureCause")
            self._book.write(why, source=source, key=each.key, letters=letters, cause=cause, began=began)
            held.append(Message(each.key, each.body, True, 4, True, 0, each.properties))
        for each in received:
            if self._chance.random() < 0.3:
                with self._book.around() as lines:
                    self._client.acknowledge(each, None)
                    lines.append({"do": "acknowledged", **_from(owner), "key": each.key, "transaction": None})
                self._holds[owner] = [other for other in self._holds[owner] if other.key != each.key]
        self._client.release()

    # ---- subscriptions, and moments

    def subscribe(self) -> None:
        for subscription in SUBSCRIPTIONS:
            if subscription not in self._subscribed:
                with self._book.around() as lines:
                    self._client.subscribe(subscription)
                    lines.append(_subscribed("subscribed", subscription))
                self._subscribed.append(subscription)
                self._holds[TOPIC, str(subscription)] = []

    def unsubscribe(self) -> None:
        """One in a while, and it is there again."""
        subscription = self._chance.choice(SUBSCRIPTIONS)
        if subscription in self._subscribed:
            with self._book.around() as lines:
                self._client.unsubscribe(subscription)
                lines.append(_subscribed("unsubscribed", subscription))
            self._subscribed.remove(subscription)
            self._holds.pop((TOPIC, str(subscription)))
        self.publish()
        self.subscribe()

    def moment(self) -> None:
        time.sleep(0.002)
        self._book.write("moment")
        time.sleep(0.002)
        self.send()


def _from(owner: tuple[str, str | None]) -> Line:
    return {"source": owner[0], "subscription": owner[1]}


def _subscribed(do: str, subscription: Subscription) -> Line:
    return {
        "do": do, "source": subscription.topic, "subscription": str(subscription), "selector": subscription.selector
    }  # fmt: skip


def _sent(to: str, message: Message, transaction: str | None) -> Line:
    return {
        "do": "sent", "to": to, "key": message.key, "body": message.body, "is_text": message.is_text,
        "priority": message.priority, "persistent": message.persistent, "expires": message.expires,
        "properties": message.properties, "transaction": transaction,
    }  # fmt: skip
