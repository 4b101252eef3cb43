"""What a destination's name can say: several destinations, or a pattern for many (ActiveMQDestination).

A,topic://B,queue://C    composite: each part may say its kind; without, it has the kind of the whole
A?consumer.priority=1    options, for the client library only: nothing from the first "?" on is a name
A.*.C                    "*" is one word
A.B.>                    ">" at the end is all words that follow, also none
"""

from __future__ import annotations

import json

from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.store.records.message import Destination, DestinationKind

# Each part costs a copy of what is sent there.
PARTS_MAX = 1000
# So many destinations one message may be sent to, or one consumer read from.
COMPOSITE_PARTS_MAX = 100
ADVISORY_TOPICS = "ActiveMQ.Advisory."
# Names of what is the broker's own begin so; not all of these are.
OURS = "ActiveMQ."
# Queues whose names begin so are the broker's own: what it keeps for MQTT clients. Nobody else may use them.
MQTT_PRIVATE = f"{OURS}MQTT."
MQTT_SESSION = f"{MQTT_PRIVATE}Session."  # with the client id: the state of a session
MQTT_BRIDGE = f"{MQTT_PRIVATE}Bridge."  # with the name: the state of a bridge
MQTT_RETAINED = Destination(DestinationKind.QUEUE, f"{MQTT_PRIVATE}Retained")
# What operators paused, for the next master.
PAUSES = Destination(DestinationKind.QUEUE, f"{OURS}Pauses")
# The topic of the records of who holds a shared subscription (core.topics.shared). Nothing is sent there.
MQTT_SHARES = Destination(DestinationKind.TOPIC, f"{MQTT_PRIVATE}Shares")
# The topic of the records of durable subscriptions that had met no topic when they began. Nothing is sent there.
PATTERNS = Destination(DestinationKind.TOPIC, f"{OURS}Durable.Patterns")
# Durable subscriptions whose names begin so gather for MQTT clients, with their QoS; ActiveMQ calls them the same.
MQTT_GATHERING = ("AT_LEAST_ONCE:", "EXACTLY_ONCE:")
# As the store keeps it, in JSON, where a control character has six bytes.
NAME_BYTES_MAX = 512
_KEPT_BYTES_OF_ONE_MAX = 6

_BLANKS = "".join(map(chr, range(33)))  # what Java's trim() takes away
SCHEMES = {
    "queue://": DestinationKind.QUEUE,
    "topic://": DestinationKind.TOPIC,
    "temp-queue://": DestinationKind.TEMP_QUEUE,
    "temp-topic://": DestinationKind.TEMP_TOPIC,
}


def count(destination: Destination) -> int:
    """How many destinations it names. Raises as ``split`` does."""
    return len(split(destination)) if "," in destination.name else 1


def split(destination: Destination) -> tuple[Destination, ...]:
    """The destinations that it names, in their order, each once; itself if it is a plain one.

    Raises ClientError(kind=DESTINATION, is_fatal=False) where there is no name at all, or part of one is only a prefix.
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
        raise _invalid(f"Invalid destination: {len(texts)} destinations in one name, and {PARTS_MAX} is the most")
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
    """ClientError when ``name`` cannot be kept: it is too long (what a durable subscription is called stands in one
    value of the index, with the names of its client and its topic), or holds half a character, as Java's strings may.
    """
    if len(name) * _KEPT_BYTES_OF_ONE_MAX <= NAME_BYTES_MAX and name.isascii():
        return
    try:
        kept = len(json.dumps(name, ensure_ascii=False).encode()) - len('""')
    except UnicodeEncodeError:
        raise _invalid(f"{what} is no text: {name[:40]!r}", kind) from None
    if kept > NAME_BYTES_MAX:
        text = f"{what} is too long: {name[:40]!r}... has {kept} bytes, and {NAME_BYTES_MAX} are the most"
        raise _invalid(text, kind)


def _nameless(name: str) -> ClientError:
    return _invalid(f"Invalid destination: a name is missing in {name[:200]!r}")


def _invalid(message: str, kind: ErrorKind = ErrorKind.DESTINATION) -> ClientError:
    return refusal(message, kind=kind)


def is_advisory(destination: Destination) -> bool:
    """Whether messages of ``destination`` are about the broker: its consumers and producers make no advisories."""
    return destination.is_topic and destination.name.startswith(ADVISORY_TOPICS)


def is_private(destination: Destination) -> bool:
    """Whether it is a queue of the broker's own, or a pattern for some of these; or one of its topics."""
    kind, name = destination
    if not name.startswith(OURS):
        return False
    is_queue_of_mqtt = kind is DestinationKind.QUEUE and name.startswith(MQTT_PRIVATE)
    return is_queue_of_mqtt or destination in (PAUSES, MQTT_SHARES, PATTERNS)


def is_session_state(destination: Destination) -> bool:
    """Whether it is one queue, for the state of an MQTT session or a bridge. Raises as ``split`` does."""
    is_one = not is_wildcard(destination.name) and split(destination) == (destination,)
    return is_one and is_private(destination) and destination.name.startswith((MQTT_SESSION, MQTT_BRIDGE))


def is_told_of(destination: Destination) -> bool:
    """Whether there are advisories about it."""
    return not is_advisory(destination) and not is_private(destination)


def is_wildcard(name: str) -> bool:
    """Whether it stands for many destinations. A ``*`` inside a word, or ``>`` before the end, is a plain character."""
    if "*" not in name and ">" not in name:
        return False
    words = name.split(".")
    return words[-1] == ">" or "*" in words


class Pattern:
    """A name, a wildcard or not, as a test for names of its kind (DestinationFilter). ``words`` are those before a
    ``>`` at the end, with which it is open."""

    __slots__ = ("is_open", "name", "words")

    def __init__(self, name: str) -> None:
        self.name = name
        self.words = name.split(".")
        self.is_open = self.words[-1] == ">"
        while self.words and self.words[-1] == ">":  # A.>.> is A.>
            del self.words[-1]

    def matches(self, name: str) -> bool:
        """Whether a destination of this name, not itself a wildcard, is meant."""
        wanted = self.words
        words = name.split(".")
        if len(words) != len(wanted) and not (self.is_open and len(words) > len(wanted)):
            return False
        return all(each in ("*", word) for each, word in zip(wanted, words, strict=False))

    def meets(self, other: Pattern) -> bool:
        """Whether there can be a name that both match."""
        shorter, longer = sorted((self, other), key=lambda each: len(each.words))
        if len(shorter.words) != len(longer.words) and not shorter.is_open:
            return False
        pairs = zip(shorter.words, longer.words, strict=False)
        return all(mine == theirs or "*" in (mine, theirs) for mine, theirs in pairs)

    def covers(self, other: Pattern) -> bool:
        """Whether this matches all names that ``other`` matches."""
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
