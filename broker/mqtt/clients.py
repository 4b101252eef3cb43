"""State that the sessions of all MQTT clients share, in all terms of this broker as master."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from tandemmq.broker.core.clock import milliseconds
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.engine.clients import Denials
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.mqtt.retained_messages import Retaining, number_before
from tandemmq.broker.mqtt.session_expiry import SessionExpiry
from tandemmq.broker.mqtt.sys_topics import SysTopics
from tandemmq.broker.protocols.mqtt.conversation import NEWEST, ConnectionEnd, SentIds
from tandemmq.broker.protocols.mqtt.topics import topic_of
from tandemmq.store.records.message import Destination, Message

#: Maximum number of packet ids and of clients in memory; each takes about 250 bytes.
SENT_IDS_MAX: Final = 20_000


class SentIdsOfClients:
    """Packet ids of clients that are away, by client id."""

    __slots__ = ("_by_client", "_count")

    def __init__(self) -> None:
        self._by_client: dict[str, SentIds] = {}  # ordered by the time when the client left
        self._count = 0

    def keep(self, client_id: str, sent: SentIds) -> None:
        """Store the packet ids of a client that left. They replace former ones."""
        self.take(client_id)
        self._by_client[client_id] = sent
        self._count += max(1, len(sent))
        while self._count > SENT_IDS_MAX:
            self.take(next(iter(self._by_client)))

    def take(self, client_id: str) -> SentIds | None:
        """Remove and return the packet ids of a client; None: not known."""
        sent = self._by_client.pop(client_id, None)
        if sent is not None:
            self._count -= max(1, len(sent))
        return sent


@dataclass(slots=True)
class _Term:
    """Parts of one term as master. ``retaining`` is replaced if the engine disconnected it."""

    engine: Engine
    retaining: Retaining
    sessions: SessionExpiry
    sys_topics: SysTopics


class MqttClients:
    """Implementation of ``broker.protocols.mqtt.conversation.Hooks``. Runs on the loop. Call ``begin`` and ``end`` for
    each term as master; sessions exist only within a term. ``name``: the broker's name.
    """

    def __init__(
        self,
        name: str,
        retained_messages_max: int,
        retained_bytes_max: int,
        sys_interval_ms: int,
        clock: Callable[[], int] = milliseconds,
    ) -> None:
        self._name = name
        self._sys_interval_ms = sys_interval_ms
        self._started = time.monotonic()
        self._retained_max = retained_messages_max, retained_bytes_max
        self._clock = clock
        self._term: _Term | None = None
        self._sent_ids = SentIdsOfClients()
        self._newest = 0  # the last number of a retained message
        self._refusals = Denials()

    def begin(self, engine: Engine) -> None:
        """Begin a term with ``engine``. Call it before clients are served."""
        self._newest = number_before(engine.store.epoch)
        self._sent_ids = SentIdsOfClients()
        sessions = SessionExpiry(engine, self._name, self._clock, self.may_retain)
        engine.know_sessions(sessions)
        sys_topics = SysTopics(
            engine, self._name, self._sys_interval_ms, self._started, self._clock, lambda: self.counts
        )
        self._term = _Term(engine, self._new_retaining(engine), sessions, sys_topics)

    def _new_retaining(self, engine: Engine) -> Retaining:
        return Retaining(engine, self._clock, *self._retained_max, on_ended=self._retain_again)

    def _retain_again(self, former: Retaining) -> None:
        term = self._term
        if term is not None:
            term.retaining = self._new_retaining(term.engine)
            term.retaining.take_waiting(former)

    def end(self) -> None:
        """End the term: stop all work of its parts."""
        term, self._term = self._term, None
        if term is not None:
            term.sys_topics.end()
            term.sessions.end()
            term.retaining.end()

    @property
    def counts(self) -> dict[str, int]:
        """Figures of this term for the status."""
        if self._term is None:
            return {}
        retained, sessions = self._term.retaining.retained, self._term.sessions
        return {
            "mqtt_clients": sessions.connected,
            "mqtt_retained_messages": retained.count,
            "mqtt_retained_bytes": retained.bytes,
            "mqtt_wills_published_total": sessions.wills.published,
            "mqtt_sessions_expired_total": sessions.ended,
        }

    # ---- retained messages

    @property
    def is_loaded(self) -> bool:
        return self._term is not None and self._term.retaining.is_loaded

    def when_loaded(self, then: Callable[[], None]) -> None:
        if self._term is not None:
            self._term.retaining.when_loaded(then)

    def retained(self, topic_filter: str, after: str = "", until: int = NEWEST) -> Iterator[Message | None]:
        if self._term is None:
            return iter(())
        retained = self._term.retaining.matching(topic_filter, after, until)
        return chain(self._term.sys_topics.matching(topic_filter), retained)

    @property
    def newest(self) -> int:
        return self._newest

    def may_retain(self, topic: Destination, size: int) -> int:
        if self._term is None or not self._term.retaining.may_retain(topic_of(topic.name), size):
            return 0
        self._newest += 1
        return self._newest

    # ---- sessions

    def may_have_will(self, principal: Principal, size: int) -> bool:
        return self._term is not None and self._term.sessions.wills.may_have(principal.owner, size)

    def release_will(self, principal: Principal, size: int) -> None:
        if self._term is not None:
            self._term.sessions.wills.hold(principal.owner, -size)

    def publish_refused(self, client_id: str, reason: str) -> None:
        """Log a refusal. The same refusal is logged at most once a minute."""
        self._refusals.note(f"MQTT client {client_id}", reason, self._clock())

    def client_connected(self, client_id: str, *, is_resumed: bool) -> None:
        if self._term is not None:
            self._term.sessions.client_connected(client_id, is_resumed=is_resumed)

    def client_left(self, end: ConnectionEnd) -> None:
        if end.state is not None:
            self._sent_ids.keep(end.client_id, end.sent)
        if self._term is not None:
            self._term.sessions.client_left(end)

    def take_sent_ids(self, client_id: str) -> SentIds | None:
        return self._sent_ids.take(client_id)
