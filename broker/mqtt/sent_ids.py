"""Packet ids of messages of QoS 1 that MQTT clients left unanswered: the messages keep them when the clients come again
(MQTT-4.4.0-1).

They are in memory, so only this master knows them, and of very many the oldest are forgotten. A client that gets a
message of QoS 1 with another id loses nothing and takes it for no other: its acknowledged exchanges are over. An empty
entry says that a client was here without such ids: messages that gather for it meanwhile were not sent before.
"""

from __future__ import annotations

from typing import Final

from tandemmq.broker.protocols.mqtt.hooks import SentIds

#: Maximum number of ids, and of clients without any; each takes about 250 bytes.
SENT_IDS_MAX: Final = 20_000


class SentIdsOfClients:
    """Packet ids of clients that are away, by client id."""

    __slots__ = ("_by_client", "_count")

    def __init__(self) -> None:
        self._by_client: dict[str, SentIds] = {}  # the client that left last comes last
        self._count = 0

    def keep(self, client_id: str, sent: SentIds) -> None:
        """Record the ids of a client, in place of former ones."""
        self.take(client_id)
        self._by_client[client_id] = sent
        self._count += max(1, len(sent))
        while self._count > SENT_IDS_MAX:
            self.take(next(iter(self._by_client)))

    def take(self, client_id: str) -> SentIds | None:
        """Remove and return the ids of a client. None: there are none."""
        sent = self._by_client.pop(client_id, None)
        if sent is not None:
            self._count -= max(1, len(sent))
        return sent
