"""A random story of one client: its actions with any protocol, and its records.

All actions follow from a seed. The client knows from its own records what each queue and subscription must contain.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any, Final

from tests.support.ledger.book import Book, Line, now_ms
from tests.support.ledger.client import Client, Message, Received, Subscription

QUEUES: Final = ("queue://orders", "queue://prices", "queue://slow.busy")
TOPIC: Final = "topic://news"
LETTERS: Final = "queue://ActiveMQ.DLQ.Queue."
#: Only branches consume from this queue, because a prepared branch withholds its messages.
BRANCHED: Final = "queue://branched"
#: Messages to this queue are not persistent.
FLEETING: Final = "queue://fleeting"
#: Longer than a message takes to the broker on a busy machine.
SHORT_MS: Final = 400
SELECTOR: Final = "colour = 'red'"
SUBSCRIPTIONS: Final = (Subscription("one", "all", TOPIC, None), Subscription("two", "reds", TOPIC, SELECTOR))
#: Name of an MQTT subscription in brokers: QoS and filter.
OF_MQTT: Final = Subscription("three", "AT_LEAST_ONCE:news", TOPIC, None, is_mqtt=True)
#: JMS properties, and their Java text.
TYPED: Final[dict[str, tuple[Any, str]]] = {
    "tiny": (1.5e-7, "1.5E-7"), "small": (0.0001, "1.0E-4"), "half": (0.5, "0.5"), "flag": (True, "true"),
    "large": (12345678.5, "1.23456785E7"), "whole": (3, "3"), "long": ({"long": 5_000_000_000}, "5000000000"),
}  # fmt: skip

# A source, and for a topic the subscription.
Owner = tuple[str, str | None]


class Story:
    """``_holds``: owner -> the messages that it must have, in order."""

    def __init__(self, book: Book, chance: random.Random) -> None:
        self._client: Client
        self._book = book
        self._chance = chance
        self._numbers = itertools.count(1)
        self._subscribed: list[Subscription] = []
        # Branch -> its messages by destination, and the keys of the messages that it consumes.
        self._prepared: dict[str, tuple[list[tuple[str, list[Message]]], set[str]]] = {}
        self._holds: dict[Owner, list[Message]] = {}

    def run(self, client: Client, steps: int) -> None:
        """Make ``steps`` random actions, and each kind once."""
        self._client = client
        self._subscriptions = (*SUBSCRIPTIONS, OF_MQTT) if client.is_mqtt else SUBSCRIPTIONS
        deeds = (
            *[self.send] * 6, *[self.publish] * 4, *[self.take] * 8, *[self.take_topic] * 4, self.take_selected,
            *[self.commit_sends] * 2, *[self.commit_takes] * 2, self.pass_by, self.kill, self.expire, self.subscribe,
            self.unsubscribe, self.moment,
        )  # fmt: skip
        if client.is_jms:
            deeds += (self.prepare, self.prepare, self.decide)
        self.subscribe()
        for _ in range(steps):
            self._chance.choice(deeds)()
        for deed in dict.fromkeys(deeds):
            deed()

    def drain(self) -> None:
        """Take all messages, so that the broker needs none of its files."""
        while self._prepared:
            self.decide()
        subscriptions = {str(each): each for each in self._subscribed}
        # Acknowledgements of MQTT are confirmed by a message to a queue, so topics come first.
        for owner in sorted(self._holds, key=lambda owner: not owner[0].startswith("topic://")):
            held, subscription = self._holds[owner], subscriptions.get(owner[1] or "")
            self._acknowledge_all(self._receive(owner[0], len(held), None, subscription), owner, subscription)
            self._client.release()
            held.clear()

    # ---- sending

    def _message(self, to: str, *, ttl_ms: int = 0) -> Message:
        key = f"k{next(self._numbers)}"
        if self._client.is_mqtt and to == TOPIC:
            return Message(key, "bytes", f"{key} of MQTT", {})
        chance = self._chance.random()
        kind = "message" if self._client.is_jms and chance > 0.95 else self._chance.choice(("text", "bytes"))
        body = f"{key} " + "x" * self._chance.choice((10, 300, 3000))
        body = "" if kind == "message" or 0.1 < chance < 0.15 else "beat" if chance < 0.1 else body
        properties: dict[str, Any] = {"key": key, "colour": self._chance.choice(("red", "blue"))}
        if self._client.is_jms:
            name = self._chance.choice(list(TYPED))
            properties[name] = TYPED[name][0]
        return Message(key, kind, body, properties, self._chance.choice((1, 4, 4, 9)), to != FLEETING, ttl_ms)

    def _messages(self, to: str, count: int) -> list[Message]:
        return [self._message(to) for _ in range(count)]

    def _send(self, to: str, messages: list[Message], transaction: str | None = None) -> None:
        began = now_ms()
        with self._book.around() as lines:
            ids = self._client.send(to, messages, transaction)
            ended = now_ms()
            for message in messages:
                expires = [began + message.ttl_ms, ended + message.ttl_ms] if message.ttl_ms else None
                lines.append(_sent(to, message, transaction, expires, ids.pop(0) if ids else None))

    def _arrive(self, to: str, messages: Sequence[Message]) -> None:
        if not to.startswith("topic://"):
            self._holds.setdefault((to, None), []).extend(messages)
            return
        for subscription in self._subscribed:
            for message in messages:
                if subscription.takes(message):
                    self._holds.setdefault((to, str(subscription)), []).append(message)
                else:
                    self._book.write("skipped", source=to, subscription=str(subscription), key=message.key)

    def send(self) -> None:
        self._some_to(self._chance.choice(QUEUES))

    def publish(self) -> None:
        self._some_to(TOPIC)

    def _some_to(self, to: str) -> None:
        messages = self._messages(to, self._chance.randrange(1, 12))
        self._send(to, messages)
        self._arrive(to, messages)

    def pass_by(self) -> None:
        """Send non-persistent messages, which are in no journal."""
        messages = self._messages(FLEETING, 3)
        self._send(FLEETING, messages)
        for each in self._receive(FLEETING, len(messages)):
            self._acknowledge(each, (FLEETING, None))
        self._client.release()

    def commit_sends(self) -> None:
        is_commit = self._chance.random() < 0.7
        transaction = self._begin()
        sends = self._send_some(transaction)
        self._end(transaction, is_commit=is_commit)
        if is_commit:
            for to, messages in sends:
                self._arrive(to, messages)

    def _send_some(self, transaction: str) -> list[tuple[str, list[Message]]]:
        sends = [(to, self._messages(to, 3)) for to in self._chance.choices((*QUEUES, TOPIC), k=2)]
        for to, messages in sends:
            self._send(to, messages, transaction)
        return sends

    def _begin(self, *, is_branch: bool = False) -> str:
        transaction = f"t{next(self._numbers)}"
        self._client.begin(transaction, is_branch=is_branch)
        return transaction

    def _end(self, transaction: str, *, is_commit: bool, is_branch: bool = False) -> None:
        with self._book.around() as lines:
            self._client.end(transaction, is_commit=is_commit, is_branch=is_branch)
            outcome = "committed" if is_commit else "rolled_back"
            lines.append({"do": "transaction", "name": transaction, "outcome": outcome})

    # ---- branches of distributed transactions

    def prepare(self) -> None:
        more = self._messages(BRANCHED, 4)
        self._send(BRANCHED, more)
        self._arrive(BRANCHED, more)
        locked: set[str] = set().union(*(taken for _, taken in self._prepared.values()))
        branch = self._begin(is_branch=True)
        sends = self._send_some(branch)
        free = [each for each in self._holds[BRANCHED, None] if each.key not in locked]
        taken = self._receive(BRANCHED, min(len(free), 3), transaction=branch)
        for each in taken:
            self._acknowledge(each, (BRANCHED, None), branch)
        with self._book.around() as lines:
            self._client.prepare(branch)
            lines.append({"do": "transaction", "name": branch, "outcome": "prepared"})
        self._prepared[branch] = sends, {each.key for each in taken}

    def decide(self) -> None:
        if not self._prepared:
            return
        branch = next(iter(self._prepared))
        sends, taken = self._prepared.pop(branch)
        is_commit = self._chance.random() < 0.6
        self._end(branch, is_commit=is_commit, is_branch=True)
        if is_commit:
            for to, messages in sends:
                self._arrive(to, messages)
            self._gone((BRANCHED, None), taken)

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
        there = [each for each in held if selector is None or each.properties.get("colour") == "red"]
        count = min(len(there), self._chance.randrange(1, 10))
        received = self._receive(source, count, selector, subscription, transaction)
        self._acknowledge_all(received, owner, subscription, transaction)
        if transaction is not None:
            self._end(transaction, is_commit=is_commit)
        self._client.release()
        if is_commit:
            self._gone(owner, {each.key for each in received})

    def _gone(self, owner: Owner, keys: set[str]) -> None:
        self._holds[owner] = [each for each in self._holds.get(owner, []) if each.key not in keys]

    def _receive(
        self, source: str, count: int, selector: str | None = None, subscription: Subscription | None = None,
        transaction: str | None = None,
    ) -> list[Received]:  # fmt: skip
        owner = source, None if subscription is None else str(subscription)
        received = self._client.receive(source, count, selector, subscription, transaction) if count else []
        for each in received:
            fields = {"key": each.key, "id": each.id, "properties": each.properties}
            self._book.write("received", **_from(owner), **fields)
        return received

    def _acknowledge_all(
        self, received: Sequence[Received], owner: Owner, subscription: Subscription | None,
        transaction: str | None = None,
    ) -> None:  # fmt: skip
        if subscription is None or not subscription.is_mqtt:
            for each in received:
                self._acknowledge(each, owner, transaction)
        elif received:
            # PUBACK has no answer, but a message that is stored later has one.
            began = now_ms()
            for each in received:
                self._client.acknowledge(each, None)
            self._client.release()
            self._some_to(QUEUES[0])
            for each in received:
                self._book.write("acknowledged", **_from(owner), key=each.key, transaction=None, began=began)

    def _acknowledge(self, each: Received, owner: Owner, transaction: str | None = None) -> None:
        with self._book.around() as lines:
            self._client.acknowledge(each, transaction)
            lines.append({"do": "acknowledged", **_from(owner), "key": each.key, "transaction": transaction})

    # ---- dead letters

    def kill(self) -> None:
        source = self._chance.choice(QUEUES)
        if not self._holds.get((source, None)):
            self._some_to(source)
        began = now_ms()
        (received,) = self._receive(source, 1)
        self._client.refuse(received)
        self._client.release()
        self._gone((source, None), {received.key})
        self._find_letters("dead", source, {received.key}, began)

    def expire(self) -> None:
        source = self._chance.choice(QUEUES)
        messages = [self._message(source, ttl_ms=SHORT_MS) for _ in range(self._chance.randrange(1, 6))]
        began = now_ms()
        self._send(source, messages)
        time.sleep((SHORT_MS + 2) / 1000)  # only time must pass
        live = self._messages(source, 1)
        self._send(source, live)
        self._arrive(source, live)
        # Brokers check the expiry of a message when they deliver it.
        self._receive(source, len(self._holds[source, None]))
        self._find_letters("expired", source, {each.key for each in messages}, began)
        self._client.release()

    def _find_letters(self, why: str, source: str, keys: set[str], began: int) -> None:
        """Wait until all messages are in the dead-letter queue, and take some of them."""
        letters = LETTERS + source.removeprefix("queue://")
        owner = letters, None
        held = self._holds.setdefault(owner, [])
        received = self._receive(letters, len(held) + len(keys))
        new = [each for each in received if each.key in keys]
        assert {each.key for each in new} == keys, (keys, [each.key for each in received])
        for each in new:
            cause = each.properties.get("dlqDeliveryFailureCause")
            self._book.write(why, source=source, key=each.key, letters=letters, cause=cause, began=began)
            held.append(Message(each.key, "", each.body, each.properties))
        for each in received:
            if self._chance.random() < 0.3:
                self._acknowledge(each, owner)
                self._gone(owner, {each.key})
        self._client.release()

    # ---- subscriptions, and moments

    def subscribe(self) -> None:
        for subscription in self._subscriptions:
            if subscription not in self._subscribed:
                with self._book.around() as lines:
                    self._client.subscribe(subscription)
                    lines.append(_subscribed("subscribed", subscription))
                self._subscribed.append(subscription)
                self._holds[TOPIC, str(subscription)] = []

    def unsubscribe(self) -> None:
        """End a subscription sometimes, and begin it again."""
        subscription = self._chance.choice(self._subscriptions)
        if subscription in self._subscribed:
            with self._book.around() as lines:
                self._client.unsubscribe(subscription)
                lines.append(_subscribed("unsubscribed", subscription))
            self._subscribed.remove(subscription)
            self._holds.pop((TOPIC, str(subscription)))
        self.publish()
        self.subscribe()

    def moment(self) -> None:
        """Record a moment without pending calls; the next record of each store has a later time."""
        time.sleep(0.002)
        self._book.write("moment")
        time.sleep(0.002)
        for to in (*QUEUES, TOPIC):
            self._some_to(to)


def _from(owner: Owner) -> Line:
    return {"source": owner[0], "subscription": owner[1]}


def _subscribed(do: str, subscription: Subscription) -> Line:
    return {
        "do": do, "source": subscription.topic, "subscription": str(subscription), "selector": subscription.selector
    }  # fmt: skip


def _sent(to: str, message: Message, transaction: str | None, expires: list[int] | None, id: str | None) -> Line:
    printed = {name: TYPED[name][1] if name in TYPED else value for name, value in message.properties.items()}
    return {
        "do": "sent", "to": to, "key": message.key, "id": id, "kind": message.kind, "body": message.body,
        "priority": message.priority, "persistent": message.persistent, "expires": expires, "properties": printed,
        "transaction": transaction,
    }  # fmt: skip
