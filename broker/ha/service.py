"""Interface of a mastership to the rest of the broker: the service that it starts and stops, and a record of events."""

from __future__ import annotations

from typing import Protocol

from tandemmq.store.several.standbys import SeveralStandbys
from tandemmq.store.several.stores import SeveralStores
from tandemmq.store.standby import Standby
from tandemmq.store.store import Store

# One store, or several behind the interface of one.
AnyStore = Store | SeveralStores
AnyStandby = Standby | SeveralStandbys


class Service(Protocol):
    """Service of a master with its store: the engine and the listeners. All on the loop, except ``cut``."""

    async def bind(self) -> None:
        """Bind the addresses without listening. OSError names a wrong one."""
        ...

    async def serve(self, store: AnyStore) -> None:
        """Begin to serve clients from ``store``."""
        ...

    async def abort(self) -> None:
        """Close all connections at once: nothing is written any more."""
        ...

    async def finish(self) -> None:
        """Accept no more clients; complete the answers in progress, within a bound."""
        ...

    def cut(self) -> None:
        """Break every connection and refuse new ones, from any thread, while the loop hangs. ``abort`` follows."""
        ...


class Record(Protocol):
    """Record of each step of a broker's life, for operators (broker.admin.events). Any thread."""

    def __call__(self, kind: str, **facts: object) -> None: ...


def unrecorded(kind: str, **facts: object) -> None:
    """Ignore the event."""
