"""Rehearsal of a hand-back: the journal is replayed by the rules of ActiveMQ, and compared with TandemMQ's view.

Without an index, ActiveMQ replays the whole journal. It ignores TandemMQ's headers, hints and records of removed files.
It skips a file of copies if its source file exists. It delivers messages whose Add has the flag ``prioritySupported``
by priority: high, default, low. This module writes only a scratch index.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from tandemmq.index.index import Index
from tandemmq.journal.files import JournalFiles
from tandemmq.store.migration.contents import Contents, counterpart
from tandemmq.store.records.commands import ADD, DEFAULT_PRIORITY, REWRITTEN, TRACE, UPDATE, Rewritten, added, decode
from tandemmq.store.records.message import Destination
from tandemmq.store.recovery.rebuild import Trial
from tandemmq.store.state.owners import OwnerState
from tandemmq.store.state.replay import Replay
from tandemmq.store.state.state import State

_PRIORITY_SUPPORTED = b"\x30\x01"  # field 6 of an Add, true


class _AsActiveMQ(Replay):
    """Replay that applies records as ActiveMQ does when it starts without an index.

    ``prioritised``: destinations whose messages ActiveMQ delivers by priority. ``unmarked``: files of copies that are
    read like other files, because the hand-back removes their mark.
    """

    def __init__(self, state: State, existing: frozenset[int], unmarked: frozenset[int]) -> None:
        super().__init__(state, honours_hints=False)
        self.prioritised: set[Destination] = set()
        self._existing = existing
        self._unmarked = unmarked
        self._skipped = 0

    def apply(self, location: int, payload: bytes) -> None:
        kind = payload[0]
        file = location >> 32
        if kind == TRACE or file == self._skipped:
            return
        if kind == REWRITTEN:
            command = decode(payload)
            assert isinstance(command, Rewritten), "the number is that of Rewritten"
            is_skipped = command.skip_if_source_exists and command.source_file in self._existing
            if is_skipped and file not in self._unmarked:
                self._skipped = file
            return
        if kind in (ADD, UPDATE) and _PRIORITY_SUPPORTED in payload:
            add = added(decode(payload))
            if add is not None and add.priority_supported:
                self.prioritised.add(add.destination)
        super().apply(location, payload)


class Rehearsal:
    """ActiveMQ's view of a directory. ``advance`` reads the records that were written since the last call.

    Each sealed file is read up to its end by the headers: a hand-back truncates files that are longer.
    """

    def __init__(self, files: JournalFiles, scratch: str, unmarked: frozenset[int] = frozenset()) -> None:
        self._index = Index.open(scratch)
        # With a foreign index, the follower does not report missing files.
        self._follower = Trial(files, self._index, has_foreign_index=lambda: True)
        self._replay = _AsActiveMQ(self._follower.state, frozenset(files.list()), unmarked)
        self._follower.replay = self._replay
        self.contents = Contents(self._follower)

    def advance(self) -> None:
        self._follower.advance(is_final=True)
        self._follower.checkpoint()

    def close(self) -> None:
        self.contents.close()
        self._index.close()

    def first_difference(self, contents: Contents, owner: OwnerState) -> int | None:
        """Return the first place, counted from 0, at which ActiveMQ would deliver another message of ``owner`` than
        TandemMQ. None: there is no such place, or ActiveMQ would not have the owner."""
        there = counterpart(owner, self.contents)
        if there is None:
            return None
        ours = (entry.message_id for _, entry in contents.state.entries(owner.id, 0))
        pairs = enumerate(zip_longest(ours, self.delivered(there)))
        return next((place for place, (mine, other) in pairs if mine != other), None)

    def delivered(self, owner: OwnerState) -> Iterator[str]:
        """Yield the message ids of ``owner`` in ActiveMQ's order of delivery."""
        if owner.destination not in self._replay.prioritised:
            for _, entry in self.contents.state.entries(owner.id, 0):
                yield entry.message_id
            return
        for wanted in (1, 0, -1):
            for stored in self.contents.messages(owner.id):
                priority = stored.add.priority if stored.add.priority_supported else DEFAULT_PRIORITY
                if (priority > DEFAULT_PRIORITY) - (priority < DEFAULT_PRIORITY) == wanted:
                    yield stored.add.message_id


def order_difference(contents: Contents, rehearsal: Rehearsal, owner: OwnerState) -> str | None:
    """Return a text that names the first place at which the orders of ActiveMQ and TandemMQ differ, or None. Messages
    that only one of them has are ignored."""
    there = counterpart(owner, rehearsal.contents)
    if there is None or rehearsal.first_difference(contents, owner) is None:
        return None
    held_there = rehearsal.contents.holds
    ours = (e.message_id for _, e in contents.state.entries(owner.id, 0) if held_there(there.id, e.message_id))
    theirs = (id for id in rehearsal.delivered(there) if contents.holds(owner.id, id))
    for place, (mine, other) in enumerate(zip_longest(ours, theirs), 1):
        if mine != other:
            return f"{owner}: the order differs from message {place} on (TandemMQ: {mine}, ActiveMQ: {other})"
    return None
