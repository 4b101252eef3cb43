"""Which queues get a copy of what is sent to a virtual topic (ActiveMQ's VirtualTopic and its interceptor).

    topic VirtualTopic.news  ->  queues Consumer.<any word>.VirtualTopic.news

A consumer with wildcards, ``Consumer.a.VirtualTopic.>``, has a queue of that very name, which gets what is sent to any
topic that the rest of the name matches: so that nothing is lost while it is away.
"""

from __future__ import annotations

from collections.abc import Collection

from broker.core import names
from store.records.message import Destination, DestinationKind

VIRTUAL_TOPIC_PREFIX = "VirtualTopic."
CONSUMER_PREFIX = "Consumer."
# Of so many topics it is remembered what they feed where queues have wildcards.
REMEMBERED_MAX = 1_000


def needs_queue(destination: Destination) -> bool:
    """Whether a consumer of that name with wildcards has a queue of the same name (VirtualTopic.create)."""
    return names.is_wildcard(destination.name) and _fed_by(destination) is not None


def _fed_by(destination: Destination) -> str | None:
    """The name, or pattern, of the topics that feed it; None: none does."""
    if destination.kind is not DestinationKind.QUEUE or not destination.name.startswith(CONSUMER_PREFIX):
        return None
    words = destination.name.split(".", 2)
    return words[2] if len(words) == 3 else None


class VirtualTopics:
    """See the module."""

    __slots__ = ("_found", "_named", "_patterns")

    def __init__(self) -> None:
        self._named: dict[str, dict[Destination, None]] = {}
        self._patterns: dict[Destination, names.Pattern] = {}
        self._found: dict[str, list[Destination]] = {}  # by topic, where there are patterns

    def know(self, destination: Destination) -> None:
        """That is there."""
        topic = _fed_by(destination)
        if topic is None:
            return
        self._found.clear()
        if names.is_wildcard(topic):
            self._patterns[destination] = names.Pattern(topic)
        else:
            self._named.setdefault(topic, {})[destination] = None

    def forget(self, destination: Destination) -> None:
        """That is there no more."""
        topic = _fed_by(destination)
        if topic is None:
            return
        self._found.clear()
        self._patterns.pop(destination, None)
        named = self._named.get(topic)
        if named is not None:
            named.pop(destination, None)
            if not named:
                del self._named[topic]

    def queues(self, topic: str) -> Collection[Destination]:
        """Those that get a copy of what is sent to the topic of that name."""
        if not topic.startswith(VIRTUAL_TOPIC_PREFIX):
            return ()
        if not self._patterns:
            return self._named.get(topic, ())
        found = self._found.get(topic)
        if found is None:
            if len(self._found) >= REMEMBERED_MAX:
                self._found.clear()
            found = self._found[topic] = [
                *self._named.get(topic, ()),
                *(destination for destination, pattern in self._patterns.items() if pattern.matches(topic)),
            ]
        return found
