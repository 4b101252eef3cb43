"""Endpoints for paged lists: connections, destinations, subscriptions, consumers, producers, transactions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tandemmq.broker.admin.answers import Answers
from tandemmq.broker.admin.api import parameters
from tandemmq.broker.admin.api.endpoints import PAGE, Answer, Call, Endpoint, Refused, Term, kind_in
from tandemmq.broker.admin.api.operator_client import operator_client
from tandemmq.broker.admin.callers import Role
from tandemmq.broker.core.commands import Connect, Unsubscribe
from tandemmq.broker.core.slices import Work
from tandemmq.broker.core.topics.shared import CLIENT_ID
from tandemmq.broker.engine.inventory import Found, Inventory, Query, Row, place_of_part
from tandemmq.broker.net.server import Server
from tandemmq.store.records.message import Destination, DestinationKind


class Listings:
    def __init__(self, term: Term, server: Server, answers: Answers) -> None:
        self._term = term
        self._answers = answers
        self._server = server

    def endpoints(self) -> list[Endpoint]:
        listing = partial(Endpoint, "GET", role=Role.VIEWER, answers=PAGE)
        return [
            listing(
                "/connections",
                summary="List client connections.",
                handle=self._connections,
                query=parameters.Paged,
                cursor=lambda row: str(row["id"]),
            ),
            Endpoint("DELETE", "/connections/{id}", Role.ADMIN, "Disconnect a client.", self._hang_up),
            listing(
                "/destinations/{kind}",
                summary="List queues or topics.",
                handle=self._destinations,
                query=parameters.PagedDestinations,
                cursor=lambda row: str(row["name"]),
            ),
            listing(
                "/subscriptions",
                summary="List durable subscriptions.",
                handle=partial(self._list, of=Inventory.subscriptions),
                query=parameters.Paged,
                cursor=lambda row: place_of_part(row["client_id"], row["name"], row["topic"]),
            ),
            Endpoint(
                "DELETE",
                "/subscriptions/{client_id}/{name}",
                Role.OPERATOR,
                "Delete a durable subscription and all it holds.",
                self._delete_subscription,
            ),
            listing(
                "/consumers",
                summary="List consumers.",
                handle=self._consumers,
                query=parameters.PagedConsumers,
                cursor=_of_connection,
            ),
            listing(
                "/producers",
                summary="List declared and blocked producers.",
                handle=self._producers,
                query=parameters.PagedOf,
                cursor=_of_connection,
            ),
            listing(
                "/transactions",
                summary="List open and prepared transactions.",
                handle=partial(self._list, of=Inventory.transactions),
                query=parameters.Paged,
                cursor=lambda row: str(row["id"]) if row["kind"] == "xa" else _of_connection(row),
            ),
        ]

    async def _list(self, call: Call, of: Callable[[Inventory, Query], Work[Found]]) -> dict[str, Any]:
        request: parameters.Paged = call.query
        query = Query(request.limit, request.after, request.filter)
        found = await self._answers.run(of(self._term.engine().inventory, query))
        return {"items": found.rows, "total": found.total, "following": found.following}

    async def _connections(self, call: Call) -> Answer:
        page = await self._list(call, Inventory.connections)
        connectors = self._server.connector_names()
        for row in page["items"]:
            row["connector"] = connectors.get(row["id"])
        return page

    async def _destinations(self, call: Call) -> Answer:
        if kind_in(call) is DestinationKind.TOPIC:
            return await self._list(call, Inventory.topics)
        only_dead_letters = call.query.dead_letters
        return await self._list(call, lambda inventory, query: inventory.queues(query, only_dead_letters))

    async def _delete_subscription(self, call: Call) -> Answer:
        """Delete a subscription in the name of its client. Its client id is in use until this returns."""
        client_id, name = call.path["client_id"], call.path["name"]
        engine = self._term.engine()
        membership = engine.inventory.membership(client_id, name)
        if membership is not None:
            client_id, name = membership.client_id, membership.name
        is_global = membership is not None and client_id == CLIENT_ID
        has_terms = membership is not None  # JMS keeps such a subscription while it has consumers; MQTT does not
        async with operator_client(engine, call.caller) as operator:
            await operator.enter(Connect(None if is_global else client_id))
            await operator.do(Unsubscribe(None, durable_name=name, is_global=is_global, unless_used=has_terms))
        return {}

    async def _consumers(self, call: Call) -> Answer:
        request: parameters.PagedConsumers = call.query
        return await self._list(call, lambda inventory, query: inventory.consumers(query, _of(request), request.slow))

    async def _producers(self, call: Call) -> Answer:
        page = await self._list(call, lambda inventory, query: inventory.producers(query, _of(call.query)))
        return {**page, "blocked": self._term.engine().flow.blocked(call.query.limit)}

    async def _hang_up(self, call: Call) -> Answer:
        if not self._term.engine().hang_up(call.path["id"]):
            raise Refused(404, f"there is no connection {call.path['id'][:64]!r}")
        return {}


def _of_connection(row: Row) -> str:
    """Return the cursor of a row that belongs to a connection, in the order of ``broker.engine.inventory``."""
    return f"{row['connection']}/{row['id']}"


def _of(request: parameters.PagedOf) -> Destination | None:
    if request.queue is not None:
        return Destination(DestinationKind.QUEUE, request.queue)
    return None if request.topic is None else Destination(DestinationKind.TOPIC, request.topic)
