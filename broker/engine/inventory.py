"""Lists for operators: destinations, subscriptions, connections, consumers, producers and transactions, a page at a
time, in the order of their names.

A page needs one pass over all names, in steps; an item that begins or ends in the meantime may be included or not.
Listing loads no queue: a queue that no client has named since the start is listed with the figures of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import translate
from heapq import nsmallest
from itertools import islice
from re import compile as compile_pattern
from typing import Any, Final, NamedTuple

from tandemmq.broker.core.client import Client
from tandemmq.broker.core.delivery import QueueBase, Subscription
from tandemmq.broker.core.destinations import Destinations
from tandemmq.broker.core.names import PAUSES, is_advisory
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.scheduling.scheduled_message import PENDING
from tandemmq.broker.core.slices import ITEMS, Work, pieces
from tandemmq.broker.core.statistics import NOTHING_YET, figures_of, topic_figures
from tandemmq.broker.core.topics.shared import CLIENT_ID, OWN_TERMS, Holding
from tandemmq.broker.core.topics.topic import Topic, TopicSubscription
from tandemmq.broker.engine.branches import Branch
from tandemmq.store.records.commands import subscription_key
from tandemmq.store.records.message import Destination, DestinationKind

Row = dict[str, Any]
#: Internal queues of the broker, which are not listed.
_UNLISTED: Final = (PENDING, PAUSES)
#: Maximum number of destinations that are named of a consumer, or of a branch.
NAMED_MAX = 100
#: Rows in one step: each may name up to NAMED_MAX destinations.
ROWS_A_STEP = 16

KINDS = {
    DestinationKind.QUEUE: "queue",
    DestinationKind.TOPIC: "topic",
    DestinationKind.TEMP_QUEUE: "temp-queue",
    DestinationKind.TEMP_TOPIC: "temp-topic",
}


class Query(NamedTuple):
    """Selects rows: ``limit`` of those whose names come after ``after``; ``pattern`` as of file names (``*``, ``?``),
    without regard to case."""

    limit: int
    after: str = ""
    pattern: str | None = None


class Found(NamedTuple):
    """A page. ``following``: ``after`` of the next page; None: this is the last. ``total``: rows of all pages."""

    rows: list[Row]
    total: int
    following: str | None


@dataclass(slots=True)
class Inventory:
    """Lists of one engine. ``clients`` and ``branches`` are the engine's, ``producing`` counts producers."""

    destinations: Destinations
    clients: Collection[Client]
    branches: dict[str, Branch]
    producing: Callable[[Destination], int]

    # ---- destinations

    def queues(self, query: Query, only_dead_letters: bool = False) -> Work[Found]:
        """List queues, temporary ones included. ``only_dead_letters``: only dead letter queues."""
        named = (
            each
            for each in self.destinations.names()
            if not each.is_topic
            and each not in _UNLISTED
            and (not only_dead_letters or self._is_dead_letter_queue(each, self.destinations.by_name.get(each)))
        )
        return self._destinations(named, query)

    def topics(self, query: Query) -> Work[Found]:
        """List topics without advisory topics."""
        named = (each for each in self.destinations.names() if each.is_topic and not is_advisory(each))
        return self._destinations(named, query)

    def _destinations(self, named: Iterable[Destination], query: Query) -> Work[Found]:
        return _page(((each.name, each) for each in named), self._row_if_there, query)

    def _row_if_there(self, destination: Destination) -> Row | None:
        try:
            return self.destination(destination)
        except KeyError:
            return None

    def destination(self, destination: Destination) -> Row:
        """Return the row of a destination. KeyError: there is none of that name."""
        target = self.destinations.by_name.get(destination)
        row: Row = {"name": destination.name, "kind": KINDS[destination.kind]}
        if target is None:
            owner = self.destinations.sleeping(destination)
            return row | {"messages": owner.count} | NOTHING_YET | self._state(destination, None)
        figures = topic_figures(target) if isinstance(target, Topic) else figures_of(target)
        return row | figures | self._state(destination, target)

    def _state(self, destination: Destination, target: Queue | Topic | None) -> Row:
        state: Row = {"producers": self.producing(destination)}
        if not destination.is_topic:
            state["is_dead_letter_queue"] = self._is_dead_letter_queue(destination, target)
            state["consumers_paused"] = isinstance(target, Queue) and target.is_paused
            state["producers_paused"] = destination in self.destinations.closed_to_producers
        return state

    def _is_dead_letter_queue(self, destination: Destination, target: Queue | Topic | None) -> bool:
        return f"{destination.name}.".startswith("ActiveMQ.DLQ.") or (
            isinstance(target, Queue) and target.is_dead_letter_queue
        )

    def subscriptions(self, query: Query) -> Work[Found]:
        """List durable subscriptions; one of several topics has a row for each."""
        parts = self.destinations.parts()
        return _page(
            ((place_of_part(each.client_id, each.name, each.destination.name), each) for each in parts),
            lambda part: {
                "client_id": part.client_id,
                "name": part.name,
                "topic": part.destination.name,
                "selector": None if part.selector is None else part.selector.text,
                **figures_of(part),
            },
            query,
            lambda part: f"{part.client_id}:{part.name}:{part.destination.name}",
        )

    def gathered(self, client_id: str, name: str) -> int:
        """Return the number of messages of a durable subscription, including its consumer's; 0: there is none."""
        durable = self.destinations.durables.get(subscription_key(client_id, name))
        return 0 if durable is None else sum(part.count for part in durable.parts.values())

    def membership(self, client_id: str, name: str) -> Holding | None:
        """Return the one membership of a shared subscription with its own terms. None: it is another subscription."""
        is_shared = client_id == CLIENT_ID and name.startswith(OWN_TERMS)
        return self.destinations.holdings.only_of(name) if is_shared else None

    # ---- clients

    def connections(self, query: Query) -> Work[Found]:
        return _page(((each.connection.id, each) for each in list(self.clients)), _connection, query)

    def client(self, connection_id: str) -> Client | None:
        """Return the client of that connection."""
        return next((each for each in self.clients if each.connection.id == connection_id), None)

    def consumers(self, query: Query, of: Destination | None = None, only_slow: bool = False) -> Work[Found]:
        """List consumers. ``of``: of that destination only. ``only_slow``: those that get no messages although some
        wait."""
        target = None if of is None else self.destinations.by_name.get(of)
        subscribers = set(target.subscribers) if isinstance(target, Topic) else set()
        return _page(
            (
                (f"{client.connection.id}/{each.id}", (client, each))
                for client in list(self.clients)
                for each in list(client.subscriptions.values())
                if (of is None or each in subscribers or any(queue.destination == of for queue in each.queues))
                and (not only_slow or _slow(each) is not None)
            ),
            lambda pair: _consumer(pair[0], pair[1], self.destinations.patterns_of(pair[1])),
            query,
        )

    def producers(self, query: Query, of: Destination | None = None) -> Work[Found]:
        """List declared producers (OpenWire). STOMP has none: its clients send without a declaration."""
        return _page(
            (
                (f"{client.connection.id}/{id}", (client, id, named))
                for client in list(self.clients)
                for id, named in list(client.producers.items())
                if of is None or named == of
            ),
            lambda found: {
                "connection": found[0].connection.id,
                "id": found[1],
                "user": found[0].principal.name,
                "destination": None if found[2] is None else str(found[2]),
            },
            query,
        )

    def transactions(self, query: Query) -> Work[Found]:
        """List open transactions, and XA branches that are prepared."""
        open_ones = (
            (
                f"{client.connection.id}/{name}",
                {
                    "id": name,
                    "kind": "local",
                    "state": "open",
                    "connection": client.connection.id,
                    "sent": len(each.messages),
                    "acknowledged": len(each.acknowledged),
                    "bytes": each.held,
                },
            )
            for client in list(self.clients)
            for name, each in list(client.transactions.items())
        )
        branches = ((key, _branch(key, each)) for key, each in list(self.branches.items()))
        return _page((*open_ones, *branches), lambda row: row, query)


def _connection(client: Client) -> Row:
    return {
        "id": client.connection.id,
        "peer": client.connection.peer,
        "client_id": client.id,
        "user": client.principal.name,
        "consumers": len(client.subscriptions),
        "producers": len(client.producers),
        "transactions": len(client.transactions),
        "held_bytes": client.holder.bytes,
        "loop_seconds": round(client.holder.busy, 3),
        "is_held_back": client.holder.is_held_back,
    }


def _consumer(client: Client, subscription: Subscription, patterns: list[Destination]) -> Row:
    """Return a row of a consumer: topics and patterns that it names, or all queues from which it takes."""
    sources: Iterable[QueueBase | Topic] = subscription.queues
    if isinstance(subscription, TopicSubscription):
        sources = subscription.topics
    else:
        patterns = []
    named = [str(each.destination) for each in islice(sources, NAMED_MAX)]
    named += map(str, patterns[: NAMED_MAX - len(named)])
    return {
        "connection": client.connection.id,
        "id": subscription.id,
        "user": client.principal.name,
        "destinations": named,
        "selector": None if subscription.selector is None else subscription.selector.text,
        "ack": subscription.ack.value,
        "prefetch": subscription.prefetch,
        "delivered": subscription.tag,
        "unacknowledged": len(subscription.unacked) + len(subscription.enlisted),
        "pending": len(subscription.pending) + len(subscription.unsifted)
        if isinstance(subscription, TopicSubscription)
        else 0,
        "dropped": subscription.dropped if isinstance(subscription, TopicSubscription) else 0,
        "is_browser": subscription.is_browser,
        "is_exclusive": subscription.is_exclusive,
        "slow": _slow(subscription),
    }


def _slow(subscription: Subscription) -> str | None:
    """Return the reason why a consumer gets nothing although messages wait for it; None: it keeps up."""
    waits = (
        bool(subscription.pending or subscription.unsifted)
        if isinstance(subscription, TopicSubscription)
        else any(isinstance(each, QueueBase) and each.held for each in list(subscription.queues)[:ITEMS])
    )
    if not waits:
        return None
    if subscription.holder.is_held_back:
        return "its connection holds too much of the broker's memory"
    if not subscription.is_pull and subscription.credit <= 0 and not subscription.withheld:
        return f"it acknowledges too slowly: {len(subscription.unacked)} deliveries of its prefetch are unacknowledged"
    if not subscription.outlet.is_writable:
        return "its connection accepts no more bytes: it reads too slowly"
    return None


def _branch(key: str, branch: Branch) -> Row:
    state = "prepared" if branch.is_prepared else "preparing" if branch.is_preparing else "open"
    return {
        "id": key,
        "kind": "xa",
        "state": state,
        "connection": None if branch.client is None else branch.client.connection.id,
        "adds_to": sorted(map(str, islice(branch.adds_to, NAMED_MAX))),
        "removes_from": sorted(map(str, islice(branch.removes_from, NAMED_MAX))),
    }


def place_of_part(client_id: str, name: str, topic: str) -> str:
    """Return the place of a durable subscription in the order of all. Each part may contain ":"."""
    return ":".join(part.replace("%", "%25").replace(":", "%3A") for part in (client_id, name, topic))


def _page(
    named: Iterable[tuple[str, Any]],
    row: Callable[[Any], Row | None],
    query: Query,
    matched: Callable[[Any], str] | None = None,
) -> Work[Found]:
    """Return the rows of ``query``; no other rows are made. ``matched``: the text for its pattern, if not the name."""
    matches = None if query.pattern is None else compile_pattern(translate(query.pattern.lower()))
    chosen: list[tuple[str, int, Any]] = []
    total = number = behind = 0
    for piece in pieces(named):
        for name, thing in piece:
            if matches is not None and not matches.match((matched(thing) if matched else name).lower()):
                continue
            total += 1
            if name > query.after:
                behind += 1
                number += 1
                chosen.append((name, number, thing))
        if len(chosen) > 4 * query.limit + ITEMS:
            chosen = nsmallest(query.limit, chosen, key=_place)
        yield
    chosen = nsmallest(query.limit, chosen, key=_place)
    rows: list[Row] = []
    for start in range(0, len(chosen), ROWS_A_STEP):
        rows += _rows(chosen[start : start + ROWS_A_STEP], row)
        yield
    return Found(rows, total, chosen[-1][0] if behind > len(chosen) else None)


def _place(chosen: tuple[str, int, Any]) -> tuple[str, int]:
    return chosen[:2]


def _rows(chosen: Iterable[tuple[str, int, Any]], row: Callable[[Any], Row | None]) -> Iterator[Row]:
    for _, _, thing in chosen:
        shown = row(thing)
        if shown is not None:
            yield shown
