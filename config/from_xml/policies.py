"""Conversion of destination policies, usage limits, and plugins for all destinations: [[destinations]].

Only one entry applies to a destination, as in ActiveMQ: nothing is merged. So the settings of a plugin for all
destinations are put into every entry, and into those for all queues and topics, which are created if there are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tandemmq.config import policy_entries
from tandemmq.config.broker_properties import PLUGIN_POLICIES, USAGE
from tandemmq.config.destinations import DestinationSettings
from tandemmq.config.from_xml.conversion import ANYWAY, Conversion, Source, Table, typed
from tandemmq.config.from_xml.document import Element
from tandemmq.config.kahadb_property import Property, snake_case

_EVERYTHING: Final = ">"
_PREFIX: Final = f"{policy_entries.PREFIX}."
_DEAD_LETTERS: Final = "dead_letter_strategy"
_JAVA_CLIENTS: Final = (
    'It applies to redeliveries by the broker: a STOMP NACK with broker.stomp_nack = "requeue". Java '
    "clients use their own RedeliveryPolicy."
)
_AS_THERE: Final = (
    "As in ActiveMQ, one queue for all dead letters, ActiveMQ.DLQ. Without such tables each queue has its own."
)
_NO_RECOVERY: Final = "noSubscriptionRecoveryPolicy"
_TWICE: Final = "A later entry for this pattern applies."


def _by_name(group: Iterable[Property]) -> dict[str, Property]:
    return {found.name: found for found in group}


_ENTRY: Final = _by_name(policy_entries.POLICY_ENTRY)
_REDELIVERY: Final = _by_name(policy_entries.REDELIVERY)
#: Type of each strategy's element in its table; None: its attributes are sufficient.
_STRATEGIES: Final[Mapping[str, tuple[Mapping[str, Property], Mapping[str, str | None]]]] = {
    "deadLetterStrategy": (
        _by_name(policy_entries.DEAD_LETTER),
        {
            "individualDeadLetterStrategy": "individual",
            "sharedDeadLetterStrategy": "shared",
            "discarding": "discarding",
            "discardingDeadLetterStrategy": "discarding",
        },
    ),
    "slowConsumerStrategy": (
        _by_name(policy_entries.SLOW_CONSUMER),
        {
            "abortSlowConsumerStrategy": "abort_slow_consumer",
            "abortSlowAckConsumerStrategy": "abort_slow_ack_consumer",
        },
    ),
    "pendingMessageLimitStrategy": (
        _by_name(policy_entries.PENDING_LIMIT),
        {"constantPendingMessageLimitStrategy": None, "prefetchRatePendingMessageLimitStrategy": None},
    ),
    "messageEvictionStrategy": (
        _by_name(policy_entries.EVICTION),
        {
            "oldestMessageEvictionStrategy": "oldest",
            "oldestMessageWithLowestPriorityEvictionStrategy": "oldest_message_with_lowest_priority",
            "uniquePropertyMessageEvictionStrategy": "unique_property",
        },
    ),
    "subscriptionRecoveryPolicy": (
        _by_name(policy_entries.RECOVERY),
        {
            "fixedCountSubscriptionRecoveryPolicy": "fixed_count",
            "fixedSizedSubscriptionRecoveryPolicy": "fixed_sized",
            "lastImageSubscriptionRecoveryPolicy": "last_image",
            "timedSubscriptionRecoveryPolicy": "timed",
            "retainedMessageSubscriptionRecoveryPolicy": "retained_message",
        },
    ),
}
_KINDS: Final = {"queue": "queue", "topic": "topic", "tempQueue": "temp_queue", "tempTopic": "temp_topic"}
Subject = tuple[str, str]


class Policies:
    """Policies collected from all elements, until the document is complete."""

    def __init__(self, work: Conversion) -> None:
        self._work: Final = work
        self._entries: Final[dict[Subject, Table]] = {}
        self._redeliveries: Final[dict[Subject, Table]] = {}
        #: Settings of all destinations: key, value, and source.
        self._everywhere: Final[list[tuple[str, object, Source]]] = []
        self._dead_letters: str | None = None

    def policy(self, holder: Element) -> None:
        """Convert destinationPolicy."""
        for policy_map in self._work.children(holder, "policyMap"):
            self._work.wrap(policy_map)
            for wrapper in policy_map.children:
                if wrapper.name == "policyEntries":
                    for element in self._work.children(wrapper, "policyEntry"):
                        self._add(self._entries, element, self._entry(element), self._subjects(element))
                elif wrapper.name == "defaultEntry":
                    for element in self._work.children(wrapper, "policyEntry"):
                        everything = [kind for kind in ("queue", "topic") if (kind, _EVERYTHING) not in self._entries]
                        subjects: list[tuple[str | None, Subject]] = [
                            (None, (kind, _EVERYTHING)) for kind in everything
                        ]
                        self._add(self._entries, element, self._entry(element), subjects)

    def usage(self, holder: Element) -> None:
        """Convert systemUsage."""
        for usage in self._work.children(holder, "systemUsage"):
            self._work.wrap(usage)
            for name in ("sendFailIfNoSpace", "sendFailIfNoSpaceAfterTimeout"):
                if name in usage.attributes:
                    self._apply_everywhere(usage, name, snake_case(name))
            for wrapper in (child for child in usage.children if child.name in USAGE):
                self._work.wrap(wrapper)
                for limit in wrapper.children:
                    if limit.name == "memoryUsage" == wrapper.name and "limit" in limit.attributes:
                        self._work.wrap(limit)
                        self._work.carry(limit, "limit", self._work.settings.table("broker"), "memory_limit")
                        for name in limit.attributes.keys() - {"limit"}:
                            self._work.leave(limit, name, USAGE[wrapper.name])
                    else:
                        self._work.leave(limit, None, USAGE[wrapper.name])

    def time_stamps(self, element: Element) -> None:
        """Convert timeStampingBrokerPlugin."""
        self._work.wrap(element)
        for name in element.attributes:
            if name in ("ttlCeiling", "zeroExpirationOverride"):
                self._apply_everywhere(element, name, snake_case(name))
        self._others(element, "ttlCeiling", "zeroExpirationOverride")

    def discard(self, element: Element) -> None:
        """Convert discardingDLQBrokerPlugin: all dead letters are dropped, unless dropAll is false."""
        self._work.wrap(element)
        attribute = "dropAll" if "dropAll" in element.attributes else None
        if attribute is None or self._work.value(element, attribute).lower() == "true":
            self._dead_letters = "discarding"
        self._work.became(element, attribute, f"{_PREFIX}{_DEAD_LETTERS}")
        self._others(element, "dropAll")

    def redeliver(self, element: Element) -> None:
        """Convert redeliveryPlugin."""
        self._others(element)
        for holder in self._work.children(element, "redeliveryPolicyMap"):
            for policy_map in self._work.children(holder, "redeliveryPolicyMap"):
                self._work.wrap(policy_map)
                for wrapper in policy_map.children:
                    if wrapper.name in ("redeliveryPolicyEntries", "defaultEntry"):
                        for policy in self._work.children(wrapper, "redeliveryPolicy"):
                            self._redelivery(policy, wrapper.name == "defaultEntry")
        self._work.became(element, None, f"{_PREFIX}redelivery", _JAVA_CLIENTS)

    def finish(self, *, is_whole: bool) -> None:
        """Write all entries at the end. ``is_whole``: the document is a broker, whose dead letters go where ActiveMQ's
        do unless it sets another target."""
        dead_letters = self._dead_letters or ("shared" if is_whole else None)
        subjects = dict.fromkeys([*self._entries, *self._redeliveries])
        if self._everywhere or dead_letters is not None:
            subjects.update(dict.fromkeys([("queue", _EVERYTHING), ("topic", _EVERYTHING)]))
        is_told = False
        for subject in subjects:
            kind, pattern = subject
            found = _closest(self._entries, subject)
            table = found.copy() if found is not None else _new()
            for each in _KINDS.values():
                table.values.pop(each, None)
            sources = table.sources.pop(kind, [])
            table.values = {kind: pattern if kind in ("queue", "topic") else True, **table.values}
            if subject in self._entries:
                table.sources[kind] = sources
            redelivery = _closest(self._redeliveries, subject)
            if redelivery is not None:
                table.values["redelivery"] = redelivery.copy()
            for key, value, source in self._everywhere:
                if key not in table.values:
                    table.values[key] = value
                    table.sources[key] = [source]
            if dead_letters is not None and (self._dead_letters or _DEAD_LETTERS not in table.values):
                table.values.pop(_DEAD_LETTERS, None)
                table.table(_DEAD_LETTERS).values["type"] = dead_letters
                if self._dead_letters is None and not is_told:
                    table.table(_DEAD_LETTERS).comment, is_told = _AS_THERE, True
            self._work.settings.values.setdefault("destinations", []).append(table)

    # ---- one entry

    def _subjects(self, element: Element) -> list[tuple[str | None, Subject]]:
        found: list[tuple[str | None, Subject]] = []
        for name, kind in _KINDS.items():
            if name in element.attributes:
                text = self._work.value(element, name)
                if kind in ("queue", "topic"):
                    found += [(name, (kind, part.strip())) for part in text.split(",") if part.strip()]
                elif text.lower() == "true":
                    found.append((name, (kind, _EVERYTHING)))
                self._work.became(element, name, f"{_PREFIX}{kind}")
        return found

    def _add(
        self, entries: dict[Subject, Table], element: Element, table: Table, subjects: list[tuple[str | None, Subject]]
    ) -> None:
        if not subjects:
            self._work.leave(element, None, "It names no destinations, or other entries have them.")
        for attribute, (kind, pattern) in subjects:
            before = entries.get((kind, pattern))
            if before is not None:
                for other in {source[0] for source in before.every_source() if source[0].name == element.name}:
                    self._work.leave(other, None, _TWICE)
            mine = table.copy()
            mine.sources[kind] = [(element, attribute)]
            entries[kind, pattern] = mine

    def _entry(self, element: Element) -> Table:
        table = _new()
        table.sources[""] = [(element, None)]
        self._work.became(element, None, "destinations")
        settings = {name: found for name, found in _ENTRY.items() if name not in (*_KINDS, *_STRATEGIES)}
        self._work.carry_all(element, settings, table, _PREFIX)
        for child in element.children:
            if child.name in _STRATEGIES:
                self._strategy(child, table)
            elif child.name in _ENTRY:
                self._work.leave(child, None, _ENTRY[child.name].here)
        return table

    def _strategy(self, holder: Element, table: Table) -> None:
        known, types = _STRATEGIES[holder.name]
        settings = {name: found for name, found in known.items() if name != "deadLetterQueue"}
        for element in holder.children:
            if element.name == _NO_RECOVERY:
                self._work.became(element, None, ANYWAY)
            elif element.name not in types:
                self._work.leave(element, None, f"There is no such strategy here; there are {', '.join(types)}.")
        for element in self._work.children(holder, *types):
            inner = table.table(snake_case(holder.name))
            kind = types[element.name]
            self._work.became(element, None, inner.name)
            if kind is not None:
                self._work.carry(element, None, inner, "type", kind)
            self._work.carry_all(element, settings, inner, f"{inner.name}.")
            if "deadLetterQueue" in element.attributes:
                name = self._work.value(element, "deadLetterQueue").removeprefix("queue://")
                self._work.carry(element, "deadLetterQueue", inner, "dead_letter_queue", name)
            for child in element.children:
                if child.name == "deadLetterQueue":
                    for queue in self._work.children(child, "queue"):
                        self._work.wrap(queue)
                        for name in queue.attributes.keys() & {"physicalName", "name"}:
                            self._work.carry(queue, name, inner, "dead_letter_queue")
                elif child.name in known:
                    self._work.leave(child, None, known[child.name].here)

    def _redelivery(self, element: Element, is_default: bool) -> None:
        table = _new().table("redelivery")
        self._work.became(element, None, f"{_PREFIX}redelivery")
        settings = {name: found for name, found in _REDELIVERY.items() if name not in _KINDS}
        self._work.carry_all(element, settings, table, f"{table.name}.")
        subjects = self._subjects(element)
        if is_default and not subjects:
            subjects = [(None, ("queue", _EVERYTHING)), (None, ("topic", _EVERYTHING))]
        self._add(self._redeliveries, element, table, subjects)

    # ---- of all destinations

    def _apply_everywhere(self, element: Element, attribute: str, key: str) -> None:
        table = _new()
        value = typed(table.model, key, self._work.value(element, attribute))
        self._everywhere.append((key, value, (element, attribute)))
        self._work.became(element, attribute, f"{_PREFIX}{key}")

    def _others(self, element: Element, *but: str) -> None:
        known = {name: found for name, found in PLUGIN_POLICIES.items() if name not in but}
        self._work.carry_all(element, known, _new(), _PREFIX)


def _new() -> Table:
    return Table(DestinationSettings, policy_entries.PREFIX)


def _closest(entries: Mapping[Subject, Table], subject: Subject) -> Table | None:
    """Return the table of the most specific pattern that covers the subject's pattern."""
    if subject in entries:
        return entries[subject]
    kind, pattern = subject
    patterns = [other for each, other in entries if each == kind and covers(other, pattern)]
    return entries[kind, max(patterns, key=_rank)] if patterns else None


def covers(general: str, special: str) -> bool:
    """Return whether ``general`` matches all names that ``special`` matches."""
    words = special.split(".")
    for place, word in enumerate(general.split(".")):
        if word == _EVERYTHING:
            return True
        if place >= len(words) or (word != words[place] and (word != "*" or words[place] == _EVERYTHING)):
            return False
    return len(words) == len(general.split("."))


def _rank(pattern: str) -> list[int]:
    """Return a rank: word by word from the left, a word above `*`, and `*` above `>`; the end of a name above all."""
    return [*(0 if word == _EVERYTHING else 1 if word == "*" else 2 for word in pattern.split(".")), 3]
