"""Interface of a client for a story, for all protocols."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

WAIT_SECONDS_MAX: Final = 60.0


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send. ``kind``: "text", "bytes", or with JMS "message", which has no body. ``ttl_ms`` 0: it does not
    expire."""

    key: str
    kind: str
    body: str
    properties: dict[str, Any]
    priority: int = 4
    persistent: bool = True
    ttl_ms: int = 0


@dataclass(frozen=True, slots=True)
class Received:
    """A received message. ``handle``: what the client needs to acknowledge it. With MQTT there is no id."""

    id: str | None
    body: str
    properties: dict[str, Any]
    handle: Any = field(repr=False)

    @property
    def key(self) -> str:
        return key_of(self.properties, self.body)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A durable subscription. The only selector is for red messages."""

    client: str
    name: str
    topic: str
    selector: str | None
    is_mqtt: bool = False

    def __str__(self) -> str:
        return f"{self.client}:{self.name}"

    def takes(self, message: Message) -> bool:
        return self.selector is None or message.properties.get("colour") == "red"


def key_of(properties: dict[str, Any], body: str) -> str:
    """Return the key of a message: a property, or with MQTT the first word of its body."""
    return str(properties.get("key") or body.partition(" ")[0])


class Client(ABC):
    """Each call returns after the broker has confirmed it; exceptions are documented."""

    is_jms = False  # properties have types, and transactions may be branches
    is_mqtt = False  # messages to the topic have no properties, and their acknowledgements are not confirmed

    @abstractmethod
    def send(self, to: str, messages: Sequence[Message], transaction: str | None) -> list[str]:
        """Send messages; return their ids, if the client knows them."""

    @abstractmethod
    def begin(self, transaction: str, *, is_branch: bool = False) -> None: ...

    @abstractmethod
    def prepare(self, transaction: str) -> None: ...

    @abstractmethod
    def end(self, transaction: str, *, is_commit: bool, is_branch: bool = False) -> None: ...

    @abstractmethod
    def receive(
        self, source: str, count: int, selector: str | None = None, subscription: Subscription | None = None,
        transaction: str | None = None,
    ) -> list[Received]:  # fmt: skip
        """Receive ``count`` messages, which must come. Consumers stay open until ``release``, those of a transaction
        until its end."""

    @abstractmethod
    def acknowledge(self, received: Received, transaction: str | None) -> None: ...

    @abstractmethod
    def refuse(self, received: Received) -> None:
        """Reject a message, so that it becomes a dead letter."""

    @abstractmethod
    def release(self) -> None:
        """Close the consumers; their unacknowledged messages are delivered again."""

    @abstractmethod
    def subscribe(self, subscription: Subscription) -> None: ...

    @abstractmethod
    def unsubscribe(self, subscription: Subscription) -> None: ...

    @abstractmethod
    def close(self) -> None: ...
