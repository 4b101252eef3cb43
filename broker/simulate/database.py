"""A database with one row, the lease (locker.lease.LeaseTable), and a clock that somebody may set.

Each verb takes place at one moment of the database's clock. An answer that does not come in time leaves open whether
the verb took place, or will.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from broker.simulate.kernel import Process, World
from broker.simulate.link import Link, NoAnswer
from locker.contract import LockUnavailable
from locker.lease import LeaseRow

T = TypeVar("T")

#: SQLSTATE of a connection that failed.
CONNECTION_FAILURE = "08006"


class Database:
    """The row, and the clock in ms since 1970."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.wall_offset = 1_700_000_000.0
        self.name: str | None = None
        self.ends_ms: int | None = None
        self.loses_row = False

    def now_ms(self) -> int:
        return int((self.wall_offset + self.world.now) * 1000)


class SimulatedTable:
    """One broker's connection to it."""

    def __init__(self, database: Database, process: Process, link: Link) -> None:
        self._database = database
        self._process = process
        self._link = link

    @property
    def where(self) -> str:
        return "the lease in the simulated database"

    def _call(self, effect: Callable[[], T]) -> T:
        try:
            return self._link.call(self._process, effect)
        except NoAnswer:
            raise LockUnavailable(f"{self.where} does not answer", sqlstate=CONNECTION_FAILURE) from None

    def read(self) -> LeaseRow:
        database = self._database
        return self._call(lambda: LeaseRow(database.name, database.ends_ms, database.now_ms()))

    def obtain(self, name: str, lease_ms: int) -> bool:
        database = self._database
        return self._set_if(lambda: database.ends_ms is None or database.ends_ms <= database.now_ms(), name, lease_ms)

    def renew(self, name: str, lease_ms: int, known_as: Sequence[str]) -> bool:
        database = self._database
        return self._set_if(
            lambda: database.name in known_as and (database.ends_ms or 0) > database.now_ms(), name, lease_ms
        )

    def take_over(self, name: str, lease_ms: int, seen: LeaseRow) -> bool:
        database = self._database
        return self._set_if(lambda: database.name == seen.name and database.ends_ms == seen.ends_ms, name, lease_ms)

    def _set_if(self, may: Callable[[], bool], name: str, lease_ms: int) -> bool:
        def effect() -> bool:
            if not may():
                return False
            self._database.name = name
            self._database.ends_ms = self._database.now_ms() + lease_ms
            return True

        return self._call(effect)

    def free(self, known_as: Sequence[str]) -> None:
        def effect() -> None:
            if self._database.name in known_as:
                self._database.name, self._database.ends_ms = None, 0

        self._call(effect)

    def close(self) -> None:
        """Nothing is kept open."""
