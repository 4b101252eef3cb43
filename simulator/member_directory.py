"""Directory of the members, like ZooKeeper's: entries end with the session of their member, and may be wrong.

A simulated broker uses it instead of ZooKeeper (broker.replication.network.Directory).
"""

from __future__ import annotations

from collections.abc import Callable

from tandemmq.broker.replication.directory import Entry
from tandemmq.simulator.kernel import Process, World

#: Time between a call, or a change, and its effect.
LATENCY_SECONDS = 0.005
#: Interval of a member's sign of life, in sessions.
BEAT = 1 / 3


class Registry:
    """The servers. ``unreachable``: hosts that cannot reach them; ``is_down``: no host can."""

    def __init__(self, world: World, session_seconds: float) -> None:
        self.world = world
        self.session_seconds = session_seconds
        self.unreachable: set[str] = set()
        self.is_down = False
        self._entries: dict[str, Entry] = {}
        self._beats: dict[str, float] = {}  # store -> when its session last had contact
        self._members: list[SimulatedDirectory] = []
        self._check_sessions()

    def joined(self, member: SimulatedDirectory) -> None:
        """Notify the member of changes from now on."""
        self._members.append(member)
        self.world.after(LATENCY_SECONDS, member.refresh)

    def entries(self) -> dict[str, Entry]:
        """Return the entries by store."""
        return self._entries

    def can_be_asked(self, name: str) -> bool:
        return not self.is_down and name not in self.unreachable

    def put(self, entry: Entry) -> None:
        self._beats[entry.store] = self.world.now
        if self._entries.get(entry.store) != entry:
            self._entries[entry.store] = entry
            self._changed()

    def heard_of(self, store: str) -> bool:
        """Note contact with the store. Return whether its entry is still there."""
        self._beats[store] = self.world.now
        return store in self._entries

    def remove(self, store: str) -> None:
        if self._entries.pop(store, None) is not None:
            self._changed()

    def restart(self, entries: dict[str, Entry]) -> None:
        """Restart the servers with these entries: none, or those of an earlier time."""
        self.is_down = False
        self._entries = dict(entries)
        self._beats = dict.fromkeys(self._entries, self.world.now)
        self._changed()

    def _check_sessions(self) -> None:
        self.world.after(self.session_seconds * BEAT / 2, self._check_sessions)
        if self.is_down:  # its clock of sessions begins anew when it is back
            self._beats = dict.fromkeys(self._beats, self.world.now)
            return
        for store in list(self._entries):
            if self.world.now - self._beats.get(store, 0.0) > self.session_seconds:
                self.remove(store)

    def _changed(self) -> None:
        self._members = [member for member in self._members if not member.is_over]
        for member in self._members:
            self.world.after(LATENCY_SECONDS * (0.5 + self.world.random.random()), member.refresh)


class SimulatedDirectory:
    """Directory for one life of one broker."""

    def __init__(self, registry: Registry, process: Process, name: str) -> None:
        self._registry = registry
        self._process = process
        self._name = name
        self._own: Entry | None = None
        self._known: dict[str, Entry] = {}
        self._told: tuple[Entry, ...] = ()
        self._on_change: Callable[[], None] = lambda: None
        self._has_ended = False

    @property
    def is_over(self) -> bool:
        return self._has_ended or self._process.is_dead

    @property
    def _can_ask(self) -> bool:
        return not self.is_over and not self._process.is_paused and self._registry.can_be_asked(self._name)

    def start(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._registry.joined(self)
        self._beat()

    def publish(self, entry: Entry) -> None:
        former, self._own = self._own, entry
        if former is not None and former.store != entry.store:
            self._registry.remove(former.store)
        self._registry.world.after(LATENCY_SECONDS, self._put)

    def _put(self) -> None:
        if self._own is not None and self._can_ask:
            self._registry.put(self._own)

    def _beat(self) -> None:
        if self.is_over:
            return
        registry = self._registry
        registry.world.after(registry.session_seconds * BEAT, self._beat)
        if self._can_ask:
            own = self._own
            # A former process may have left an entry with another address.
            if own is not None and (not registry.heard_of(own.store) or registry.entries().get(own.store) != own):
                self._put()
            self.refresh()

    def refresh(self) -> None:
        """Read the entries, and report them if they have changed."""
        if not self._can_ask:
            return
        self._known = dict(self._registry.entries())
        entries = self.entries()
        if entries != self._told:
            self._told = entries
            self._on_change()

    def entries(self) -> tuple[Entry, ...]:
        known = dict(self._known)
        if self._own is not None:
            known[self._own.store] = self._own
        return tuple(known[store] for store in sorted(known))

    @property
    def problem(self) -> str | None:
        return None if self._can_ask else "no server answers"

    def end(self) -> None:
        if self._own is not None and self._can_ask:
            self._registry.remove(self._own.store)
        self._has_ended = True
