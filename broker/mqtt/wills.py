"""Wills: their memory, and their publication (MQTT 5.0, 3.1.2.5).

A will counts for its user in the broker's memory (broker.core.memory), from CONNECT until it is published or dropped.
If the wills of a user exceed the limit, CONNECT is refused. The broker publishes a will with the client id of the
client, and with the rights that its user has at that time.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tandemmq import log_events
from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.core.memory import Holder, Kind
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.in_process import InProcessClient
from tandemmq.broker.protocols.mqtt.messages import message_of, to_retain
from tandemmq.broker.protocols.mqtt.packets import Will
from tandemmq.broker.protocols.mqtt.topics import destination_of
from tandemmq.store.records.message import Destination, Message

log = logging.getLogger(__name__)

#: Kinds of final refusals, which are not retried.
_REFUSED: Final = (ErrorKind.SECURITY, ErrorKind.DESTINATION, ErrorKind.FORMAT)

# Type of Hooks.may_retain: (topic, size).
MayRetain = Callable[[Destination, int], int]


class Wills:
    """Wills of one term. Runs on the loop. ``holder`` counts their memory. ``clock`` returns milliseconds since 1970.
    ``next_message_id`` returns ids for their messages."""

    def __init__(
        self,
        engine: Engine,
        holder: Holder,
        clock: Callable[[], int],
        next_message_id: Callable[[], str],
        may_retain: MayRetain,
    ) -> None:
        self._engine = engine
        self._holder = holder
        self._clock = clock
        self._next_message_id = next_message_id
        self._may_retain = may_retain
        self._bytes: Counter[str | None] = Counter()  # memory of the wills, by user
        self.published = 0

    def may_have(self, user: str | None, size: int) -> bool:
        """Reserve ``size`` bytes for a will of ``user``; return False if this exceeds the limit. ``hold`` with a
        negative size frees them."""
        if self._bytes[user] + size > self._engine.memory.held_max:
            return False
        self.hold(user, size)
        return True

    def hold(self, user: str | None, size: int) -> None:
        """Count ``size`` bytes of memory for wills of ``user``; a negative size frees memory."""
        self._holder.add(Kind.WAITING_SENDS, size)
        self._bytes[user] += size
        if not self._bytes[user]:
            del self._bytes[user]

    async def publish(
        self,
        client: InProcessClient,
        client_id: str,
        user: str | None,
        will: Will,
        records: Callable[[], list[Message]],
    ) -> bool:
        """Publish the will of ``user`` and ``client_id``, in one transaction with ``records()``; durable on return.
        Return False if the will is finally refused: this is logged, and only the records are stored. Raises ClientError
        for any other refusal: nothing is stored, and the caller may retry."""
        try:
            self._engine.act_as_now(client, user)  # prove: wills-with-the-rights-of-now
            # prove: will-ends-with-its-record ", *records()"
            await client.send_all([*self._messages(will), *records()])
        except ClientError as error:
            if error.kind not in _REFUSED:
                raise
            log.warning(
                "the will of MQTT client %s is not published: %s",
                client_id,
                error.message,
                extra=log_events.MQTT_WILL_REFUSED,
            )
            with suppress(ClientError):
                await client.send_all(records())
            return False
        self.published += 1
        return True

    def _messages(self, will: Will) -> list[Message]:
        topic, now = destination_of(will.topic), self._clock()
        messages = [message_of(will, topic, self._next_message_id(), now)]
        if will.retain:
            number = self._may_retain(topic, messages[0].size if will.payload else 0)
            kept = will if number else Will(will.topic, b"", will.qos, will.retain, will.properties)
            messages.append(to_retain(kept, topic, self._next_message_id(), now, number))
        return messages
