"""A directory in memory that replaces ZooKeeper for the members of a set: reachable or not, with sessions that a test
ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tandemmq.broker.replication.directory import Entry


class SharedDirectory:
    """The shared state of all members. A member that changes it calls, on its own thread, those that can see it."""

    def __init__(self) -> None:
        self.is_reachable = True  # by members that connect from now on
        self._guard = threading.Lock()
        self._entries: dict[str, Entry] = {}  # by store id
        self._members: list[SharedDirectoryMember] = []

    def member(self) -> SharedDirectoryMember:
        """Return a `Directory` for one node, which is connected from `start` on."""
        member = SharedDirectoryMember(self)
        if not self.is_reachable:
            member.cut_off()
        with self._guard:
            self._members.append(member)
        return member

    @property
    def entries(self) -> tuple[Entry, ...]:
        with self._guard:
            return tuple(self._entries[store] for store in sorted(self._entries))

    def forget_everything(self) -> None:
        """Empty the data directory of the servers: the members that can reach them register again, in any order."""
        with self._guard:
            self._entries.clear()
            members = list(self._members)
        self._spread()
        for member in members:
            member.say_again()

    def put(self, entry: Entry) -> None:
        with self._guard:
            self._entries[entry.store] = entry
        self._spread()

    def drop(self, store: str) -> None:
        with self._guard:
            self._entries.pop(store, None)
        self._spread()

    def _spread(self) -> None:
        with self._guard:
            members = list(self._members)
        for member in members:
            member.refresh()


class SharedDirectoryMember:
    """One node's `Directory`."""

    def __init__(self, shared: SharedDirectory) -> None:
        self._shared = shared
        self._guard = threading.Lock()
        self._own: Entry | None = None
        self._known: tuple[Entry, ...] = ()
        self._told: tuple[Entry, ...] = ()
        self._is_running = False
        self._is_cut_off = False
        self._on_change: Callable[[], None] = lambda: None

    # Methods of `Directory`

    def start(self, on_change: Callable[[], None]) -> None:
        with self._guard:
            self._on_change, self._is_running = on_change, True
        self.say_again()
        self.refresh()

    def publish(self, entry: Entry) -> None:
        with self._guard:
            self._own = entry
        self.say_again()
        self.refresh()

    def entries(self) -> tuple[Entry, ...]:
        with self._guard:
            own = self._own
            others = [entry for entry in self._known if own is None or entry.store != own.store]
        return tuple(sorted((*others, *([own] if own else [])), key=lambda entry: entry.store))

    @property
    def problem(self) -> str | None:
        return "cut off from the directory" if self._is_cut_off else None

    def end(self) -> None:
        with self._guard:
            self._is_running = False
            own, is_seen = self._own, not self._is_cut_off
        if own is not None and is_seen:
            self._shared.drop(own.store)

    # Methods for the test

    def cut_off(self) -> None:
        """Stop answering this node. Its entry stays until `lose_session`."""
        self._is_cut_off = True

    def heal(self) -> None:
        self._is_cut_off = False
        self.say_again()
        self.refresh()

    def lose_session(self) -> None:
        """End its session: the entry is removed, and comes back by itself if the servers are reachable."""
        if self._own is not None:
            self._shared.drop(self._own.store)
        self.say_again()

    def crash(self) -> None:
        """End the process abruptly. Its entry stays until `lose_session`."""
        with self._guard:
            self._is_running = False

    def say_again(self) -> None:
        with self._guard:
            own = self._own if self._is_running and not self._is_cut_off else None
        if own is not None:
            self._shared.put(own)

    def refresh(self) -> None:
        """Read the entries, and report them if they are new."""
        with self._guard:
            if not self._is_running:
                return
        if not self._is_cut_off:
            known = self._shared.entries
            with self._guard:
                self._known = known
        entries = self.entries()
        with self._guard:
            is_new, self._told = entries != self._told, entries
        if is_new:
            self._on_change()
