"""Syntax of a destination's name: several destinations, or a pattern for many (ActiveMQDestination).

A,topic://B,queue://C    composite: each part may name its kind; otherwise it has the kind of the whole
A?consumer.priority=1    options, for the client library only: nothing from the first "?" on is a name
A.*.C                    "*" is one word
A.B.>                    ">" at the end is any number of words, also none
"""

from __future__ import annotations

import json
from typing import Final

from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.store.records.message import Destination, DestinationKind

# Each part costs a copy of each message.
PARTS_MAX = 1000
# Maximum number of destinations that one message may be sent to, or one consumer may read from.
COMPOSITE_PARTS_MAX = 100
ADVISORY_TOPICS = "ActiveMQ.Advisory."
# Names of the broker's own destinations have this prefix. Some other destinations have it, too.
OURS = "ActiveMQ."
# Queues with this prefix are the broker's own: its state for MQTT clients. No client may use them.
MQTT_PRIVATE = f"{OURS}MQTT."
MQTT_SESSION = f"{MQTT_PRIVATE}Session."  # with the client id: the state of a session
MQTT_BRIDGE = f"{MQTT_PRIVATE}Bridge."  # with the name: the state of a bridge
MQTT_RETAINED = Destination(DestinationKind.QUEUE, f"{MQTT_PRIVATE}Retained")
# Destinations that operators paused, for the next master.
PAUSES = Destination(DestinationKind.QUEUE, f"{OURS}Pauses")
# Topic of the records of the holders of shared subscriptions (core.topics.shared). No message is sent there.
MQTT_SHARES = Destination(DestinationKind.TOPIC, f"{MQTT_PRIVATE}Shares")
# Topic of the records of durable subscriptions that matched no topic when they began. No message is sent there.
PATTERNS = Destination(DestinationKind.TOPIC, f"{OURS}Durable.Patterns")
# Durable subscriptions with these prefixes collect for MQTT clients, with their QoS; ActiveMQ uses the same names.
MQTT_GATHERING = ("AT_LEAST_ONCE:", "EXACTLY_ONCE:")
# Maximum length of a name in bytes, in the JSON of the store: a control character takes six bytes.
NAME_BYTES_MAX = 512
_KEPT_BYTES_OF_ONE_MAX = 6

_BLANKS = "".join(map(chr, range(33)))  # the characters that Java's trim() removes
SCHEMES = {
    "queue://": DestinationKind.QUEUE,
    "topic://": DestinationKind.TOPIC,
    "temp-queue://": DestinationKind.TEMP_QUEUE,
    "temp-topic://": DestinationKind.TEMP_TOPIC,
}


def count(destination: Destination) -> int:
    """Return the number of destinations that a name stands for. Raises as ``split`` does."""
    return len(split(destination)) if "," in destination.name else 1


def split(destination: Destination) -> tuple[Destination, ...]:
    """Return the destinations that a name stands for, in their order, each once; the destination itself if it is plain.

    Raises ClientError(kind=DESTINATION, is_fatal=False) if there is no name at all, or a part is only a prefix.
    """
    kind, name = destination
    plain = name.strip(_BLANKS).partition("?")[0]
    if "," not in plain:
        if not plain.strip(_BLANKS):
            raise _nameless(name)
        check_length("the name of a destination", plain)
        # ActiveMQ, too, takes a prefix for a kind only in a composite name
        return (destination,) if plain == name else (Destination(kind, plain),)
    texts = [text for part in plain.split(",") if (text := part.strip(_BLANKS))]
    if len(texts) > PARTS_MAX:
        raise _invalid(f"Invalid destination: {len(texts)} destinations in one name; the maximum is {PARTS_MAX}")
    if not texts:
        raise _nameless(name)
    return tuple(dict.fromkeys(_part(text, kind, name) for text in texts))


def _part(text: str, kind: DestinationKind, whole: str) -> Destination:
    for prefix, meant in SCHEMES.items():
        if text.startswith(prefix):
            kind, text = meant, text.removeprefix(prefix).strip(_BLANKS)
            break
    if not text:
        raise _nameless(whole)
    check_length("the name of a destination", text)
    return Destination(kind, text)


def check_length(what: str, name: str, kind: ErrorKind = ErrorKind.DESTINATION) -> None:
    """Check that ``name`` can be stored. ClientError if it is too long (the index stores the name of a durable
    subscription in one value with those of its client and topic), or holds half a surrogate pair, as Java's strings
    may.
    """
    if len(name) * _KEPT_BYTES_OF_ONE_MAX <= NAME_BYTES_MAX and name.isascii():
        return
    try:
        kept = len(json.dumps(name, ensure_ascii=False).encode()) - len('""')
    except UnicodeEncodeError:
        raise _invalid(f"{what} is not valid Unicode: {name[:40]!r}", kind) from None
    if kept > NAME_BYTES_MAX:
        text = f"{what} is too long: {name[:40]!r}... has {kept} bytes; the maximum is {NAME_BYTES_MAX}"
        raise _invalid(text, kind)


def _nameless(name: str) -> ClientError:
    return _invalid(f"Invalid destination: a name is missing in {name[:200]!r}")


def _invalid(message: str, kind: ErrorKind = ErrorKind.DESTINATION) -> ClientError:
    return refusal(message, kind=kind)


def is_advisory(destination: Destination) -> bool:
    """Return whether messages of ``destination`` are about the broker: its consumers and producers make no
    advisories."""
    return destination.is_topic and destination.name.startswith(ADVISORY_TOPICS)


def is_private(destination: Destination) -> bool:
    """Return whether it is a queue or topic of the broker's own, or a pattern for some of these queues."""
    kind, name = destination
    if not name.startswith(OURS):
        return False
    is_queue_of_mqtt = kind is DestinationKind.QUEUE and name.startswith(MQTT_PRIVATE)
    return is_queue_of_mqtt or destination in (PAUSES, MQTT_SHARES, PATTERNS)


def is_session_state(destination: Destination) -> bool:
    """Return whether it is a single queue for the state of an MQTT session or a bridge. Raises as ``split`` does."""
    is_one = not is_wildcard(destination.name) and split(destination) == (destination,)
    return is_one and is_private(destination) and destination.name.startswith((MQTT_SESSION, MQTT_BRIDGE))


def has_advisories(destination: Destination) -> bool:
    """Return whether there are advisories about the destination."""
    return not is_advisory(destination) and not is_private(destination)


def is_wildcard(name: str) -> bool:
    """Return whether the name is a pattern. A ``*`` inside a word, or ``>`` before the end, is a plain character."""
    if "*" not in name and ">" not in name:
        return False
    words = name.split(".")
    return words[-1] == ">" or "*" in words


class Pattern:
    """Test for names of one kind: a plain name or a wildcard (DestinationFilter). ``words`` are the words before a
    ``>`` at the end; with such an end the pattern ``is_open``."""

    __slots__ = ("is_open", "name", "words")

    def __init__(self, name: str) -> None:
        self.name = name
        self.words = name.split(".")
        self.is_open = self.words[-1] == ">"
        while self.words and self.words[-1] == ">":  # A.>.> is A.>
            del self.words[-1]

    def matches(self, name: str) -> bool:
        """Return whether the pattern matches ``name``, which is not a wildcard itself."""
        wanted = self.words
        words = name.split(".")
        if len(words) != len(wanted) and not (self.is_open and len(words) > len(wanted)):
            return False
        return all(each in ("*", word) for each, word in zip(wanted, words, strict=False))

    def meets(self, other: Pattern) -> bool:
        """Return whether a name can exist that both match."""
        shorter, longer = sorted((self, other), key=lambda each: len(each.words))
        if len(shorter.words) != len(longer.words) and not shorter.is_open:
            return False
        pairs = zip(shorter.words, longer.words, strict=False)
        return all(mine == theirs or "*" in (mine, theirs) for mine, theirs in pairs)

    def covers(self, other: Pattern) -> bool:
        """Return whether the pattern matches all names that ``other`` matches."""
        theirs = other.words or ["*"]  # a name has one word at least
        if other.is_open and not self.is_open:
            return False
        if len(theirs) != len(self.words) and not (self.is_open and len(theirs) > len(self.words)):
            return False
        return all(mine in ("*", their) for mine, their in zip(self.words, theirs, strict=False))

    def __eq__(self, other: object) -> bool:
        return self.name == other.name if isinstance(other, Pattern) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<Pattern {self.name}>"


_RANKS: Final = {"*": 1, ">": 3}
# Rank after the last word: a longer pattern is more specific than its own beginning, except for ">".
_END: Final = 2


def specificity(pattern: str) -> tuple[tuple[int, ...], str]:
    """Return a sort key of patterns, the most specific one first; no two keys are equal. Of several patterns that match
    a destination, the first one's policy applies.

    Word by word from the left, a word is more specific than ``*``, and ``*`` more than ``>``. ActiveMQ defines the same
    order. But if one of two patterns has a ``*``, ActiveMQ's choice is often arbitrary (ActiveMQDestination.compare
    does not define an order of ``*.>`` and ``B.>``).
    """
    return (*(_RANKS.get(word, 0) for word in pattern.split(".")), _END), pattern
