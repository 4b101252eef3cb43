"""Bytes of the store that are charged to each user: bytes of stored messages, and of messages that prepared
transactions will add. Pure.

The size in an entry has 32 bits. The bits above are the *mark*: the number that this index gave to the user who is
charged for the record; 0 for no user. A record that several owners hold is charged once: only the entry in which the
bit ``SHARED`` is not set is counted, as for the live bytes of a file.
"""

from __future__ import annotations

import json

from tandemmq.store.state.keys import MARK_SHIFT, SHARED, SIZE_MASK


class UserBytes:
    """The charged bytes of each user. Only the thread that owns the state changes them.

    ``is_counting``: some bytes are charged to a user. ``balances``, which any thread may read: name of the user -> the
    stored bytes minus the bytes that were passed to ``taken`` since the state was loaded. If the event loop adds the
    bytes that it submitted since then, the sum has the stored bytes and the bytes that wait to be stored.
    """

    __slots__ = ("_bytes", "_names", "_next", "_numbers", "balances", "is_counting", "is_touched")

    def __init__(self) -> None:
        self.balances: dict[str, int] = {}
        self.is_counting = False
        self.is_touched = False
        self._bytes: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._next = 1

    def mark(self, user: str) -> int:
        """Return the mark of ``user``: the caller adds it to the size of a record that is charged to this user."""
        number = self._numbers.get(user)
        if number is None:
            number = self._numbers[user] = self._next
            self._next += 1
            self._names[number] = user
            self._bytes[number] = 0
            self.is_counting = True
        return number << MARK_SHIFT

    def hold(self, size: int) -> None:
        """Charge the user of a record. ``size`` has the mark. Does nothing if another owner counts the record."""
        if size >> MARK_SHIFT and not size & SHARED:
            self._change(size >> MARK_SHIFT, size & SIZE_MASK)

    def release(self, size: int) -> None:
        """End the charge of a record. ``size`` has the mark."""
        if size >> MARK_SHIFT and not size & SHARED:
            self._change(size >> MARK_SHIFT, -(size & SIZE_MASK))

    def change(self, user: str, size: int) -> None:
        """Add ``size`` bytes to the charge of ``user``; a negative ``size`` reduces it. For prepared transactions."""
        self._change(self.mark(user) >> MARK_SHIFT, size)

    def taken(self, user: str, size: int) -> None:
        """Note that the store has handled ``size`` bytes of ``user`` that the event loop submitted, stored or not."""
        self.balances[user] = self.balances.get(user, 0) - size

    def _change(self, number: int, size: int) -> None:
        user = self._names.get(number)
        if user is None:  # an older version has written this index meanwhile: it keeps the entries, not the users
            return
        self._bytes[number] += size
        self.balances[user] = self.balances.get(user, 0) + size
        self.is_touched = True

    def count(self, user: str) -> int:
        """Return the bytes that are charged to ``user``."""
        return self._bytes.get(self._numbers.get(user, 0), 0)

    def counts(self) -> dict[str, int]:
        """Return the bytes of all users that have any."""
        return {user: size for user, number in self._numbers.items() if (size := self._bytes[number])}

    def encode(self) -> bytes:
        """Return the input of ``load``; empty if nothing is charged. Removes users without bytes."""
        for number in [number for number, size in self._bytes.items() if not size]:
            del self._bytes[number]
            del self._numbers[self._names.pop(number)]
        self.is_touched = False
        self.is_counting = bool(self._numbers)
        table = [[user, number, self._bytes[number]] for user, number in self._numbers.items()]
        return json.dumps([self._next, table], separators=(",", ":")).encode() if table else b""

    def load(self, blob: bytes) -> None:
        self._next, table = json.loads(blob)
        for user, number, size in table:
            self._numbers[user] = number
            self._names[number] = user
            self._bytes[number] = self.balances[user] = size
        self.is_counting = True
