"""Endpoints for single destinations: create, show, pause, delete."""

from __future__ import annotations

from tandemmq.broker.admin.api import parameters
from tandemmq.broker.admin.api.endpoints import Answer, Call, Endpoint
from tandemmq.broker.admin.api.operator_client import operator_client
from tandemmq.broker.admin.api.pauses import Pauses
from tandemmq.broker.admin.api.term import KINDS, Term
from tandemmq.broker.admin.roles import Role
from tandemmq.broker.core.commands import AddDestination, Command, RemoveDestination
from tandemmq.store.records.message import Destination


class Destinations:
    def __init__(self, term: Term, pauses: Pauses) -> None:
        self._term = term
        self._pauses = pauses

    def endpoints(self) -> list[Endpoint]:
        viewer, operator = Role.VIEWER, Role.OPERATOR
        one, queue = "/destinations/{kind}/{name}", "/destinations/queue/{name}"
        return [
            Endpoint(
                "POST", "/destinations", operator, "Create a destination.", self._create, body=parameters.Creation
            ),
            Endpoint("GET", one, viewer, "Show a destination.", self._destination),
            Endpoint("DELETE", one, operator, "Delete a destination and all it holds.", self._delete_destination),
            Endpoint(
                "POST",
                f"{queue}/pause",
                operator,
                "Pause consumers or producers.",
                self._pause,
                body=parameters.Pausing,
            ),
            Endpoint(
                "POST",
                f"{queue}/resume",
                operator,
                "Resume consumers or producers.",
                self._resume,
                body=parameters.Pausing,
            ),
        ]

    async def _do(self, call: Call, command: Command) -> None:
        async with operator_client(self._term.engine(), call.caller) as operator:
            await operator.do(command)

    async def _create(self, call: Call) -> Answer:
        body: parameters.Creation = call.body
        destination = Destination(KINDS[body.kind], body.name)
        await self._do(call, AddDestination(destination))
        return self._term.row(destination)

    async def _destination(self, call: Call) -> Answer:
        return self._term.row(self._term.existing(call)[1])

    async def _delete_destination(self, call: Call) -> Answer:
        _, destination = self._term.existing(call)
        await self._do(call, RemoveDestination(destination))
        return {}

    async def _pause(self, call: Call) -> Answer:
        return await self._set_paused(call, is_paused=True)

    async def _resume(self, call: Call) -> Answer:
        return await self._set_paused(call, is_paused=False)

    async def _set_paused(self, call: Call, *, is_paused: bool) -> Answer:
        body: parameters.Pausing = call.body
        engine, destination = self._term.existing(call)
        await self._pauses.pause(
            engine,
            call.caller.principal,
            destination.name,
            consumers=is_paused if body.consumers else None,
            producers=is_paused if body.producers else None,
        )
        return self._term.row(destination)
