"""What a mastership asks of those around it: the service that it starts and stops, and a record of what happens."""

from __future__ import annotations

from typing import Protocol

from tandemmq.store.several.standbys import SeveralStandbys
from tandemmq.store.several.stores import SeveralStores
from tandemmq.store.standby import Standby
from tandemmq.store.store import Store

# One store, or several with the face of one.
AnyStore = Store | SeveralStores
AnyStandby = Standby | SeveralStandbys


class Service(Protocol):
    """What a master does with its store: the engine and the listeners. All on the loop, but ``cut``."""

    async def bind(self) -> None:
        """Take the addresses without listening. OSError names a wrong one."""
        ...

    async def serve(self, store: AnyStore) -> None:
        """Begin to serve clients from ``store``."""
        ...

    async def abort(self) -> None:
        """Hang up at once: nothing is written any more."""
        ...

    async def finish(self) -> None:
        """Take no more clients; what is being answered is answered, within a bound."""
        ...

    def cut(self) -> None:
        """Break every connection and refuse new ones, from any thread, while the loop hangs. ``abort`` follows."""
        ...


class Record(Protocol):
    """Where each step of a broker's life is noted, for people (broker.admin.events). Any thread."""

    def __call__(self, kind: str, **facts: object) -> None: ...


def unrecorded(kind: str, **facts: object) -> None:
    """Ignores the event."""
