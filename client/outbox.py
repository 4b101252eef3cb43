"""Messages without a receipt: each is kept until its receipt arrives, and can be sent again as the same message. Pure.

Each message has a unique name of the client and a number that the client assigns (docs/duplicates.md). With both,
TandemMQ recognizes messages that it has stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from tandemmq.broker.protocols.stomp.messages import SEND_ID
from tandemmq.client.errors import BrokerError
from tandemmq.client.frames import send_frame, send_head

HEADS_MAX = 64
# Maximum number of refusals that wait to be raised. Later ones are only counted.
REFUSALS_MAX = 16


@dataclass(slots=True, eq=False)
class Outgoing:
    """The parts of a message that do not depend on the connection. ``confirmation``: the future of a caller that waits
    for this receipt."""

    head: bytes
    body: bytes
    number: int
    has_own_id: bool
    is_bytes: bool
    confirmation: asyncio.Future[None] | None = None


class Numbering:
    """Name of the producer, and number of its last message. Makes the frames of numbered messages."""

    def __init__(self, producer: str) -> None:
        # Unique: a message with the name and number of an earlier message counts as a repetition.
        self._producer = producer.encode()
        self.last = 0
        self._heads: dict[tuple[object, ...], bytes] = {}

    def message(
        self, destination: str, body: bytes | str, headers: Mapping[str, str] | None, *, is_bytes: bool = False
    ) -> Outgoing:
        """Return a new message with the next number. Raises ValueError for a header that the client writes itself."""
        key = (destination, *headers.items()) if headers else (destination,)
        head = self._heads.get(key)
        if head is None:
            head = send_head(destination, headers or {})
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            self._heads[key] = head
        self.last += 1
        data = body.encode() if isinstance(body, str) else body
        has_own_id = headers is not None and SEND_ID in headers
        return Outgoing(head, data, self.last, has_own_id, is_bytes)

    def frame(self, message: Outgoing, receipt: bytes, *, is_tandemmq: bool, transaction: bytes = b"") -> bytes:
        """Return the SEND frame. Only TandemMQ gets the number: another broker would keep the number as a property, and
        a bridge would pass it on."""
        variable = b"receipt:%b\n%b" % (receipt, transaction)
        if is_tandemmq and not message.has_own_id:
            variable = b"%b%b:%b\\c%d\n" % (variable, _SEND_ID, self._producer, message.number)
        return send_frame(message.head, variable, message.body, is_bytes=message.is_bytes)


class Outbox:
    """Messages without a receipt, in the order of sending; and how many were confirmed and refused."""

    def __init__(self, numbering: Numbering) -> None:
        self.confirmed_total = 0
        self.refused_total = 0
        self._numbering = numbering
        self._waiting: dict[str, Outgoing] = {}
        self._refusals: list[BrokerError] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, message: Outgoing, *, is_tandemmq: bool) -> bytes:
        """Keep a message until its receipt arrives. Return the frame to write now."""
        receipt = f"m-{message.number}"
        self._waiting[receipt] = message
        return self._numbering.frame(message, receipt.encode(), is_tandemmq=is_tandemmq)

    def again(self, *, is_tandemmq: bool) -> list[bytes]:
        """Return the frames of all messages without a receipt, in order, for a new connection."""
        frame = self._numbering.frame
        return [frame(message, receipt.encode(), is_tandemmq=is_tandemmq) for receipt, message in self._waiting.items()]

    def confirmed(self, receipt: str) -> bool:
        """Forget the message that has this receipt. Return False if the receipt is not that of a message."""
        message = self._waiting.pop(receipt, None)
        if message is None:
            return False
        self.confirmed_total += 1
        if message.confirmation is not None and not message.confirmation.done():
            message.confirmation.set_result(None)
        return True

    def refused(self, receipt: str, error: BrokerError) -> bool:
        """Forget a refused message, because it would be refused again. Return False if the receipt is
        not that of a message."""
        message = self._waiting.pop(receipt, None)
        if message is None:
            return False
        self.refused_total += 1
        if message.confirmation is not None:
            if not message.confirmation.done():
                message.confirmation.set_exception(error)
        elif len(self._refusals) < REFUSALS_MAX:
            self._refusals.append(error)
        return True

    def raise_refusal(self) -> None:
        """Raise the first refusal that was not raised yet."""
        if self._refusals:
            raise self._refusals.pop(0)


_SEND_ID = SEND_ID.encode()
