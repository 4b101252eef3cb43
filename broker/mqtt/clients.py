"""State that the sessions of all MQTT clients share, over all terms of this broker as master."""

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
from tandemmq.broker.protocols.mqtt.conversation import NEWEST, Left, SentIds
from tandemmq.broker.protocols.mqtt.topics import topic_of
from tandemmq.store.records.message import Destination, Message

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


@dataclass(slots=True)
class _Term:
    """Parts that live as long as the broker is master. ``retaining`` is replaced if the engine disconnected it."""

    engine: Engine
    retaining: Retaining
    sessions: SessionExpiry
    sys_topics: SysTopics


class MqttClients:
    """``broker.protocols.mqtt.conversation.Hooks``. On the loop. ``begin`` and ``end`` a term as master; sessions exist
    only within a term. ``name`` is the broker's; ``retained_messages_max``, ``retained_bytes_max`` and ``sys_interval``
    are settings.
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
        self._newest = 0  # number of a retained message
        self._refusals = Denials()

    def begin(self, engine: Engine) -> None:
        """Begin a term: ``engine`` serves clients from now on."""
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
        """End the term: nothing more is done."""
        term, self._term = self._term, None
        if term is not None:
            term.sys_topics.end()
            term.sessions.end()
            term.retaining.end()

    @property
    def counts(self) -> dict[str, int]:
        """Figures of this term, for ``status``."""
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

    def give_will_back(self, principal: Principal, size: int) -> None:
        if self._term is not None:
            self._term.sessions.wills.hold(principal.owner, -size)

    def publish_refused(self, client_id: str, reason: str) -> None:
        """Log a refusal; the same one is logged once a minute."""
        self._refusals.note(f"MQTT client {client_id}", reason, self._clock())

    def came(self, client_id: str, *, is_resumed: bool) -> None:
        if self._term is not None:
            self._term.sessions.came(client_id, is_resumed=is_resumed)

    def left(self, left: Left) -> None:
        if left.state is not None:
            self._sent_ids.keep(left.client_id, left.sent)
        if self._term is not None:
            self._term.sessions.left(left)

    def sent(self, client_id: str) -> SentIds | None:
        return self._sent_ids.take(client_id)
