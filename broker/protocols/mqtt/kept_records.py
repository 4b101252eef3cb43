"""Queue of records that outlive a connection of MQTT: those of a session (docs/formats/mqtt-sessions.md) or a bridge.
Pure.

Its owner subscribes to it as clients do to theirs; a record is a message, and its end is an acknowledgement. The owner
sends a mark: when that comes back, it has all former records. A record that it sends comes back, too, and can be ended
from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tandemmq.broker.core.commands import Ack, AckMode, Begin, ClientError, Command, Commit, Delivered, Send, Subscribe
from tandemmq.broker.protocols.mqtt.conversation import Waiting, nothing
from tandemmq.broker.protocols.mqtt.outgoing import Record
from tandemmq.broker.protocols.mqtt.session_records import Kind, record
from tandemmq.store.records.message import Destination, Message

#: The id of the subscription to the queue.
STATE: Final = "state"
# So many records are given at once; for each record that came another one may come.
_PREFETCH: Final = 1_000
_WIDENED: Final = 250


class Ways(Protocol):
    """Ways of the owner to the broker."""

    @property
    def clock(self) -> Callable[[], int]: ...

    def later(self, *commands: Command) -> None:
        """Request that the commands are carried out soon, in this order."""

    def next_message_id(self) -> str: ...

    def next_transaction(self) -> str: ...


class KeptRecords:
    """Records that come and go. ``queue`` None: nothing is kept."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self.queue: Destination | None = None
        self._on_found: Callable[[int, Message], None] | None = None  # while former records come
        self._on_all: Callable[[], None] | None = None
        self._mark_id = ""
        self._mark_tag = 0
        self._stale: list[int] = []
        self._sent: dict[str, Record] = {}  # by id of the message; they come back
        self._came = 0

    def begin(self, queue: Destination, failed: Callable[[ClientError], None]) -> None:
        """Begin to keep records in ``queue``."""
        self.queue = queue
        receipt = Waiting(nothing, failed)
        self._ways.later(Subscribe(STATE, queue, AckMode.INDIVIDUAL, prefetch=_PREFETCH, receipt=receipt))

    def look(
        self,
        on_found: Callable[[int, Message], None],
        on_all: Callable[[], None],
        failed: Callable[[ClientError], None],
    ) -> None:
        """Call ``on_found`` with tag and record of all that is there, then ``on_all``."""
        self._on_found, self._on_all = on_found, on_all
        mark = self._message(Kind.MARK, b"")
        self._mark_id = mark.message_id
        self._ways.later(*self.send(mark, Waiting(nothing, failed)))

    def deliver(self, tag: int, message: Message) -> None:
        """Take a message of the queue."""
        self._came += 1
        if self._came % _WIDENED == 0:
            self._ways.later(Delivered(STATE, _WIDENED))
        kept = self._sent.pop(message.message_id, None)
        if kept is not None:
            kept.tag = tag
            then, kept.then = kept.then, None
            if then is not None:
                then()
        elif message.message_id == self._mark_id and self._on_all is not None:
            self._mark_tag = tag
            on_all = self._on_all
            self._on_found = self._on_all = None
            on_all()
        elif self._on_found is not None:
            self._on_found(tag, message)
        else:
            self._ways.later(Ack(STATE, tag))

    def cut(self) -> None:
        """End it: the owner is gone, and waits for no record to come back."""
        for kept in self._sent.values():
            kept.then = None
        self._sent.clear()
        self._on_found = self._on_all = None

    def is_stale(self, tag: int) -> None:
        """Mark a record that was found as one that counts no more."""
        self._stale.append(tag)

    def sweep(self, transaction: str | None = None) -> list[Command]:
        """Return the commands that end the records that count no more, and the mark, when all is found."""
        tags, self._stale = [*self._stale, self._mark_tag], []
        return [Ack(STATE, tag, transaction) for tag in tags]

    # ---- records

    def keep(self, kind: Kind, body: bytes) -> tuple[Message, Record]:
        """Return a message that is to be sent, and its record."""
        message = self._message(kind, body)
        return message, self.keep_as(message)

    def keep_as(self, message: Message) -> Record:
        """Return the record for ``message``, which is to be sent to the queue."""
        self._sent[message.message_id] = kept = Record()
        return kept

    def was_refused(self, message: Message) -> None:
        """Forget a record that was not stored, and does not come back."""
        self._sent.pop(message.message_id, None)

    def send(self, message: Message, receipt: Waiting) -> list[Command]:
        """Return the commands that store the message, by a transaction, which does not wait for room: what is kept of
        deliveries lets messages out."""
        name = self._ways.next_transaction()
        return [Begin(name), Send(message, name), Commit(name, receipt)]

    def _message(self, kind: Kind, body: bytes) -> Message:
        ways = self._ways
        assert self.queue is not None, "only of what is stored"
        return record(self.queue, ways.next_message_id(), kind, body, ways.clock())

    def drop(self, kept: Record, receipt: Waiting | None = None) -> list[Command]:
        """Return the commands that end a record; ``receipt``: once that holds. One that has not come back yet ends when
        it does."""
        tag = kept.tag
        if tag:
            return [Ack(STATE, tag, receipt=receipt)]
        # prove: record-ends-when-it-is-back
        kept.then = lambda: self._ways.later(Ack(STATE, kept.tag, receipt=receipt))
        return []
