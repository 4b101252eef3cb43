"""A subscription that consumers of any connections share: each message goes to one of them (MQTT 5.0, 4.8.2). Pure.

To the store it is a durable subscription like any other, of the client id ``$share``, by the name GROUP/FILTER, topic
by topic. It is there while somebody takes from it, and while a client id holds it, which is away or not. Of each holder
the store has a record of its own: a durable subscription of that client id, under the name that it gave, to the topic
``names.MQTT_SHARES``, to which nothing is ever sent; the destination that it was asked for says GROUP/FILTER. So the
journal alone tells who holds what. A holder's record is written before the first topic's, and taken back before the
last one's: topics without a holder are what is left of an end that was cut off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, ValuesView
from dataclasses import dataclass, field
from typing import Final

from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.topics.durables import DurableSubscriber
from tandemmq.broker.core.topics.topic import DurableSubscription
from tandemmq.store.records.commands import subscription_key
from tandemmq.store.records.message import Destination

#: Whose durable subscriptions they are to the store. No client may call itself so.
CLIENT_ID: Final = "$share"


def name_of(group: str, topics: Destination) -> str:
    """GROUP/FILTER. A group has no slash."""
    return f"{group}/{topics.name}"


@dataclass(slots=True, eq=False, repr=False)
class SharedSubscriber(DurableSubscriber):
    """One group of one filter. ``users`` take from it, or will in a moment, each with what is open to it; ``served``
    are those who do."""

    users: dict[Subscription, Callable[[Destination], bool]] = field(default_factory=dict, init=False)
    served: dict[Subscription, None] = field(default_factory=dict, init=False)

    def may_read(self, topic: Destination) -> bool:
        """Whether the topic is open to one of its users. Without any it gathers."""
        return not self.users or any(may_read(topic) for may_read in self.users.values())

    def begin(self, subscription: Subscription) -> list[DurableSubscription]:
        """``subscription`` is served from now on: the parts that it is to be given."""
        may_read = self.users.get(subscription)
        if may_read is None:
            return []  # it left
        self.served[subscription] = None
        return [part for part in self.parts.values() if may_read(part.destination)]

    def share_part(self, part: DurableSubscription) -> None:
        """``part`` is new: those who are served take from it, as far as it is open to them."""
        for subscription in self.served:
            if self.users[subscription](part.destination):
                part.open(subscription)

    def left(self, subscription: Subscription) -> None:
        self.users.pop(subscription, None)
        self.served.pop(subscription, None)


@dataclass(frozen=True, slots=True)
class Holding:
    """The record of a client id that holds the share called ``share``. ``owner``: its number in the store; ``user``:
    whose it is."""

    owner: int
    client_id: str
    name: str
    share: str
    user: str | None


class Holdings:
    """All of them, by client id and name."""

    __slots__ = ("_by_key", "_counts")

    def __init__(self) -> None:
        self._by_key: dict[str, Holding] = {}
        self._counts: Counter[str] = Counter()

    def all(self) -> ValuesView[Holding]:
        return self._by_key.values()

    def get(self, client_id: str, name: str) -> Holding | None:
        return self._by_key.get(subscription_key(client_id, name))

    def add(self, holding: Holding) -> None:
        self._by_key[subscription_key(holding.client_id, holding.name)] = holding
        self._counts[holding.share] += 1

    def remove(self, holding: Holding) -> None:
        del self._by_key[subscription_key(holding.client_id, holding.name)]
        self._counts[holding.share] -= 1
        if not self._counts[holding.share]:
            del self._counts[holding.share]

    def is_held(self, share: str) -> bool:
        return share in self._counts
