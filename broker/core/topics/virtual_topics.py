"""Queues that get a copy of each message to a virtual topic (ActiveMQ's VirtualTopic and its interceptor).

    topic VirtualTopic.news  ->  queues Consumer.<any word>.VirtualTopic.news

A consumer with wildcards, ``Consumer.a.VirtualTopic.>``, has a queue of exactly that name. The queue gets the messages
of each topic that the rest of the name matches, so nothing is lost while the consumer is away.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from itertools import chain

from tandemmq.broker.core import names
from tandemmq.broker.core.virtual_destinations import VirtualTopic
from tandemmq.store.records.message import Destination, DestinationKind

# Bounds of the cache of matching queues, used if queues have wildcards: topics, and queues in all topics (8 MB).
REMEMBERED_MAX = 1_000
REMEMBERED_QUEUES_MAX = 1_000_000


class VirtualTopics:
    """Index of the consumer queues of a topic. ``rules`` define which topics are virtual, and how their queues are
    named."""

    __slots__ = ("_feeds", "_is_any_aware")

    def __init__(self, rules: Iterable[VirtualTopic] = (VirtualTopic(),)) -> None:
        self._feeds = [_Feed(rule) for rule in rules]
        self._is_any_aware = any(each.rule.is_selector_aware for each in self._feeds)

    def needs_queue(self, destination: Destination) -> bool:
        """Return whether a consumer of that name with wildcards has a queue of the same name (VirtualTopic.create)."""
        return names.is_wildcard(destination.name) and any(each.fed_by(destination) for each in self._feeds)

    def know(self, destination: Destination) -> None:
        """Add an existing queue."""
        for each in self._feeds:
            each.know(destination)

    def forget(self, destination: Destination) -> None:
        """Remove a queue that ended."""
        for each in self._feeds:
            each.forget(destination)

    def queues(self, topic: str) -> Collection[Destination]:
        """Return the queues that get a copy of each message to the topic."""
        if len(self._feeds) == 1:
            return self._feeds[0].queues(topic)
        return list(dict.fromkeys(chain.from_iterable(each.queues(topic) for each in self._feeds)))

    def is_fed(self, queue: Destination, topic: str) -> bool:
        """Return whether ``queue`` gets the messages of the topic, as long as that queue exists."""
        return any(each.feeds(topic, queue) for each in self._feeds)

    def is_selector_aware(self, queue: Destination, topic: str) -> bool:
        """Return whether ``queue`` gets only those messages of the topic that its consumers take."""
        if not self._is_any_aware:
            return False
        return all(each.rule.is_selector_aware for each in self._feeds if each.feeds(topic, queue))


class _Feed:
    """Queues of one rule."""

    __slots__ = ("_found", "_name", "_named", "_patterns", "_remembered", "_topics", "rule")

    def __init__(self, rule: VirtualTopic) -> None:
        self.rule = rule
        self._topics = names.Pattern(rule.pattern)
        prefix, postfix = (re.escape(text).replace(r"\*", r"[^.]+") for text in (rule.prefix, rule.postfix))
        self._name = re.compile(f"{prefix}(.+){postfix}", re.DOTALL)
        self._named: dict[str, dict[Destination, None]] = {}
        self._patterns: dict[Destination, names.Pattern] = {}
        self._found: dict[str, list[Destination]] = {}  # by topic, if there are patterns
        self._remembered = 0  # queues in these

    def _forget_found(self) -> None:
        self._found.clear()
        self._remembered = 0

    def fed_by(self, destination: Destination) -> str | None:
        """Return the name, or pattern, of the topics that feed ``destination``; None: none does."""
        if destination.kind is not DestinationKind.QUEUE or names.is_private(destination):
            return None
        found = self._name.fullmatch(destination.name)
        return None if found is None else found[1]

    def feeds(self, topic: str, queue: Destination) -> bool:
        """Return whether the topic is one of the rule's and feeds the queue."""
        its = self.fed_by(queue)
        return its is not None and self._topics.matches(topic) and names.Pattern(its).matches(topic)

    def know(self, destination: Destination) -> None:
        topic = self.fed_by(destination)
        if topic is None:
            return
        self._forget_found()
        if names.is_wildcard(topic):
            self._patterns[destination] = names.Pattern(topic)
        else:
            self._named.setdefault(topic, {})[destination] = None

    def forget(self, destination: Destination) -> None:
        topic = self.fed_by(destination)
        if topic is None:
            return
        self._forget_found()
        self._patterns.pop(destination, None)
        named = self._named.get(topic)
        if named is not None:
            named.pop(destination, None)
            if not named:
                del self._named[topic]

    def queues(self, topic: str) -> Collection[Destination]:
        if not self._topics.matches(topic):
            return ()
        if not self._patterns:
            return self._named.get(topic, ())
        found = self._found.get(topic)
        if found is None:
            found = [
                *self._named.get(topic, ()),
                *(destination for destination, pattern in self._patterns.items() if pattern.matches(topic)),
            ]
            self._remembered += len(found)
            if len(self._found) >= REMEMBERED_MAX or self._remembered > REMEMBERED_QUEUES_MAX:
                self._forget_found()
                self._remembered = len(found)
            self._found[topic] = found
        return found
