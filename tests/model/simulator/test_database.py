"""The lease in the simulated database: the SQL that brokers run, over a link that loses answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tandemmq.locker.contract import LockUnavailable
from tandemmq.locker.sql.table import SqlLeaseTable
from tandemmq.simulator.database import LEASE, Database, reached
from tandemmq.simulator.kernel import Process, World
from tandemmq.simulator.link import Link


class Site:
    """A database, and two processes that reach it."""

    def __init__(self) -> None:
        self.world = World(1)
        self.server = Database(self.world)
        self.links = [Link(self.world, 2.0) for _ in "ab"]
        self.processes = [Process(self.world, name) for name in "ab"]
        self.granted: list[str] = []
        self.tables = [
            SqlLeaseTable(reached(self.server, process, link, self._granter(process.name)), LEASE, may_create=True)
            for process, link in zip(self.processes, self.links, strict=True)
        ]

    def _granter(self, name: str) -> Callable[[], None]:
        return lambda: self.granted.append(name)

    def on(self, number: int, story: Callable[[SqlLeaseTable], object], seconds: float = 5.0) -> list[object]:
        lines: list[object] = []
        self.processes[number].thread(lambda: lines.append(story(self.tables[number])), "story").start()
        self.world.run(self.world.now + seconds)
        assert self.world.bugs == []
        return lines


@pytest.fixture
def site() -> Site:
    return Site()


def test_one_takes_the_lease_and_the_other_when_it_ends(site: Site) -> None:
    assert site.on(0, lambda table: table.read().is_free and table.obtain("a", 60_000)) == [True]
    assert site.on(1, lambda table: table.read().is_free or table.obtain("b", 60_000)) == [False]
    site.server.wall_offset += 3600.0
    assert site.on(0, lambda table: table.renew("a", 60_000, ("a",))) == [False]
    assert site.on(1, lambda table: table.obtain("b", 60_000)) == [True]
    assert site.granted == ["a", "b"]


def test_what_is_not_answered_may_have_happened(site: Site) -> None:
    site.on(0, lambda table: table.read())

    def obtain(table: SqlLeaseTable) -> str:
        with pytest.raises(LockUnavailable):
            table.obtain("a", 60_000)
        return table.where

    site.links[0].cut()
    assert len(site.on(0, obtain)) == 1
    assert site.on(1, lambda table: table.read().name) == [None]
    site.links[0].mend()
    site.world.run(site.world.now + 1.0)
    assert site.on(1, lambda table: table.read().name) == ["a"]
    assert site.granted == ["a"]


def test_what_a_dead_process_sent_still_arrives(site: Site) -> None:
    site.on(0, lambda table: table.read())
    site.links[0].cut()
    site.on(0, lambda table: table.obtain("a", 60_000), seconds=1.0)
    site.processes[0].kill()
    site.links[0].mend()
    site.world.run(site.world.now + 1.0)
    assert site.on(1, lambda table: table.read().name) == ["a"]
    assert site.granted == [], "nobody lives who could know"


def test_a_row_that_is_gone_is_made_again(site: Site) -> None:
    site.on(0, lambda table: table.read() and table.obtain("a", 60_000))
    site.server.delete_row()
    assert site.on(0, lambda table: table.renew("a", 60_000, ("a",))) == [False]
    assert site.on(1, lambda table: table.read().is_free and table.obtain("b", 60_000)) == [True]
