"""Memory budget of one broker for its clients: messages that wait, delivered messages that are not acknowledged,
transactions, frames on their way in and out, and connections, subscriptions and destinations.

No holder may have more than is left (``Memory.free``). So a large holder leaves the same amount to the others: of n
holders that take all they can get, each has one part in n + 1, and the last part stays for later clients (the dynamic
threshold of Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998). So the
largest holders are held back first: a connection receives nothing more until it acknowledges, a message that is not
stored waits at its sender when its destination holds that much, and incomplete frames are read one by one.

Stored messages need not wait in memory: their windows grow while less than WINDOWS_PERCENT of the budget is used.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from tandemmq.store.records.message import Message

# ActiveMQ's cursorMemoryHighWaterMark.
WINDOWS_PERCENT: Final = 70
# Bytes that each connection may hold even if less is left, so that a client that acknowledges rarely can continue.
HELD_BYTES_MIN = 64 * 1024
# Interval of the checks whether a connection that is held back may receive messages again.
RETRY_SECONDS = 0.05
# Cost of a message in memory beside its bytes: the objects, the dict of its properties, its place in a queue. Then the
# cost of one more queue or subscription that holds the same message.
ENTRY_OVERHEAD_BYTES: Final = 520
SHARED_ENTRY_BYTES: Final = 200
# The cost of one more plain subscription of a topic for which the message waits: all of them share one entry.
PENDING_BYTES: Final = 8
# The part 1 / STATE_PARTS of the budget is reserved for connections, subscriptions and destinations.
STATE_PARTS: Final = 4
# Memory of each of these in bytes, with its names and its entries in dictionaries. Tests change those that are not
# Final.
CONNECTION_BYTES = 13_000  # of MQTT 12,600, of STOMP and OpenWire 7,000 to 8,000
# Memory of TLS for a connection, and the number of buffers it keeps, each as long as the longest single read.
TLS_BYTES: Final = 42_000
TLS_BUFFERS: Final = 2
# A handshake in progress, with its keys and the future connection.
HANDSHAKE_BYTES: Final = 100_000
SUBSCRIPTION_BYTES = 2_000
DESTINATION_BYTES = 4_600
TOPIC_BYTES = 1_500
DURABLE_BYTES: Final = 1_500  # a durable subscription without its parts
# Each character of the name of a destination or pattern, which is stored several times.
NAME_BYTES = 4
# A place in a tree of names; a pattern of a subscription.
NODE_BYTES = 700
WATCH_BYTES = 1_000
# Memory of each pair: a consumer in a queue, its addition for a selector, a selector in a queue (once for all its
# consumers); a subscription in a topic that it names; one more destination that a subscription names; the part of a
# durable subscription in a topic; a destination that a client sends to.
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
# Each character of a name that is stored once more.
TEXT_BYTES = 1
# A temporary destination of another client that is announced to a client.
ANNOUNCED_BYTES: Final = 300
# The owner of a message group.
GROUP_BYTES = 230
# Each character of the id of a subscription or producer; each word, text and sign of a selector.
ID_BYTES = 3
WORD_BYTES = 280
# Each instruction of a regular expression in a selector.
INSTRUCTION_BYTES: Final = 90
# Entry of a browser for each message that is not stored.
BROWSED_BYTES = 80


class Kind(StrEnum):
    """Use of memory."""

    STORED = "stored"  # persistent messages, waiting or delivered
    NOT_PERSISTENT = "non_persistent"
    TRANSACTIONS = "transactions"
    WAITING_SENDS = "waiting_sends"  # and wills
    INPUT = "input"
    OUTPUT = "output"
    BROWSED = "browsed"  # stored messages that were read for browsers and are not delivered yet
    STATE = "state"  # of connections, subscriptions and destinations


# Constants, because they are read for each message: an attribute of an enumeration is slower.
NOT_PERSISTENT, _WAITING_SENDS = Kind.NOT_PERSISTENT, Kind.WAITING_SENDS


class Memory:
    """The budget of one engine, in bytes. ``used`` may exceed ``limit`` by the memory of a single step.

    ``on_held_back`` is called when a holder is held back.
    """

    __slots__ = ("_shares", "by_kind", "committing", "held_back", "limit", "on_held_back", "used", "window_max")

    def __init__(self, limit: int) -> None:
        self._shares: dict[int, int] = {}  # holders of a piece of output, by its address
        self.limit = limit
        self.used = 0
        self.window_max = limit * WINDOWS_PERCENT // 100
        # STORED is not here: its count is the rest of ``used`` (``stored``), since it changes twice with each message.
        self.by_kind: dict[Kind, int] = {kind: 0 for kind in Kind if kind != Kind.STORED}
        self.committing = 0  # bytes of the transactions whose end waits for room
        self.held_back: dict[Holder, None] = {}
        self.on_held_back: Callable[[], object] = lambda: None

    @property
    def stored(self) -> int:
        """Return the bytes of stored messages."""
        return self.used - sum(self.by_kind.values())

    @property
    def free(self) -> int:
        """Bytes of the budget that are left."""
        return max(0, self.limit - self.used)

    @property
    def free_for_destinations(self) -> int:
        """The bound of each destination: the free bytes, and the bytes of the sends and transactions that wait for
        room. Otherwise these would wait forever for memory that they fill themselves."""
        return max(0, self.limit - self.used + self.by_kind[_WAITING_SENDS] + self.committing)

    @property
    def has_room_for_state(self) -> bool:
        """True if connections, subscriptions and destinations use at most as much memory as is free. Messages that wait
        to be sent count as free: they may wait for a destination that begins."""
        return self.by_kind[Kind.STATE] <= self.free_for_destinations

    @property
    def has_room_for_pairs(self) -> bool:
        """True if there is room for the state of consuming clients: like ``has_room_for_state``, but a part of the
        budget is reserved, also if messages use the rest. Otherwise the messages that wait for a consumer would prevent
        its return."""
        return self.by_kind[Kind.STATE] < self.limit // STATE_PARTS or self.has_room_for_state

    @property
    def held_max(self) -> int:
        """Maximum bytes of one connection."""
        return max(HELD_BYTES_MIN, self.limit - self.used)

    def add(self, kind: Kind, count: int) -> None:
        """Count ``count`` bytes more, or less if it is negative."""
        self.used += count
        self.by_kind[kind] += count

    def take(self, message: Message, weight: int, place: int = SHARED_ENTRY_BYTES) -> None:
        """Count one more holder of ``message``. ``weight``: its size with its entry; ``place``: the cost of each
        holder. A body that several messages share counts once."""
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
        """Remove one holder of ``message``; ``place``: as in ``take``."""
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
        """Count one more client that will receive ``piece``, held in memory until ``give_share``. All count once, as
        output."""
        key = id(piece)
        holders = self._shares[key] = self._shares.get(key, 0) + 1
        if holders == 1:
            self.add(Kind.OUTPUT, len(piece))

    def give_share(self, piece: bytes) -> None:
        """Remove one client that received the piece, or left."""
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


#: Part of the event loop's time that a client may take before all others come first.
SHARE: Final = 0.25


class Holder:
    """Memory and time of one connection.

    ``bytes``: unacknowledged deliveries, messages that wait for it on topics, and output that it does not read.
    ``busy``: seconds of the event loop that it caused. ``by_kind``: its memory beside messages; a part of its output
    may be shared with others. ``is_held_back``: nothing is delivered to it now; always False with ``is_bounded``
    (another limit applies to this connection).

    ``on_space`` is called when the connection may continue.
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
        self.by_kind = dict.fromkeys(
            (Kind.TRANSACTIONS, Kind.WAITING_SENDS, Kind.INPUT, Kind.OUTPUT, Kind.BROWSED, Kind.STATE), 0
        )

    def is_beyond_share(self, now: float) -> bool:
        """Return whether the connection caused more than SHARE of a second of the loop's time within this second:
        others come first."""
        if now - self._share_since >= 1.0:
            self._share_since = now
            self._share_busy = self.busy
            return False
        return self.busy - self._share_busy > SHARE

    def hold(self, count: int) -> None:
        """Count ``count`` bytes more that were delivered to the client or wait for it."""
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
        """Count ``count`` more bytes of this holder, or less if ``count`` is negative."""
        self.by_kind[kind] += count
        memory = self.memory
        memory.used += count
        memory.by_kind[kind] += count

    def set_output(self, count: int, shared: int) -> None:
        """Set the bytes that wait until the client reads; ``shared`` of them are counted by ``Memory.share``."""
        more = count - self.by_kind[Kind.OUTPUT]
        self.by_kind[Kind.OUTPUT] = count
        self.memory.add(Kind.OUTPUT, more - (shared - self._shared_output))
        self._shared_output = shared
        self.hold(more)

    @property
    def has_space(self) -> bool:
        """True if the connection holds at most its maximum (``Memory.held_max``)."""
        return self.bytes <= self.memory.held_max

    def retry(self) -> None:
        """Continue a connection that is held back, if it has released enough memory. With less, the next message
        would hold it back again."""
        if self.is_held_back and self.bytes * 8 <= self.memory.held_max * 7:
            self.is_held_back = False
            del self.memory.held_back[self]
            self.on_space()

    def end(self) -> None:
        """Remove the state of a client that left. Its subscriptions, transactions, waiting sends and socket release
        their memory by themselves."""
        self.add(Kind.STATE, -self.by_kind[Kind.STATE])
        self.memory.held_back.pop(self, None)
        self.is_held_back = False
