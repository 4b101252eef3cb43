"""The master's term, as the endpoints of the API see it: its engine, its destinations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tandemmq.broker.admin.api.endpoints import Answer, Call, Refused
from tandemmq.broker.admin.status import Report
from tandemmq.broker.engine.engine import Engine
from tandemmq.store.records.message import Destination, DestinationKind

KINDS: Final = {"queue": DestinationKind.QUEUE, "topic": DestinationKind.TOPIC}


class Term:
    """Term of the master. ``engine`` is the engine of this term, None unless master."""

    def __init__(self, report: Report, engine: Callable[[], Engine | None]) -> None:
        self._report = report
        self._engine = engine

    def engine(self) -> Engine:
        """Return the engine. Raises Refused unless master."""
        engine = self._engine()
        if engine is None:
            raise self.no_master()
        return engine

    def no_master(self) -> Refused:
        status = self._report.status()
        holder = {"holder": status["holder"]} if status.get("holder") else {}
        reason = f"{status['name']} is not master but {status['role']}"
        return Refused(409, reason, name=status["name"], role=status["role"], **holder)

    def existing(self, call: Call) -> tuple[Engine, Destination]:
        """Return the destination in the address. Raises Refused if there is none."""
        engine, destination = self.engine(), Destination(kind_in(call), call.path["name"])
        self.row(destination)
        return engine, destination

    def row(self, destination: Destination) -> Answer:
        """Return the row of a destination. Raises Refused if there is none, also because it was deleted meanwhile."""
        try:
            return self.engine().inventory.destination(destination)
        except KeyError:
            raise Refused(404, f"there is no {destination}") from None


def kind_in(call: Call) -> DestinationKind:
    """Return the kind in the address; without one, queue. Raises Refused for another kind."""
    kind = call.path.get("kind", "queue")
    if kind not in KINDS:
        raise Refused(404, f"{kind[:64]!r} is no kind of destination: queue or topic")
    return KINDS[kind]
