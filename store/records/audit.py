"""Producer audit: detects messages that were stored before, by producer and sequence number. Pure.

A client that lost its connection sends all messages without a receipt again; some were stored before. A message id is
``<producer>:<sequence>``, so one bit for each message is enough. For each of ``producers_max`` producers there is a
window of sequence numbers, which ends with the highest one. If there are too many producers, the user with the most
producers loses its least recently used one. So a user cannot displace producers of a user that has fewer.

    producer -> | first sequence, a multiple of 64 | bit n set: first + n was stored |

A message counts as new unless it is certainly a duplicate: if it is below the window, if its producer is not in the
audit, or if its id has another form. Then a message may be stored twice, but no message is lost. (ActiveMQ's
BitArrayBin does the same below its window. ActiveMQ's ``lastProducerSequenceId`` counts all numbers up to the last
stored one as duplicates. That would lose a message that the broker refused: its number is lower when the client sends
it again.)

Ids that a broker made are not audited: they are never made again, and must not displace other producers
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
    """Contents of an audit. ``windows``: producer -> (first sequence, bitmap), the least recently used producer
    first."""

    depth: int
    producers_max: int
    windows: dict[str, tuple[int, int]]


@dataclass(slots=True, eq=False, repr=False)
class ProducerAudit:
    """Producer audit, for one thread. It keeps at least the last ``depth`` sequence numbers of each producer.

    Memory: at most ``producers_max`` times (``depth`` / 8 bytes and a name). ``revision`` grows with each change, and
    only then, so a written state need not be written again while the revision is the same. ``user_of`` returns the user
    of a connection id, or None.
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
        assert min(self.depth, self.producers_max) > 0, "an audit has at least one producer and one number"
        # A window begins at a multiple of WORD_BITS, so up to WORD_BITS - 1 of its bits are not needed.
        self._capacity = (self.depth + 2 * (WORD_BITS - 1)) // WORD_BITS * WORD_BITS

    def is_duplicate(self, message_id: str) -> bool:
        """Return whether a message with this id was noted before, and note it. False for an id that is not audited."""
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
        """Return whether no sequence number of ``producer`` above ``sequence`` was noted."""
        window = self._windows.get(producer)
        # prove: nothing-above-the-newest "sequence + 1" -> "sequence + 2"
        return window is None or window[0] + window[1].bit_length() <= sequence + 1

    def note(self, message_id: str) -> None:
        """Note a stored message that a replay found."""
        self.is_duplicate(message_id)

    def forget(self, message_id: str) -> None:
        """Remove the note of a message for which ``is_duplicate`` returned False, but that was not stored: the client
        may send it again."""
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
        """Return the contents, without producers of which no number is noted."""
        windows = {producer: (first, bitmap) for producer, (first, bitmap) in self._windows.items() if bitmap}
        return AuditImage(self.depth, self.producers_max, windows)

    def load(self, image: AuditImage) -> None:
        """Add the contents of ``image``, within the bounds of this audit.

        The image may be older than the audit, because a replay may apply a record twice. ``revision`` grows if numbers
        were new.
        """
        for producer in self._windows:  # a replay may have found its user meanwhile
            self._note_user(producer)
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
        """Return the number of producers in the audit."""
        return len(self._windows)

    def _use(self, producer: str, sequence: int) -> list[int]:
        """Return the window of ``producer`` and make it the most recently used. A new window ends with ``sequence``."""
        windows = self._windows
        window = windows.get(producer)
        if window is None:
            first = max(0, sequence - sequence % WORD_BITS + WORD_BITS - self._capacity)
            window = windows[producer] = [first, 0]
            self._note_user(producer)
            if len(windows) > self.producers_max:
                self._evict(producer)
                self.revision += 1
        else:
            windows.move_to_end(producer)
        self._latest = producer
        self._latest_window = window
        return window

    def _note_user(self, producer: str) -> None:
        """Determine and note the user of ``producer``."""
        self._forget_user(producer)
        user = self._users[producer] = user_of_producer(producer, self.user_of)
        self._counts[user] += 1

    def _forget_user(self, producer: str) -> None:
        if producer in self._users:
            user = self._users.pop(producer)
            self._counts[user] -= 1
            if not self._counts[user]:
                del self._counts[user]

    def _evict(self, newest: str) -> None:
        """Remove one producer, but not ``newest``."""
        users, counts = self._users, self._counts
        most = max(counts.values())
        gone = next(iter(self._windows))
        if most > 1:
            user = users[newest]
            if counts[user] < most:
                user = next(each for each, count in counts.items() if count == most)
            gone = next(producer for producer in self._windows if users[producer] == user)
        del self._windows[gone]
        self._forget_user(gone)

    def _slide(self, window: list[int], offset: int) -> int:
        """Move the window so that it contains the sequence at ``offset`` from its first one, which is beyond its end.
        Return the new offset."""
        shift = (offset - self._capacity) // WORD_BITS * WORD_BITS + WORD_BITS
        window[0] += shift
        window[1] = window[1] >> shift if shift < self._capacity else 0
        return offset - shift
