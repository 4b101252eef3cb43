"""A queue in which somebody of MQTT keeps what has to outlive him: a session (docs/formats/mqtt-sessions.md), a bridge.
Pure.

Its owner subscribes to it as clients do to theirs; a record is a message, and its end is an acknowledgement. What was
there before is known when a mark that the owner sends himself comes back. A record that he sends comes back, too, and
can be ended from then on.
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
# So many records are given at once; for each that came another one may come.
_PREFETCH: Final = 1_000
_WIDENED: Final = 250


class Ways(Protocol):
    """How the owner speaks to the broker."""

    @property
    def clock(self) -> Callable[[], int]: ...

    def later(self, *commands: Command) -> None:
        """Have them carried out soon, in this order."""

    def next_message_id(self) -> str: ...

    def next_transaction(self) -> str: ...


class KeptRecords:
    """Records come and go. ``queue`` None: nothing is kept."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self.queue: Destination | None = None
        self._on_found: Callable[[int, Message], None] | None = None  # while what was there comes
        self._on_all: Callable[[], None] | None = None
        self._mark_id = ""
        self._mark_tag = 0
        self._stale: list[int] = []
        self._sent: dict[str, Record] = {}  # by id of the message; they come back
        self._came = 0

    def begin(self, queue: Destination, failed: Callable[[ClientError], None]) -> None:
        """From now on what is to be kept is kept there."""
        self.queue = queue
        receipt = Waiting(nothing, failed)
        self._ways.later(Subscribe(STATE, queue, AckMode.INDIVIDUAL, prefetch=_PREFETCH, receipt=receipt))

    def look(
        self,
        on_found: Callable[[int, Message], None],
        on_all: Callable[[], None],
        failed: Callable[[ClientError], None],
    ) -> None:
        """Have ``on_found`` called with tag and record of all that is there, then ``on_all``."""
        self._on_found, self._on_all = on_found, on_all
        mark = self._message(Kind.MARK, b"")
        self._mark_id = mark.message_id
        self._ways.later(*self.send(mark, Waiting(nothing, failed)))

    def deliver(self, tag: int, message: Message) -> None:
        """A message of the queue."""
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
        """The owner is gone: what comes back is waited for no more."""
        for kept in self._sent.values():
            kept.then = None
        self._sent.clear()
        self._on_found = self._on_all = None

    def is_stale(self, tag: int) -> None:
        """That record, which was found, counts no more."""
        self._stale.append(tag)

    def sweep(self, transaction: str | None = None) -> list[Command]:
        """All is found: the end of what counts no more, and of the mark."""
        tags, self._stale = [*self._stale, self._mark_tag], []
        return [Ack(STATE, tag, transaction) for tag in tags]

    # ---- records

    def keep(self, kind: Kind, body: bytes) -> tuple[Message, Record]:
        """A message that is to be sent, and its record."""
        message = self._message(kind, body)
        return message, self.keep_as(message)

    def keep_as(self, message: Message) -> Record:
        """``message``, which is to be sent to the queue, is a record."""
        self._sent[message.message_id] = kept = Record()
        return kept

    def was_refused(self, message: Message) -> None:
        """It was not stored, and does not come back."""
        self._sent.pop(message.message_id, None)

    def send(self, message: Message, receipt: Waiting) -> list[Command]:
        """Have it stored, by a transaction, which waits for no room: what is kept of deliveries lets messages out."""
        name = self._ways.next_transaction()
        return [Begin(name), Send(message, name), Commit(name, receipt)]

    def _message(self, kind: Kind, body: bytes) -> Message:
        ways = self._ways
        assert self.queue is not None, "only of what is stored"
        return record(self.queue, ways.next_message_id(), kind, body, ways.clock())

    def drop(self, kept: Record, receipt: Waiting | None = None) -> list[Command]:
        """It counts no more; ``receipt``: once that holds. One that has not come back yet ends when it does."""
        tag = kept.tag
        if tag:
            return [Ack(STATE, tag, receipt=receipt)]
        # prove: record-ends-when-it-is-back
        kept.then = lambda: self._ways.later(Ack(STATE, kept.tag, receipt=receipt))
        return []
