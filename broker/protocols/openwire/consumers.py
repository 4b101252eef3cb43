"""Consumer as its connection knows it: deliveries that are not acknowledged yet, and their tags.

A client acknowledges by message id, in the order of dispatch; the broker counts deliveries by tag. This module converts
one into the other. The prefetch bounds the number of deliveries.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from typing import Final

from tandemmq.broker.protocols.openwire.types import ConsumerId
from tandemmq.store.records import loose
from tandemmq.store.records.message import BodyKind, Destination, Message

# RemoveInfo.LAST_DELIVERED_UNKNOWN: it is unknown which messages the application saw.
LAST_DELIVERED_UNKNOWN: Final = -2

# Maximum number of groups of a consumer that are remembered. After a group is forgotten, its next message counts as its
# first one again.
GROUPS_MAX = 10_000

# MessageDispatch: data type, command id 0, no response wanted.
_DISPATCH: Final = bytes((21, 0, 0, 0, 0, 0))


@dataclass(slots=True, eq=False, repr=False)
class Consumer:
    """A consumer's deliveries that are not acknowledged yet, by tag and by message id.

    ``is_lenient``: a plain subscriber of a topic or a browser; only the number of its acknowledgements matters
    (TopicSubscription, QueueBrowserSubscription). ``has_groups``: a consumer of queues, which give it whole groups.
    ``is_restored``: its client had it before a failover, and may acknowledge deliveries of another connection.
    ``dispatched`` counts all deliveries. ``pull_ms`` is how long its last MessagePull waits; None: there was none.
    ``wire_id`` is its id in the loose encoding, as a client writes it.
    """

    consumer_id: ConsumerId
    _: KW_ONLY
    is_lenient: bool = False
    has_groups: bool = True
    is_restored: bool = False
    id: str = field(init=False)
    dispatched: int = field(default=0, init=False)
    pull_ms: int | None = field(default=None, init=False)
    _groups: dict[str, None] = field(default_factory=dict, init=False)  # the least recently begun first
    wire_id: bytes = field(init=False)
    _start: bytes = field(init=False)
    _destination: Destination | None = field(default=None, init=False)
    _head: bytes = field(default=b"", init=False)
    _unacked: dict[int, Message] = field(default_factory=dict, init=False)  # tags only grow: in order
    # Of two deliveries of one message (composites, wildcards), the older one.
    _tags: dict[str, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.id = subscription_id(self.consumer_id)
        self.wire_id = loose.consumer_id(str(self.consumer_id))
        self._start = _DISPATCH + self.wire_id

    def __len__(self) -> int:
        return len(self._unacked)

    # ---- dispatch

    def remember(self, tag: int, message: Message) -> None:
        """Remember a delivery. Its client acknowledges it by the id of ``message``."""
        self.dispatched += 1
        self._unacked[tag] = message
        self._tags.setdefault(message.message_id, tag)

    def begins_group(self, message: Message) -> bool:
        """Return whether a message that is dispatched now is the first of its group for this consumer (Queue.java,
        JMSXGroupFirstForConsumer). A negative sequence ends the group, 1 begins it again."""
        group = message.group_id
        if group is None or not self.has_groups:
            return False
        is_first = message.group_sequence == 1 or group not in self._groups
        if message.group_sequence < 0:
            self._groups.pop(group, None)
        elif is_first:
            self._groups[group] = None
            if len(self._groups) > GROUPS_MAX:
                del self._groups[next(iter(self._groups))]
        return is_first

    def head(self, destination: Destination) -> bytes:
        """Return the bytes before the message in its MessageDispatch, from the data type on (loose encoding)."""
        if destination is not self._destination:
            self._destination = destination
            self._head = self._start + loose.destination(destination) + b"\1"
        return self._head

    # ---- acknowledgements

    def tag(self, message_id: str | None, destination: Destination | None = None) -> int | None:
        """Return the oldest unacknowledged delivery of that message, from ``destination`` if one came from there; None
        if there is none."""
        if message_id is None:
            return None
        if message_id not in self._tags:
            # An id that was not made by a Java client has an invented producer on the wire (loose.producer_key).
            message_id = message_id.removesuffix(_FOREIGN)
        tag = self._tags.get(message_id)
        if tag is None or not self._has_duplicates or self._unacked[tag].destination == destination:
            return tag
        twins = (each for each, other in self._unacked.items() if other.message_id == message_id)
        return next((each for each in twins if self._unacked[each].destination == destination), tag)

    @property
    def _has_duplicates(self) -> bool:
        """True if some message waits more than once, because it came from several destinations."""
        return len(self._tags) != len(self._unacked)

    def acknowledge(self, message_id: str) -> int | None:
        """Forget the delivery of that message, and return its tag; None if it needs the full check."""
        tags, unacked = self._tags, self._unacked
        tag = tags.get(message_id)
        if tag is None or self.is_lenient or len(tags) != len(unacked):
            return None
        del tags[message_id], unacked[tag]
        return tag

    def count(self, first: int, last: int) -> int:
        """Return how many deliveries from ``first`` (0: the oldest) to ``last`` wait for an acknowledgement."""
        if first == last:
            return 1 if last in self._unacked else 0
        return len(self._between(first, last))

    def oldest(self, count: int) -> int:
        """Return the tag up to which ``count`` deliveries wait, or all if they are fewer; 0 if none does."""
        tags = list(islice(self._unacked, count))
        return tags[-1] if tags else 0

    def forget(self, first: int, last: int) -> None:
        """Forget deliveries whose acknowledgement is final."""
        if first == last:
            self._forget(last)
            return
        for tag in self._between(first, last):
            self._forget(tag)

    def _between(self, first: int, last: int) -> list[int]:
        tags = []
        for tag in self._unacked:
            if tag > last:
                break
            if tag >= first:
                tags.append(tag)
        return tags

    def _forget(self, tag: int) -> None:
        message = self._unacked.pop(tag, None)
        if message is None:
            return
        message_id = message.message_id
        if self._tags[message_id] != tag:
            return  # an older delivery of the same message still waits
        del self._tags[message_id]
        if not self._has_duplicates:
            return
        for younger, other in self._unacked.items():
            if other.message_id == message_id:
                self._tags[message_id] = younger
                return

    # ---- the end

    def seen(self, last_delivered: int) -> int | None:
        """Return the tag up to which the application saw its messages, by the broker's number of the last one
        (RemoveInfo): see Unsubscribe. A number that is not among them means that none of these was seen
        (Queue.removeSubscription)."""
        if last_delivered == LAST_DELIVERED_UNKNOWN:
            return None
        if last_delivered > 0:
            for tag, message in self._unacked.items():
                if _sequence(message) == last_delivered:
                    return tag
        return 0


# Suffix that loose.producer_key adds to an id without numbers.
_FOREIGN: Final = ":0:0:0"


def _sequence(message: Message) -> int:
    """Return MessageId.brokerSequenceId as the client got it: without a number of the broker's, the producer's."""
    return message.broker_sequence or loose.split_key(message.message_id)[1]


def subscription_id(consumer_id: ConsumerId) -> str:
    """Return the name of a consumer within its connection."""
    return f"{consumer_id.session_id}:{consumer_id.value}"


def first_of_group(nested: memoryview) -> memoryview:
    """Return the message with its last field set, jMSXGroupFirstForConsumer. A blob, which has more bytes after it, is
    not changed."""
    if nested[0] == BodyKind.BLOB:
        return nested
    changed = bytearray(nested)
    changed[-1] = 1
    return memoryview(changed)
