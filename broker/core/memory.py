"""One budget for what clients have a broker hold: messages that wait, those that were delivered and are not
acknowledged, transactions, frames on their way in and out, and what connections, subscriptions and destinations take.

No holder may have more than what is left (``Memory.free``). So a large holder leaves as much again to the others: of
n who take all they can get, each has one part in n + 1, and the last part stays for who comes later (the dynamic
threshold of Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998). The
largest holders are held back first by that: a connection is delivered nothing more until it acknowledges, what is not
stored waits with its sender when its destination holds so much, and frames that are not whole are read one by one.

Stored messages need not wait in memory: their windows grow while less than WINDOWS_PERCENT of the budget is used.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from tandemmq.store.records.message import Message

# ActiveMQ's cursorMemoryHighWaterMark.
WINDOWS_PERCENT = 70
# So much each connection may hold, however little is left: who acknowledges only every so often goes on.
HELD_BYTES_MIN = 64 * 1024
# What a message in memory costs beside its bytes: the objects, the dict of its properties, its place in a queue; and
# what it costs once more for another queue or subscription that holds the same.
ENTRY_OVERHEAD_BYTES = 520
SHARED_ENTRY_BYTES = 200
# The same for what waits for a plain subscription of a topic: all of them have one entry.
PENDING_BYTES = 8
# One of so many parts of the budget is left to connections, subscriptions and destinations.
STATE_PARTS = 4
# What these take by themselves, with their names and their places in dictionaries.
CONNECTION_BYTES = 16_000  # of MQTT 12,600, of STOMP and OpenWire 7,000 to 8,000
# What TLS takes for a connection, and how many buffers it keeps that are as long as the longest that it read at once.
TLS_BYTES = 42_000
TLS_BUFFERS = 2
# A handshake that is under way, with the keys of it and the connection that is to be.
HANDSHAKE_BYTES = 100_000
SUBSCRIPTION_BYTES = 2_000
DESTINATION_BYTES = 4_600
TOPIC_BYTES = 1_500
DURABLE_BYTES = 1_500  # a durable subscription without its parts
# Each character of the name of a destination or pattern, which is there several times.
NAME_BYTES = 4
# A place in a tree of names; a pattern of a subscription.
NODE_BYTES = 700
WATCH_BYTES = 1_000
# What is there for each pair: a consumer in a queue, what it takes more with a selector, and a selector in a queue,
# however many consumers have it; a subscription in a topic that it names; one more destination that a subscription
# names; the part of a durable subscription in a topic; a destination that a client sends to.
QUEUE_LINK_BYTES = 60
TAKER_BYTES = 140
CHOICE_BYTES = 320
TOPIC_LINK_BYTES = 120
NAMED_BYTES = 250
PART_BYTES = 5_300
SENDER_BYTES = 340
# The subscriptions with wildcards that topics share: each set of them, and each place there.
AUDIENCE_BYTES = 340
MEMBER_BYTES = 20
PRODUCER_BYTES = 500
TRANSACTION_BYTES = 700
# Each character of a name that is kept once more.
TEXT_BYTES = 1
# A temporary destination of another client, of which a client knows.
TOLD_BYTES = 300
# The owner of a message group.
GROUP_BYTES = 230
# Each character of the id of a subscription or producer; each word, text and sign of a selector.
ID_BYTES = 3
WORD_BYTES = 280
# What a browser is to be shown of each message that is not stored.
BROWSED_BYTES = 80


class Kind(StrEnum):
    """What memory is held for."""

    STORED = "stored"  # messages that are persistent, waiting or delivered
    NOT_PERSISTENT = "non_persistent"
    TRANSACTIONS = "transactions"
    WAITING_SENDS = "waiting_sends"  # and wills
    INPUT = "input"
    OUTPUT = "output"
    STATE = "state"  # of connections, subscriptions and destinations


# Asked for each message: an attribute of an enumeration takes longer.
NOT_PERSISTENT, _WAITING_SENDS = Kind.NOT_PERSISTENT, Kind.WAITING_SENDS


class Memory:
    """The budget of one engine, in bytes. ``used`` may exceed ``limit`` by what a single step takes.

    ``on_held_back`` is called when a holder is held back.
    """

    __slots__ = ("_shares", "by_kind", "committing", "held_back", "limit", "on_held_back", "used", "window_max")

    def __init__(self, limit: int) -> None:
        self._shares: dict[int, int] = {}  # how many have that piece of output, by its address
        self.limit = limit
        self.used = 0
        self.window_max = limit * WINDOWS_PERCENT // 100
        # STORED is not here: its count is the rest of ``used`` (``stored``), since it changes twice with each message.
        self.by_kind: dict[Kind, int] = {kind: 0 for kind in Kind if kind != Kind.STORED}
        self.committing = 0  # of the transactions whose end waits for room
        self.held_back: dict[Holder, None] = {}
        self.on_held_back: Callable[[], object] = lambda: None

    @property
    def stored(self) -> int:
        """Return the bytes of stored messages."""
        return self.used - sum(self.by_kind.values())

    @property
    def free(self) -> int:
        """What is left of the budget."""
        return max(0, self.limit - self.used)

    @property
    def free_for_destinations(self) -> int:
        """The bound of each destination: the free bytes, and the bytes of the sends and transactions that wait for
        room. These would wait for ever for memory that they fill themselves."""
        return max(0, self.limit - self.used + self.by_kind[_WAITING_SENDS] + self.committing)

    @property
    def has_room_for_state(self) -> bool:
        """Whether connections, subscriptions and destinations have no more than what they leave to all else. What is
        to be sent does not count: it may wait for a destination that begins."""
        return self.by_kind[Kind.STATE] <= self.free_for_destinations

    @property
    def has_room_for_pairs(self) -> bool:
        """As ``has_room_for_state``, for what clients need that take messages. A part of the budget is left to that,
        however much messages take: else what waits for a consumer that comes back would keep it out for ever."""
        return self.by_kind[Kind.STATE] < self.limit // STATE_PARTS or self.has_room_for_state

    @property
    def held_max(self) -> int:
        """What one connection may hold."""
        return max(HELD_BYTES_MIN, self.limit - self.used)

    def add(self, kind: Kind, count: int) -> None:
        """``count`` bytes more are held, or less if it is negative."""
        self.used += count
        self.by_kind[kind] += count

    def take(self, message: Message, weight: int, place: int = SHARED_ENTRY_BYTES) -> None:
        """``message`` is held, by one more; ``weight``: what it takes with its entry, ``place``: what each of those
        takes who hold it. A body that several messages share counts once."""
        message.holders = holders = message.holders + 1
        count = place
        if holders == 1:
            shared = message.shared_body
            count += weight - SHARED_ENTRY_BYTES
            if shared is not None:
                weight -= shared.size
                shared.holders += 1
                if shared.holders > 1:
                    count -= shared.size
            message.held_bytes = weight
        self.used += count
        if not message.persistent:
            self.by_kind[NOT_PERSISTENT] += count

    def give(self, message: Message, place: int = SHARED_ENTRY_BYTES) -> None:
        """One of those who hold ``message`` does no more; ``place``: as it took it."""
        message.holders -= 1
        count = place
        if not message.holders:
            count += message.held_bytes - SHARED_ENTRY_BYTES
            shared = message.shared_body
            if shared is not None:
                shared.holders -= 1
                if not shared.holders:
                    count += shared.size
        self.used -= count
        if not message.persistent:
            self.by_kind[NOT_PERSISTENT] -= count

    def share(self, piece: bytes) -> None:
        """One more client is to get ``piece``, and keeps it in memory until ``give_share``. It counts once, as
        output."""
        key = id(piece)
        holders = self._shares[key] = self._shares.get(key, 0) + 1
        if holders == 1:
            self.add(Kind.OUTPUT, len(piece))

    def give_share(self, piece: bytes) -> None:
        """One of those got it, or is gone."""
        key = id(piece)
        holders = self._shares[key] - 1
        if holders:
            self._shares[key] = holders
        else:
            del self._shares[key]
            self.add(Kind.OUTPUT, -len(piece))

    def hold_back(self, holder: Holder) -> None:
        self.held_back[holder] = None
        self.on_held_back()


#: Of the event loop's time, that a client may take before all others come first.
SHARE = 0.25


class Holder:
    """What is held for one connection.

    ``bytes``: what was delivered to it and is not acknowledged, what waits for it on topics, and what it does not read.
    ``busy``: seconds of the event loop that it caused. ``by_kind``: what it has beside messages; a part of its output
    may be that of others too. ``is_held_back``: nothing is delivered to it now; never where it is ``is_bounded`` by
    itself.
    ``on_space`` is called when it may go on.
    """

    __slots__ = (
        "_share_busy", "_share_since", "_shared_output", "busy", "by_kind", "bytes", "is_bounded", "is_held_back",
        "memory", "on_space",
    )  # fmt: skip

    def __init__(self, memory: Memory, *, is_bounded: bool = False) -> None:
        self.memory = memory
        self.is_bounded = is_bounded
        self.bytes = 0
        self.busy = 0.0
        self._share_since = self._share_busy = 0.0
        self._shared_output = 0
        self.is_held_back = False
        self.on_space: Callable[[], object] = lambda: None
        self.by_kind = dict.fromkeys((Kind.TRANSACTIONS, Kind.WAITING_SENDS, Kind.INPUT, Kind.OUTPUT, Kind.STATE), 0)

    def is_beyond_share(self, now: float) -> bool:
        """Whether it caused more than SHARE of a second of the loop's time within this second: others come first."""
        if now - self._share_since >= 1.0:
            self._share_since = now
            self._share_busy = self.busy
            return False
        return self.busy - self._share_busy > SHARE

    def hold(self, count: int) -> None:
        """``count`` bytes more were delivered, or wait for it."""
        self.bytes = count = self.bytes + count
        memory = self.memory
        if (
            count > memory.limit - memory.used
            and count > HELD_BYTES_MIN
            and not self.is_held_back
            and not self.is_bounded
        ):
            self.is_held_back = True
            memory.hold_back(self)

    def add(self, kind: Kind, count: int) -> None:
        """It has ``count`` bytes more of its own, or less if that is negative."""
        self.by_kind[kind] += count
        memory = self.memory
        memory.used += count
        memory.by_kind[kind] += count

    def set_output(self, count: int, shared: int) -> None:
        """So many bytes wait until it reads; ``shared`` of them count by ``Memory.share``."""
        more = count - self.by_kind[Kind.OUTPUT]
        self.by_kind[Kind.OUTPUT] = count
        self.memory.add(Kind.OUTPUT, more - (shared - self._shared_output))
        self._shared_output = shared
        self.hold(more)

    @property
    def has_space(self) -> bool:
        """Whether it holds no more than it may."""
        return self.bytes <= self.memory.held_max

    def retry(self) -> None:
        """Go on, if it is held back and need not be. It must have given up some of its part, or it would be held back
        again by the next message."""
        if self.is_held_back and self.bytes * 8 <= self.memory.held_max * 7:
            self.is_held_back = False
            del self.memory.held_back[self]
            self.on_space()

    def end(self) -> None:
        """The client is gone. Its subscriptions, transactions, sends that wait and its socket give back by themselves
        what they hold."""
        self.add(Kind.STATE, -self.by_kind[Kind.STATE])
        self.memory.held_back.pop(self, None)
        self.is_held_back = False
