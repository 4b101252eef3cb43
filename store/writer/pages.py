"""Reading of stored messages from the journal, for pages of queues and for copies. Only for the storage thread.

Each message is compared with its checksum after the read, also in files that this process writes (journal/checked.py).
A message that does not verify is repaired from a copy on another node before a later message is delivered. If that
fails, it is never delivered, and is logged.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from tandemmq import log_events
from tandemmq.journal.checked import CheckedReader
from tandemmq.journal.errors import JournalCorrupt, JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.store.operations import Page, PagedMessage
from tandemmq.store.records.commands import sender_in, stored_message
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.frames import open_message
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.records.message import Message
from tandemmq.store.state.keys import Entry
from tandemmq.store.state.state import State
from tandemmq.store.writer.figures import Figures

log = logging.getLogger(__name__)

DAMAGED_IDS_SHOWN = 20
# Minimum time between repair attempts of one file. During an attempt no client is served.
MEND_INTERVAL_SECONDS = 10.0

T = TypeVar("T")


class Pages:
    """Reader of stored messages. ``repair`` waits for the repair of a damaged file, and returns whether it
    succeeded."""

    def __init__(
        self,
        files: JournalFiles,
        state: State,
        epoch_history: EpochHistory,
        figures: Figures,
        repair: Callable[[int], bool] = lambda file: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = CheckedReader(files, lambda file: epoch_history.ends.get(file))
        self._state = state
        self._epoch_history = epoch_history
        self._figures = figures
        self._repair = repair
        self._clock = clock
        self._tried_at: dict[int, float] = {}  # file -> monotonic time of its last repair attempt

    def fill(self, page: Page) -> None:
        """Read the next messages of the page's owner into ``page``, without those that a prepared transaction
        removes."""
        after = page.after
        while not page.messages:
            found = self._next(page, after)
            if not found:
                break
            after = found[-1][0]  # if none of these is readable, the page begins after them
            page.messages += self._readable(found)

    def _next(self, page: Page, after: int) -> list[tuple[int, Entry]]:
        found: list[tuple[int, Entry]] = []
        total = 0
        page.is_end = True
        withheld = self._state.withheld.get(page.owner, ())
        for order_key, entry in self._entries(page, after):
            if found and (len(found) >= page.count or total + entry.size > page.bytes_max):
                page.is_end = False  # prove: page-with-more-behind
                break
            if order_key in withheld:
                continue
            found.append((order_key, entry))
            total += entry.size
        return found

    def _entries(self, page: Page, after: int) -> Iterator[tuple[int, Entry]]:
        if page.keys is not None:
            return self._named(page.owner, page.keys, after)
        if page.priority is None:
            return self._state.entries(page.owner, after)
        return self._state.of_priority(page.owner, page.priority, after)

    def _named(self, owner: int, keys: Iterable[int], after: int) -> Iterator[tuple[int, Entry]]:
        for order_key in sorted(keys):
            entry = self._state.entry(owner, order_key) if order_key > after else None
            if entry is not None:
                yield order_key, entry

    def _readable(self, found: Sequence[tuple[int, Entry]]) -> list[PagedMessage]:
        try:
            return self._messages(found)
        except (JournalCorrupt, JournalMissing, RecordDamaged):
            if len(found) > 1:  # read them one by one to find the damaged one
                return [message for each in found for message in self._readable((each,))]
            self.report_damage(found[0][1])
            return []

    def _messages(self, found: Sequence[tuple[int, Entry]]) -> list[PagedMessage]:
        payloads = self.read([(entry.location, entry.size) for _, entry in found])
        return [
            PagedMessage(order_key, entry.location, entry.size, self._message_in(payload, entry.location >> 32))
            for (order_key, entry), payload in zip(found, payloads, strict=True)
        ]

    def message_at(self, location: int, size: int) -> Message:
        """Return the message that the record at ``location`` stores."""
        return self._message_in(self._read_many([(location, size)])[0], location >> 32)

    def _message_in(self, payload: bytes, file: int) -> Message:
        message = open_message(stored_message(payload), self.version_at(file))
        if self._state.users.is_counting:
            message.sender = sender_in(payload)
        return message

    def report_damage(self, entry: Entry) -> None:
        """Count and log a message that does not verify and is not delivered."""
        self._figures.damaged += 1
        if self._figures.damaged <= DAMAGED_IDS_SHOWN:
            file, offset = entry.location >> 32, entry.location & 0xFFFFFFFF
            log.error(
                "message %s is damaged and is not delivered: db-%d.log, offset %d",
                entry.message_id,
                file,
                offset,
                extra=log_events.MESSAGE_DAMAGED,
            )

    def version_at(self, file: int) -> int:
        """Return the OpenWire version of the messages in a file."""
        return self._epoch_history.version_at(file)

    def read(self, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the payloads of the records ``wanted``, (location, size) in any order. Adjacent records are read
        together."""
        ascending = sorted(set(wanted))  # the records of copies are not in the order of the messages
        found = dict(zip(ascending, self._read_many(ascending), strict=True))
        return [found[place] for place in wanted]

    def read_record(self, location: int) -> bytes:
        """Return the payload of a record whose size is not known."""
        return self._read_repaired(lambda: self._reader.read(location))

    def _read_many(self, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._read_repaired(lambda: self._reader.read_many(wanted))

    def _read_repaired(self, read: Callable[[], T]) -> T:
        """Return the result of ``read``. If it finds damage, repair the file and call it again; raise the damage if the
        repair fails. All clients wait meanwhile, so the repair of a file is tried only at intervals."""
        while True:
            try:
                return read()
            except (JournalCorrupt, JournalMissing) as damage:
                now, file = self._clock(), damage.file
                # prove: file-is-mended-once "self._tried_at.get(file, -math.inf)" -> "-math.inf"
                if now - self._tried_at.get(file, -math.inf) < MEND_INTERVAL_SECONDS:
                    raise
                self._tried_at[file] = now
                if not self._repair(file):
                    raise
                self._reader.forget([file])  # prove: mended-file-is-read-anew

    def forget(self, files: Iterable[int]) -> None:
        """Close files that will be removed."""
        self._reader.forget(files)

    def close(self) -> None:
        self._reader.close()
