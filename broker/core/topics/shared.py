"""Subscription that consumers of any connections share: each message goes to one of them (MQTT 5.0, 4.8.2; JMS). Pure.

In the store it is an ordinary durable subscription of the client id ``$share`` with the name GROUP/FILTER, topic by
topic. One that has its own terms (JMS) may have any name that is not GROUP/FILTER. The subscription exists while a
consumer uses it, or a client id holds it, connected or not. For each holder the store has a record: a durable
subscription of that client id, with the client's name for it, to the topic ``names.MQTT_SHARES``, to which no message
is ever sent. The subscribed destination in this record is that name. So the journal alone shows the holders. A holder's
record is written before the first topic's, and removed before the last one's: so topics without a holder are left over
from an interrupted removal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.topics.durables import DurableSubscriber, UsersOfClientIds
from tandemmq.broker.core.topics.topic import DurableSubscription
from tandemmq.store.records.message import Destination

#: Client id of these durable subscriptions in the store. No client may use it, or one that begins with it and a colon:
#: such a client id and a name could make the same key (``subscription_key``).
CLIENT_ID: Final = "$share"
#: First character of the name of a share that has terms (Subscribe.has_terms). A group of MQTT cannot have this
#: character (MQTT-4.8.2-2).
OWN_TERMS: Final = "#"


def name_of(group: str, topics: Destination) -> str:
    """Return GROUP/FILTER. A group has no slash."""
    return f"{group}/{topics.name}"


@dataclass(slots=True, eq=False, repr=False)
class SharedSubscriber(DurableSubscriber):
    """Group of one filter. ``users``: consumers that use it or begin to, each with the test of its readable topics;
    ``served``: those that receive messages now."""

    users: dict[Subscription, Callable[[Destination], bool]] = field(default_factory=dict, init=False)
    served: dict[Subscription, None] = field(default_factory=dict, init=False)

    def may_read(self, topic: Destination) -> bool:
        """Return whether one of its users may read the topic. Without users, True: messages are collected."""
        return not self.users or any(may_read(topic) for may_read in self.users.values())

    def begin(self, subscription: Subscription) -> list[DurableSubscription]:
        """Serve ``subscription`` from now on, and return the parts from which it receives messages."""
        may_read = self.users.get(subscription)
        if may_read is None:
            return []  # it left
        self.served[subscription] = None
        return [part for part in self.parts.values() if may_read(part.destination)]

    def share_part(self, part: DurableSubscription) -> None:
        """Open the new ``part`` for all served subscriptions that may read it."""
        for subscription in self.served:
            if self.users[subscription](part.destination):
                part.open(subscription)

    def left(self, subscription: Subscription) -> None:
        self.users.pop(subscription, None)
        self.served.pop(subscription, None)


@dataclass(frozen=True, slots=True)
class Holding:
    """Record of a client id that holds the share called ``share``. ``owner``: its number in the store; ``user``: its
    user."""

    owner: int
    client_id: str
    name: str
    share: str
    user: str | None


class Holdings:
    """Index of all holdings, by client id and name. Their users count in ``users``."""

    __slots__ = ("_by_client_id", "_of_share", "_users")

    def __init__(self, users: UsersOfClientIds) -> None:
        self._users = users
        self._by_client_id: dict[str, dict[str, Holding]] = {}
        self._of_share: dict[str, dict[Holding, None]] = {}

    def of(self, client_id: str) -> Collection[Holding]:
        """Return the holdings of a client id."""
        return self._by_client_id.get(client_id, {}).values()

    def only_of(self, share: str) -> Holding | None:
        """Return the one holding of a share; None: it has none, or several."""
        holdings = self._of_share.get(share, {})
        return next(iter(holdings)) if len(holdings) == 1 else None

    def get(self, client_id: str, name: str) -> Holding | None:
        return self._by_client_id.get(client_id, {}).get(name)

    def add(self, holding: Holding) -> None:
        self._by_client_id.setdefault(holding.client_id, {})[holding.name] = holding
        self._of_share.setdefault(holding.share, {})[holding] = None
        self._users.add(holding.client_id, holding.user)

    def remove(self, holding: Holding) -> None:
        of_client = self._by_client_id[holding.client_id]
        del of_client[holding.name]
        if not of_client:
            del self._by_client_id[holding.client_id]
        of_share = self._of_share[holding.share]
        del of_share[holding]
        if not of_share:
            del self._of_share[holding.share]
        self._users.remove(holding.client_id, holding.user)

    def is_held(self, share: str) -> bool:
        return share in self._of_share
