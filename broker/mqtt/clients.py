"""State that the sessions of all MQTT clients share, over all terms of this broker as master."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from tandemmq.broker.core.clock import milliseconds
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.engine.denials import Denials
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.mqtt.retained_messages import Retaining, number_before
from tandemmq.broker.mqtt.session_expiry import Endings
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


class MqttClients:
    """``broker.protocols.mqtt.conversation.Hooks``. On the loop. ``begin`` and ``end`` a term as master; sessions exist only
    within a term. ``name`` is the broker's; ``retained_messages_max``, ``retained_bytes_max`` and ``sys_interval`` are
    settings.
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
        self._retained_messages_max = retained_messages_max
        self._retained_bytes_max = retained_bytes_max
        self._clock = clock
        self._engine: Engine | None = None
        self._retaining: Retaining | None = None
        self._endings: Endings | None = None
        self._sent_ids = SentIdsOfClients()
        self._newest = 0  # number of a retained message
        self._sys_topics: SysTopics | None = None
        self._refusals = Denials()

    def begin(self, engine: Engine) -> None:
        """Begin a term: ``engine`` serves clients from now on."""
        self._engine = engine
        self._newest = number_before(engine.store.epoch)
        self._sent_ids = SentIdsOfClients()
        self._retaining = self._new_retaining(engine)
        self._endings = Endings(engine, self._name, self._clock, self.may_retain)
        engine.know_sessions(self._endings)
        self._sys_topics = SysTopics(
            engine, self._name, self._sys_interval_ms, self._started, self._clock, self._sys_figures
        )

    def _new_retaining(self, engine: Engine) -> Retaining:
        limits = self._retained_messages_max, self._retained_bytes_max
        return Retaining(engine, self._clock, *limits, on_ended=self._retain_again)

    def _retain_again(self, former: Retaining) -> None:
        if self._engine is not None:
            self._retaining = self._new_retaining(self._engine)
            self._retaining.take_waiting(former)

    def end(self) -> None:
        """End the term: nothing more is done."""
        self._engine = None
        if self._sys_topics is not None:
            self._sys_topics.end()
            self._sys_topics = None
        if self._endings is not None:
            self._endings.end()
            self._endings = None
        if self._retaining is not None:
            self._retaining.end()
            self._retaining = None

    @property
    def is_loaded(self) -> bool:
        return self._retaining is not None and self._retaining.is_loaded

    def when_loaded(self, then: Callable[[], None]) -> None:
        if self._retaining is not None:
            self._retaining.when_loaded(then)

    def retained(self, topic_filter: str, after: str = "", until: int = NEWEST) -> Iterator[Message | None]:
        if self._retaining is None or self._sys_topics is None:
            return iter(())
        return chain(self._sys_topics.matching(topic_filter), self._retaining.matching(topic_filter, after, until))

    @property
    def newest(self) -> int:
        return self._newest

    def may_retain(self, topic: Destination, size: int) -> int:
        if self._retaining is None or not self._retaining.may_retain(topic_of(topic.name), size):
            return 0
        self._newest += 1
        return self._newest

    @property
    def counts(self) -> dict[str, int]:
        """Figures of this term, for ``status``."""
        retaining, endings = self._retaining, self._endings
        if retaining is None or endings is None:
            return {}
        return {
            "mqtt_clients": endings.connected,
            "mqtt_retained_messages": retaining.retained.count,
            "mqtt_retained_bytes": retaining.retained.bytes,
            "mqtt_wills_published_total": endings.wills_published,
            "mqtt_sessions_expired_total": endings.sessions_ended,
        }

    def _sys_figures(self) -> dict[str, int]:
        counts = self.counts
        return {
            "clients/connected": counts["mqtt_clients"],
            "clients/expired": counts["mqtt_sessions_expired_total"],
            "retained messages/count": counts["mqtt_retained_messages"],
            "retained messages/bytes": counts["mqtt_retained_bytes"],
            "wills/published": counts["mqtt_wills_published_total"],
        }

    def may_have_will(self, principal: Principal, size: int) -> bool:
        return self._endings is not None and self._endings.may_have_will(principal, size)

    def give_will_back(self, principal: Principal, size: int) -> None:
        if self._endings is not None:
            self._endings.give_will_back(principal, size)

    def publish_refused(self, client_id: str, reason: str) -> None:
        """Log a refusal; the same one is logged once a minute."""
        self._refusals.note(f"MQTT client {client_id}", reason, self._clock())

    def came(self, client_id: str, *, is_resumed: bool) -> None:
        if self._endings is not None:
            self._endings.came(client_id, is_resumed=is_resumed)

    def left(self, left: Left) -> None:
        if left.state is not None:
            self._sent_ids.keep(left.client_id, left.sent)
        if self._endings is not None:
            self._endings.left(left)

    def sent(self, client_id: str) -> SentIds | None:
        return self._sent_ids.take(client_id)
