"""Contract of every directory of a set: the one in ZooKeeper, and the one in memory that other tests use."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tandemmq.broker.replication.directory import Directory, Entry
from tests.support.replication.shared_directory import SharedDirectory, SharedDirectoryMember

WAIT_SECONDS_MAX = 30.0

A = Entry("aa", "one", "one:1", 1, None, True, "1.0", False, 0, "http://one:8161", ("stomp://one:61613",))
B = Entry("bb", "two", "[::1]:2", 7, "5e7", False, "1.0", False, 4, None, ())


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class DirectoryContract(ABC):
    @pytest.fixture(autouse=True)
    def _members(self) -> Iterator[None]:
        self.made: list[Directory] = []
        yield
        for member in self.made:
            member.end()

    def member(self, entry: Entry | None = None, on_change: Callable[[], None] = lambda: None) -> Any:
        """A node's directory, started."""
        member = self.build()
        self.made.append(member)
        if entry is not None:
            member.publish(entry)
        member.start(on_change)
        return member

    @abstractmethod
    def build(self) -> Directory: ...

    @abstractmethod
    def out_of_reach(self, *members: Any) -> AbstractContextManager[None]:
        """The directory does not answer these; sessions go on."""

    @abstractmethod
    def lose_session(self, member: Any) -> None:
        """End the session, as when the directory has had no contact for too long."""

    # What is seen

    def test_each_sees_what_all_say_in_the_order_of_store_ids(self) -> None:
        b, a = self.member(B), self.member(A)
        for member in (a, b):
            assert eventually(lambda member=member: member.entries() == (A, B))  # type: ignore[misc]
            assert eventually(lambda member=member: member.problem is None)  # type: ignore[misc]

    def test_who_says_nothing_sees_the_others(self) -> None:
        self.member(A)
        watcher = self.member()
        assert eventually(lambda: watcher.entries() == (A,))

    def test_a_change_is_seen_and_told(self) -> None:
        told = threading.Event()
        a, b = self.member(A), self.member(B, told.set)
        assert eventually(lambda: b.entries() == (A, B))
        assert told.wait(WAIT_SECONDS_MAX)
        told.clear()
        master = replace(A, is_master=True, epoch=9)
        a.publish(master)
        assert told.wait(WAIT_SECONDS_MAX)
        assert eventually(lambda: b.entries() == (master, B))

    def test_nothing_new_is_not_told(self) -> None:
        told: list[tuple[Entry, ...]] = []
        a = self.member(A)
        b = self.member(B, lambda: told.append(self.made[1].entries()))
        assert eventually(lambda: bool(told) and told[-1] == (A, B))
        for epoch in (1, 2, 3):
            b.publish(B)
            a.publish(replace(A, epoch=epoch))
            assert eventually(lambda: told[-1][0].epoch == epoch)  # noqa: B023
        assert all(one != other for one, other in pairwise(told))

    def test_who_ends_is_gone(self) -> None:
        told = threading.Event()
        a, b = self.member(A), self.member(B, told.set)
        assert eventually(lambda: b.entries() == (A, B))
        told.clear()
        a.end()
        assert told.wait(WAIT_SECONDS_MAX)
        assert eventually(lambda: b.entries() == (B,))

    def test_who_ended_is_told_nothing(self) -> None:
        told = threading.Event()
        a, b = self.member(A, told.set), self.member(B)
        assert eventually(lambda: a.entries() == b.entries() == (A, B))
        a.end()
        told.clear()
        b.publish(replace(B, epoch=8))
        watcher = self.member()
        assert eventually(lambda: watcher.entries() == (replace(B, epoch=8),))
        assert not told.is_set()

    # When it cannot be asked

    def test_our_own_entry_is_there_before_anybody_was_asked(self) -> None:
        member = self.build()
        member.publish(A)
        assert member.entries() == (A,)

    def test_while_it_cannot_be_asked_the_last_known_stays_and_the_problem_is_said(self) -> None:
        a, b = self.member(A), self.member(B)
        assert eventually(lambda: a.entries() == b.entries() == (A, B))
        changed = replace(A, weight=5)
        with self.out_of_reach(a, b):
            a.publish(changed)
            assert eventually(lambda: a.problem is not None)
            assert a.entries() == (changed, B)
            assert b.entries() == (A, B)
        assert eventually(lambda: b.entries() == (changed, B))
        assert eventually(lambda: a.problem is None and b.problem is None)

    def test_after_a_lost_session_who_is_there_says_so_again(self) -> None:
        a, b, c = self.member(A), self.member(B), self.member()
        assert eventually(lambda: a.entries() == b.entries() == c.entries() == (A, B))
        for member in (a, b, c):
            self.lose_session(member)
        for member in (a, b, c):
            assert eventually(lambda member=member: member.entries() == (A, B))  # type: ignore[misc]
        a.publish(replace(A, epoch=2))
        for member in (b, c):
            assert eventually(lambda member=member: member.entries() == (replace(A, epoch=2), B))  # type: ignore[misc]


class TestSharedDirectory(DirectoryContract):
    @pytest.fixture(autouse=True)
    def _shared(self) -> None:
        self.shared = SharedDirectory()

    def build(self) -> SharedDirectoryMember:
        return self.shared.member()

    @contextmanager
    def out_of_reach(self, *members: SharedDirectoryMember) -> Iterator[None]:
        for member in members:
            member.cut_off()
        yield
        for member in members:
            member.heal()

    def lose_session(self, member: SharedDirectoryMember) -> None:
        member.lose_session()

    def test_an_emptied_directory_is_filled_again(self) -> None:
        a, b = self.member(A), self.member(B)
        self.shared.forget_everything()
        assert a.entries() == b.entries() == self.shared.entries == (A, B)

    def test_who_crashed_is_there_until_its_session_ends(self) -> None:
        a, b = self.member(A), self.member(B)
        a.crash()
        assert b.entries() == (A, B)
        a.lose_session()
        assert b.entries() == (B,)
