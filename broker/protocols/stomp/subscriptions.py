"""How one STOMP subscription names its deliveries, and recognises the names when they come back. Pure."""

from __future__ import annotations

from broker.core.commands import AckMode
from broker.protocols.stomp.frames import Dialect


class StompSubscription:
    """One subscription, as its client sees it.

    ``start`` are the first lines of its MESSAGE frames. They precede the message's own headers, so that they
    win over a property of the same name (STOMP 1.2, Repeated Header Entries).
    """

    __slots__ = ("ack_start", "id", "is_cumulative", "ordinal", "start", "tags")

    def __init__(self, id: str, ordinal: str, is_named: bool, dialect: Dialect) -> None:
        self.id = id
        self.ordinal = ordinal
        # STOMP 1.0: a subscription without an id is told apart by its destination, which the MESSAGE names anyway.
        self.start = f"MESSAGE\nsubscription:{dialect.escape(id)}\n".encode() if is_named else b"MESSAGE\n"
        self.ack_start = self.start + f"ack:{ordinal}-".encode()
        # STOMP 1.0 and 1.1: tags of the deliveries not acknowledged yet by message id, oldest first.
        self.tags: dict[str, int] = {}
        self.is_cumulative = False

    def remember(self, message_id: str, tag: int, ack_mode: AckMode) -> None:
        self.is_cumulative = ack_mode is AckMode.CLIENT
        self.tags.pop(message_id, None)  # delivered again: its place is at the end
        self.tags[message_id] = tag

    def forget(self, message_id: str, *, is_cumulative: bool) -> None:
        """Forget a delivery that is acknowledged; with the mode ``client`` also those before it."""
        tag = self.tags.pop(message_id, None)
        if tag is None or not is_cumulative or not self.is_cumulative:
            return
        older = []
        for id, older_tag in self.tags.items():
            if older_tag > tag:
                break
            older.append(id)
        for id in older:
            del self.tags[id]
