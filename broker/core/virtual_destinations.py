"""Settings of destinations that forward messages: composite destinations, mirrored queues, virtual topics.

    composite  queue ORDERS           ->  queue BILLING, and topic NOTED if a selector matches
    mirrored   queue ORDERS           ->  itself, and topic VirtualTopic.Mirror.ORDERS
    virtual    topic VirtualTopic.X   ->  itself, and each queue Consumer.<any word>.VirtualTopic.X

Pure. They are ActiveMQ's CompositeQueue, CompositeTopic, MirroredQueue and VirtualTopic. Of each kind only one applies:
the most specific one whose pattern matches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from tandemmq.broker.core.delivery import Selector
from tandemmq.broker.core.names import Pattern, is_private, specificity
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.store.records.message import Destination, DestinationKind, Message

#: Number of destinations whose kind is cached; beyond it the cache is cleared.
REMEMBERED_MAX: Final = 10_000
#: Maximum number of times that a message is forwarded from one composite destination to the next.
FORWARDS_MAX: Final = 8


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
