"""The packet ids of messages of QoS 1 that clients of MQTT left unanswered: they have them again when they come again
(MQTT-4.4.0-1).

In memory, so they are remembered by this master alone, and of very many the oldest are forgotten. A client that has a
message of QoS 1 with another id loses nothing and takes it for no other: what it acknowledged is over. Of a client that
left nothing it is remembered that it was here: what gathers for it meanwhile was not sent before.
"""

from __future__ import annotations

from typing import Final

from tandemmq.broker.protocols.mqtt.hooks import SentIds

#: Of all clients, and clients that left none; each takes about 250 bytes.
SENT_IDS_MAX: Final = 20_000


class SentIdsOfClients:
    """Of those who are away, by client id."""

    __slots__ = ("_by_client", "_count")

    def __init__(self) -> None:
        self._by_client: dict[str, SentIds] = {}  # who left last comes last
        self._count = 0

    def keep(self, client_id: str, sent: SentIds) -> None:
        """In the place of what there is of it."""
        self.take(client_id)
        self._by_client[client_id] = sent
        self._count += max(1, len(sent))
        while self._count > SENT_IDS_MAX:
            self.take(next(iter(self._by_client)))

    def take(self, client_id: str) -> SentIds | None:
        """They are remembered no more. None: they were not."""
        sent = self._by_client.pop(client_id, None)
        if sent is not None:
            self._count -= max(1, len(sent))
        return sent
