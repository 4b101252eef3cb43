"""Term of a master: the engine and the destinations that endpoints use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tandemmq.broker.admin.api.endpoints import Answer, Call, Refused
from tandemmq.broker.admin.status import Report
from tandemmq.broker.engine.engine import Engine
from tandemmq.store.records.message import Destination, DestinationKind

KINDS: Final = {"queue": DestinationKind.QUEUE, "topic": DestinationKind.TOPIC}


class Term:
    """Term of the master. ``engine`` returns the engine of this term, None unless master."""

    def __init__(self, report: Report, engine: Callable[[], Engine | None]) -> None:
        self._report = report
        self._engine = engine

    def engine(self) -> Engine:
        """Return the engine. Raises Refused unless master."""
        engine = self._engine()
        if engine is None:
            raise self.not_master()
        return engine

    def not_master(self) -> Refused:
        status = self._report.status()
        holder = {"holder": status["holder"]} if status.get("holder") else {}
        reason = f"{status['name']} is not master but {status['role']}"
        return Refused(409, reason, name=status["name"], role=status["role"], **holder)

    def existing(self, call: Call) -> tuple[Engine, Destination]:
        """Return the engine and the destination in the path of the request. Raises Refused unless master, or if the
        destination does not exist."""
        engine, destination = self.engine(), Destination(kind_in(call), call.path["name"])
        self.row(destination)
        return engine, destination

    def row(self, destination: Destination) -> Answer:
        """Return the row of a destination. Raises Refused if the destination does not exist."""
        try:
            return self.engine().inventory.destination(destination)
        except KeyError:
            raise Refused(404, f"there is no {destination}") from None


def kind_in(call: Call) -> DestinationKind:
    """Return the kind of destination in the path of the request; queue if the path has none. Raises Refused for an
    unknown kind."""
    kind = call.path.get("kind", "queue")
    if kind not in KINDS:
        raise Refused(404, f"{kind[:64]!r} is not a kind of destination: expected queue or topic")
    return KINDS[kind]
