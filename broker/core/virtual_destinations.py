"""Destinations that forward messages: composite destinations, mirrored queues, virtual topics.

    composite  queue ORDERS           ->  queue BILLING, and topic NOTED if a selector matches
    mirrored   queue ORDERS           ->  itself, and topic VirtualTopic.Mirror.ORDERS
    virtual    topic VirtualTopic.X   ->  itself, and each queue Consumer.<any word>.VirtualTopic.X

Pure. They are ActiveMQ's CompositeQueue, CompositeTopic, MirroredQueue and VirtualTopic. Of each kind only one applies:
the most specific one whose pattern matches.

A consumer with wildcards, ``Consumer.a.VirtualTopic.>``, has a queue of exactly that name. The queue gets the messages
of each topic that the rest of the name matches, so nothing is lost while the consumer is away.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeVar

from tandemmq.broker.core.delivery import Selector
from tandemmq.broker.core.names import Pattern, is_private, is_wildcard, specificity
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.store.records.message import Destination, DestinationKind, Message

#: Number of destinations whose kind is cached; beyond it the cache is cleared.
REMEMBERED_MAX: Final = 10_000
#: Maximum number of times that a message is forwarded from one composite destination to the next.
FORWARDS_MAX: Final = 8
# Bounds of the cache of matching queues, used if queues have wildcards: topics, and queues in all topics (8 MB).
TOPICS_REMEMBERED_MAX = 1_000
QUEUES_REMEMBERED_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Forward:
    """Target of a composite destination: for all messages, or for those that the selector takes."""

    destination: Destination
    selector: Selector | None = None


@dataclass(frozen=True, slots=True)
class Composite:
    """``forward_only``: it keeps no messages itself. ``send_when_not_matched``: it keeps only messages that no forward
    takes."""

    kind: DestinationKind
    pattern: str
    forward_to: tuple[Forward, ...]
    forward_only: bool = True
    send_when_not_matched: bool = False

    def takers(self, message: Message, pace: Pace) -> Work[list[Destination]]:
        """Return the destinations that ``message`` is forwarded to, found in steps."""
        found = []
        for each in self.forward_to:
            if each.selector is None or each.selector.matches(message):
                found.append(each.destination)
            if each.selector is not None and not each.selector.is_cheap and pace.is_over():
                yield
        return found

    def known(self, message: Message) -> tuple[list[Destination], bool]:
        """Return the destinations to which ``message`` is forwarded, and whether it is kept. Expensive selectors are
        not evaluated, and results that depend on them are omitted."""
        found = []
        is_taken = is_open = False
        for each in self.forward_to:
            selector = each.selector
            if selector is not None and not selector.is_cheap:
                is_open = True
            elif selector is None or selector.matches(message):
                found.append(each.destination)
                is_taken = True
        if self.send_when_not_matched:
            return found, not is_taken and not is_open
        return found, not self.forward_only

    def keeps(self, takers: Sequence[Destination]) -> bool:
        """Return whether it keeps a message that ``takers`` receive."""
        return not takers if self.send_when_not_matched else not self.forward_only


@dataclass(frozen=True, slots=True)
class Mirrored:
    """Queues whose messages are also sent to a topic."""

    pattern: str
    prefix: str = "VirtualTopic.Mirror."
    postfix: str = ""

    def topic(self, queue: str) -> Destination:
        return Destination(DestinationKind.TOPIC, f"{self.prefix}{queue}{self.postfix}")


@dataclass(frozen=True, slots=True)
class VirtualTopic:
    """Topics that feed queues called ``prefix``, with any word for ``*``, the topic's name, ``postfix``.
    ``is_selector_aware``: a queue receives only messages that one of its consumers takes."""

    pattern: str = "VirtualTopic.>"
    prefix: str = "Consumer.*."
    postfix: str = ""
    is_selector_aware: bool = False


class VirtualDestinations:
    """Index of the configured composite destinations, mirrored queues and virtual topics."""

    __slots__ = ("_composites", "_mirrored", "_remembered", "_topics", "virtual_topics")

    def __init__(
        self,
        composites: Iterable[Composite] = (),
        mirrored: Iterable[Mirrored] = (),
        virtual_topics: Iterable[VirtualTopic] = (VirtualTopic(),),
    ) -> None:
        self.virtual_topics = tuple(virtual_topics)
        self._composites = [(Pattern(each.pattern), each) for each in _sorted(composites)]
        self._mirrored = [(Pattern(each.pattern), each) for each in _sorted(mirrored)]
        self._topics = [Pattern(each.pattern) for each in self.virtual_topics]
        self._remembered: dict[Destination, tuple[Composite | None, Mirrored | None, bool]] = {}

    def of(self, destination: Destination) -> tuple[Composite | None, Mirrored | None, bool]:
        """Return whether it is composite, mirrored, a virtual topic. Costs one dictionary look-up."""
        found = self._remembered.get(destination)
        if found is None:
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            found = self._remembered[destination] = self._look(destination)
        return found

    def is_plain(self, destination: Destination) -> bool:
        """Return whether it keeps its messages and forwards none."""
        return self.of(destination) == _PLAIN

    def _look(self, destination: Destination) -> tuple[Composite | None, Mirrored | None, bool]:
        if is_private(destination):
            return _PLAIN
        kind, name = destination
        composite = next(
            (each for pattern, each in self._composites if each.kind is kind and pattern.matches(name)), None
        )
        if kind is DestinationKind.QUEUE:
            return composite, next((each for pattern, each in self._mirrored if pattern.matches(name)), None), False
        return composite, None, kind is DestinationKind.TOPIC and any(each.matches(name) for each in self._topics)


_PLAIN: Final = (None, None, False)


_Entry = TypeVar("_Entry", Composite, Mirrored)


def _sorted(entries: Iterable[_Entry]) -> list[_Entry]:
    return sorted(entries, key=lambda each: specificity(each.pattern))


# ---- queues of virtual topics


class VirtualTopics:
    """Index of the consumer queues of a topic. ``rules`` define which topics are virtual, and how their queues are
    named."""

    __slots__ = ("_feeds", "_is_any_aware")

    def __init__(self, rules: Iterable[VirtualTopic] = (VirtualTopic(),)) -> None:
        self._feeds = [_Feed(rule) for rule in rules]
        self._is_any_aware = any(each.rule.is_selector_aware for each in self._feeds)

    def needs_queue(self, destination: Destination) -> bool:
        """Return whether a consumer of that name with wildcards has a queue of the same name (VirtualTopic.create)."""
        return is_wildcard(destination.name) and any(each.fed_by(destination) for each in self._feeds)

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
        self._topics = Pattern(rule.pattern)
        prefix, postfix = (re.escape(text).replace(r"\*", r"[^.]+") for text in (rule.prefix, rule.postfix))
        self._name = re.compile(f"{prefix}(.+){postfix}", re.DOTALL)
        self._named: dict[str, dict[Destination, None]] = {}
        self._patterns: dict[Destination, Pattern] = {}
        self._found: dict[str, list[Destination]] = {}  # by topic, if there are patterns
        self._remembered = 0  # queues in these

    def _forget_found(self) -> None:
        self._found.clear()
        self._remembered = 0

    def fed_by(self, destination: Destination) -> str | None:
        """Return the name, or pattern, of the topics that feed ``destination``; None: none does."""
        if destination.kind is not DestinationKind.QUEUE or is_private(destination):
            return None
        found = self._name.fullmatch(destination.name)
        return None if found is None else found[1]

    def feeds(self, topic: str, queue: Destination) -> bool:
        """Return whether the topic is one of the rule's and feeds the queue."""
        topics = self.fed_by(queue)
        return topics is not None and self._topics.matches(topic) and Pattern(topics).matches(topic)

    def know(self, destination: Destination) -> None:
        topic = self.fed_by(destination)
        if topic is None:
            return
        self._forget_found()
        if is_wildcard(topic):
            self._patterns[destination] = Pattern(topic)
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
            if len(self._found) >= TOPICS_REMEMBERED_MAX or self._remembered > QUEUES_REMEMBERED_MAX:
                self._forget_found()
                self._remembered = len(found)
            self._found[topic] = found
        return found
