"""The messages of each producer that were stored already, over a bounded window. Pure.

A client that lost its connection sends messages without receipts again; some were stored before. A message id is
``<producer>:<sequence>``, so one bit a message is enough: for each of ``producers_max`` producers a window of sequence
numbers that ends with the highest one seen. The user with most producers loses one first, the least recently used: a
user never pushes out producers of another user that has fewer.

    producer -> | first sequence, a multiple of 64 | bit n set: first + n was stored |

Messages that are not certainly stored are no duplicates: below the window, beyond the number of producers, or
with an id of another form. A message may then be stored twice, but none is lost. (ActiveMQ's BitArrayBin answers in the
same way below its window. Its ``lastProducerSequenceId``, by which everything up to the last one stored is refused, is
not reliable: a refused message, whose refusal was lost with the connection, is below it and comes again.)

Ids that a broker made are not audited: they are never made again, and must not push out producers whose ids are
(``store.records.message_ids``).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandemmq.store.records.message_ids import numbered, user_of_producer

WORD_BITS: Final = 64


class AuditImage(NamedTuple):
    """Contents of an audit. ``windows``: (first sequence, bitmap) by producer, the least recently used one first."""

    depth: int
    producers_max: int
    windows: dict[str, tuple[int, int]]


@dataclass(slots=True, eq=False, repr=False)
class ProducerAudit:
    """Finds duplicates by producer and sequence number. At least the last ``depth`` sequence numbers below a producer's
    highest are kept.

    Memory is bounded by ``producers_max`` times (``depth`` / 8 bytes and a name). One thread uses it.
    ``revision`` grows with each change, and only then: a written state need not be written again while the revision is
    the same. ``user_of`` returns the user of a connection id.
    """

    depth: int
    producers_max: int
    revision: int = field(default=0, init=False)
    user_of: Callable[[str], str | None] = field(default=lambda connection_id: None, init=False)
    _capacity: int = field(init=False)
    _windows: OrderedDict[str, list[int]] = field(default_factory=OrderedDict, init=False)
    _users: dict[str, str | None] = field(default_factory=dict, init=False)  # by producer; None: unknown
    _counts: Counter[str | None] = field(default_factory=Counter, init=False)  # of producers, by user
    _latest: str | None = field(default=None, init=False)
    _latest_window: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        assert min(self.depth, self.producers_max) > 0, "an audit without memory must be left out by its owner"
        # A window begins at a multiple of a word, so that it holds up to a word less one bit below its first.
        self._capacity = (self.depth + 2 * (WORD_BITS - 1)) // WORD_BITS * WORD_BITS

    def is_duplicate(self, message_id: str) -> bool:
        """Return whether a message of this id was seen, and note it. False for an id that cannot be audited."""
        producer, sequence = numbered(message_id)
        if sequence < 0:
            return False
        window = self._latest_window if producer == self._latest else self._use(producer, sequence)
        offset = sequence - window[0]
        if offset < 0:
            return False
        if offset >= self._capacity:
            offset = self._slide(window, offset)
        bit = 1 << offset
        seen = window[1]
        if seen & bit:
            return True
        window[1] = seen | bit
        self.revision += 1
        return False

    def is_newest(self, producer: str, sequence: int) -> bool:
        """Return whether no number of ``producer`` above ``sequence`` is known."""
        window = self._windows.get(producer)
        # prove: nothing-above-the-newest "sequence + 1" -> "sequence + 2"
        return window is None or window[0] + window[1].bit_length() <= sequence + 1

    def note(self, message_id: str) -> None:
        """Note a stored message that a replay met."""
        self.is_duplicate(message_id)

    def forget(self, message_id: str) -> None:
        """Forget a message for which ``is_duplicate`` returned False, but which was not stored: it may come again."""
        producer, _, digits = message_id.rpartition(":")
        window = self._windows.get(producer)
        if window is None or not digits.isdecimal():
            return
        offset = int(digits) - window[0]
        # prove: forgets-the-first-of-a-window "0 <=" -> "0 <"
        if 0 <= offset < self._capacity and window[1] >> offset & 1:
            window[1] ^= 1 << offset
            self.revision += 1

    def image(self) -> AuditImage:
        """Return the contents as values. Producers without known numbers are left out."""
        windows = {producer: (first, bitmap) for producer, (first, bitmap) in self._windows.items() if bitmap}
        return AuditImage(self.depth, self.producers_max, windows)

    def load(self, image: AuditImage) -> None:
        """Add the contents of ``image``; this audit's own bounds apply.

        The image may be older than the audit: a replay meets records twice. ``revision`` grows if numbers were new.
        """
        for producer in self._windows:  # a replay may have found the user since
            self._belongs(producer)
        for producer, (first, bitmap) in image.windows.items():
            if bitmap <= 0 or first < 0 or not producer:
                continue
            start = first - first % WORD_BITS
            bitmap <<= first - start
            window = self._use(producer, start + bitmap.bit_length() - 1)
            offset = start - window[0]
            top = offset + bitmap.bit_length()
            if top > self._capacity:
                before = window[0]
                self._slide(window, top - 1)
                offset -= window[0] - before  # prove: loaded-bits-keep-their-numbers
            known = window[1]
            window[1] = known | (bitmap << offset if offset >= 0 else bitmap >> -offset)
            self.revision += window[1] != known

    def __len__(self) -> int:
        """Return the number of known producers."""
        return len(self._windows)

    def _use(self, producer: str, sequence: int) -> list[int]:
        """Return the window of ``producer``, now the most recently used; a new one ends with ``sequence``."""
        windows = self._windows
        window = windows.get(producer)
        if window is None:
            first = max(0, sequence - sequence % WORD_BITS + WORD_BITS - self._capacity)
            window = windows[producer] = [first, 0]
            self._belongs(producer)
            if len(windows) > self.producers_max:
                self._evict(producer)
                self.revision += 1
        else:
            windows.move_to_end(producer)
        self._latest = producer
        self._latest_window = window
        return window

    def _belongs(self, producer: str) -> None:
        """Note the user of ``producer``."""
        self._disown(producer)
        user = self._users[producer] = user_of_producer(producer, self.user_of)
        self._counts[user] += 1

    def _disown(self, producer: str) -> None:
        if producer in self._users:
            user = self._users.pop(producer)
            self._counts[user] -= 1
            if not self._counts[user]:
                del self._counts[user]

    def _evict(self, newest: str) -> None:
        """Forget one producer in favour of ``newest``, which stays."""
        users, counts = self._users, self._counts
        most = max(counts.values())
        gone = next(iter(self._windows))
        if most > 1:
            user = users[newest]
            if counts[user] < most:
                user = next(each for each, count in counts.items() if count == most)
            gone = next(producer for producer in self._windows if users[producer] == user)
        del self._windows[gone]
        self._disown(gone)

    def _slide(self, window: list[int], offset: int) -> int:
        """Move the window for a sequence ``offset`` after its first, beyond its end; return the new offset."""
        shift = (offset - self._capacity) // WORD_BITS * WORD_BITS + WORD_BITS
        window[0] += shift
        window[1] = window[1] >> shift if shift < self._capacity else 0
        return offset - shift
