"""The directory of a set: it lists the members, and decides nothing. In ZooKeeper:

    /default/orders                    `zk_path` and the broker's name; stays
    /default/orders/nodes              stays
    /default/orders/nodes/<store id>   JSON of an Entry and a nonce; goes with the session of the node that made it

One thread watches: it lists all entries, writes this node's entry if it is missing or old, and waits for the next
watch. Each turn reads everything. So it also finds changes of which no watch informed it, because a session was lost or
a server was restored to an older state.

An entry with this node's store id that this process did not write is either from the former process, which has ended,
or from a running copy of the store directory. It is replaced once. If it comes back, its owner is alive, and that is
reported as a problem.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from pydantic import TypeAdapter

from tandemmq.locker.contract import BootClock, LockRefused, LockUnavailable
from tandemmq.locker.zookeeper.session import ZooKeeperSession
from tandemmq.store.threads import OS_THREADS, Threads

#: User whose password is proved to the servers; an ACL names a user and a password.
USER: Final = "tandemmq"
#: Limit of each call.
CALL_SECONDS_MAX: Final = 2.0
CONNECT_SECONDS_MAX: Final = 2.0
#: Limit of the wait in `end`: for the call under way, and for the end of the session.
END_SECONDS_MAX: Final = 4.0
#: Pause between attempts while the servers are unavailable.
RETRY_SECONDS: Final = 0.2
#: All entries are listed at least at this interval, even without an event.
LIST_SECONDS_MAX: Final = 10.0
#: A session without contact for its own length is replaced by a new one. For each further session the time doubles, up
#: to this.
PATIENCE_SECONDS_MAX: Final = 60.0
#: A directory with more members, or with a larger entry, is not one of TandemMQ.
ENTRIES_MAX: Final = 64
ENTRY_BYTES_MAX: Final = 64 << 10

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry that a member publishes about itself. ``store`` and ``set`` are ids in hex; ``address`` is where it accepts
    links, HOST:PORT; ``admin`` and ``connectors`` are the URIs advertised to operators and clients."""

    store: str
    node: str
    address: str
    weight: int
    set: str | None  # None: it belongs to no set yet
    has_journal: bool
    version: str
    is_master: bool
    epoch: int
    admin: str | None
    connectors: tuple[str, ...]


class Directory(Protocol):
    """Directory of the members: it lists them and reports changes, and does not take part in decisions. Calls never
    block long; any thread."""

    def start(self, on_change: Callable[[], None]) -> None:
        """Begin to watch. ``on_change`` is called, on any thread, after ``entries`` has changed; it must not block."""

    def publish(self, entry: Entry) -> None:
        """Publish this entry for this node from now on, in place of the former one; after a lost session it is
        published again automatically."""

    def entries(self) -> tuple[Entry, ...]:
        """Return the entries known now, that of this node included, by store id; while the directory cannot be reached,
        those known last."""

    @property
    def problem(self) -> str | None:
        """Reason for which the directory cannot be reached now, for the operator; None: it can."""

    def end(self) -> None:
        """Remove this node's entry if possible, and stop watching. ``on_change`` is not called afterwards."""


@dataclass(frozen=True, slots=True)
class ZooKeeperPlace:
    """Values of `[replication]`: HOST:PORT,…; the path of all sets on these servers; the broker's name; the requested
    session time-out."""

    hosts: str
    path: str
    broker: str
    session_timeout_seconds: float
    password: str = ""

    @property
    def nodes(self) -> str:
        return f"{self.path}/{self.broker}/nodes"

    @property
    def digest(self) -> str | None:
        return f"{USER}:{self.password}" if self.password else None


@dataclass(frozen=True, slots=True)
class _Found:
    """A node as it was read. ``entry`` is None if its content is not a member's."""

    entry: Entry | None
    nonce: str
    content: bytes
    version: int
    owner: int


class ZooKeeperDirectory:
    """A `Directory` in ZooKeeper. Needs the extra `zookeeper`; raises UnknownLocker without it."""

    def __init__(self, place: ZooKeeperPlace, threads: Threads = OS_THREADS) -> None:
        self._place = place
        self._threads = threads
        self._nonce = os.urandom(8).hex()
        self._guard = threads.lock()
        self._wake = threads.event()
        self._ended = threads.event()
        self._session = self._new_session()
        self._timeout_seconds = place.session_timeout_seconds
        self._own: Entry | None = None
        self._others: tuple[Entry, ...] = ()
        self._problem: str | None = "no server was reached yet"
        self._reported: tuple[Entry, ...] = ()
        self._replaced: set[str] = set()  # nonces, a few in the life of a process
        self._failing_since: float | None = None
        self._patience_seconds = place.session_timeout_seconds
        self._on_change: Callable[[], None] = lambda: None
        self._thread = threads.thread(self._run, "tandemmq-directory")

    @property
    def where(self) -> str:
        return f"the ZooKeeper node {self._place.nodes} at {self._place.hosts}"

    # Any thread

    def start(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._thread.start()

    def publish(self, entry: Entry) -> None:
        with self._guard:
            self._own = entry
        self._wake.set()

    def entries(self) -> tuple[Entry, ...]:
        with self._guard:
            own = () if self._own is None else (self._own,)
            others = (entry for entry in self._others if self._own is None or entry.store != self._own.store)
            return tuple(sorted((*others, *own), key=lambda entry: entry.store))

    @property
    def session_timeout_seconds(self) -> float:
        """Seconds of silence after which a member's entry is removed, as agreed with the server; before the agreement,
        as requested."""
        return self._timeout_seconds

    @property
    def problem(self) -> str | None:
        return self._problem

    def end(self) -> None:
        self._ended.set()
        self._wake.set()
        if self._thread.native_id is None:
            return  # it was never started
        if self._thread.native_id != self._threads.native_id():
            self._thread.join(END_SECONDS_MAX)

    # The directory's own thread

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wake.clear()
            pause = LIST_SECONDS_MAX
            try:
                self._problem = self._turn()
                self._failing_since, self._patience_seconds = None, self._timeout_seconds
            except (LockUnavailable, LockRefused) as error:
                self._failed(str(error))
                pause = RETRY_SECONDS
            except Exception as error:  # an error of kazoo itself: the node continues without the directory
                log.exception("%s", self.where)
                self._failed(f"{self.where} is unavailable: {error!r}")
                pause = RETRY_SECONDS
            self._report()
            self._wake.wait(pause)
        self._session.close()

    def _turn(self) -> str | None:
        """Read everything, and write this node's entry if it is missing or wrong. Return the problem, if any."""
        self._session.connect(CONNECT_SECONDS_MAX)
        self._timeout_seconds = round(self._session.timeout_seconds, 3)
        found = self._list()
        entries = [each.entry for each in found.values() if each.entry is not None]
        with self._guard:
            self._others = tuple(entries)
            own = self._own
        return None if own is None else self._write(own, found.get(own.store))

    def _list(self) -> dict[str, _Found]:
        """Return all nodes by store id. From here on a change of any node wakes this thread."""
        from kazoo.exceptions import NoNodeError

        try:
            names = self._call("get_children", self._place.nodes, watch=self._changed)
        except NoNodeError:
            self._make_parents()
            names = self._call("get_children", self._place.nodes, watch=self._changed)
        found: dict[str, _Found] = {}
        for name in sorted(names)[:ENTRIES_MAX]:
            try:
                content, status = self._call("get", f"{self._place.nodes}/{name}", watch=self._changed)
            except NoNodeError:
                continue  # it was removed: the watch on its parent has woken this thread
            entry, nonce = decode(content)
            if entry is not None and entry.store != name:
                entry = None
            found[name] = _Found(entry, nonce, content, status.version, status.ephemeralOwner)
        return found

    def _make_parents(self) -> None:
        """Make the parent nodes. `zk_path` belongs to all sets that share it, so any client may add to it; the nodes
        below the broker's name belong to this set."""
        from kazoo.security import OPEN_ACL_UNSAFE

        self._call("ensure_path", self._place.path, OPEN_ACL_UNSAFE)
        self._call("ensure_path", self._place.nodes)

    def _write(self, own: Entry, found: _Found | None) -> str | None:
        """Write this node's entry if it is missing or old. The next turn, for which the watch wakes this thread, reads
        and compares the entry that is written now."""
        from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

        path, content = f"{self._place.nodes}/{own.store}", encode(own, self._nonce)
        try:
            if found is not None and found.owner == self._session.number:
                if found.content != content:
                    self._call("set", path, content, version=found.version)
                return None
            if found is not None:
                if found.nonce != self._nonce and found.nonce in self._replaced:
                    address = "an unknown address" if found.entry is None else found.entry.address
                    return (
                        f"{self.where} has the store id of this node from another process, at {address}: one of the "
                        "two store directories is a copy. Stop the broker that uses the copy"
                    )
                self._replaced.add(found.nonce)
                self._call("delete", path, version=found.version)
            self._call("create", path, content, ephemeral=True)
        except (NodeExistsError, NoNodeError, BadVersionError):
            self._wake.set()  # it changed since it was read
        return None

    def _call(self, verb: str, *arguments: object, **options: object) -> Any:
        return self._session.call(verb, *arguments, seconds_max=CALL_SECONDS_MAX, **options)

    def _changed(self, event: object) -> None:
        """Wake the thread. On kazoo's thread: a node, the list of nodes or the connection has changed."""
        self._wake.set()

    def _failed(self, problem: str) -> None:
        self._problem = problem
        now = self._threads.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since > self._patience_seconds:
            # Servers restored to an older state refuse a client that has seen more than they have, for the life of that
            # client.
            session, self._session = self._session, self._new_session()
            session.close()
            self._failing_since = now
            self._patience_seconds = min(2 * self._patience_seconds, PATIENCE_SECONDS_MAX)

    def _new_session(self) -> ZooKeeperSession:
        place = self._place
        return ZooKeeperSession(self.where, place.hosts, place.session_timeout_seconds, place.digest, BootClock())

    def _report(self) -> None:
        entries = self.entries()
        if entries != self._reported and not self._ended.is_set():
            self._reported = entries
            self._on_change()


def encode(entry: Entry, nonce: str) -> bytes:
    """Return the content of a node. ``nonce`` identifies one life of one process."""
    return json.dumps({**asdict(entry), "nonce": nonce}, ensure_ascii=False, sort_keys=True).encode()


def decode(content: bytes | None) -> tuple[Entry | None, str]:
    """Return the entry and the nonce in ``content``. Never fails: unreadable content is not that of a member. Unknown
    keys come from a newer member, and are ignored."""
    if content is None or len(content) > ENTRY_BYTES_MAX:
        return None, ""
    try:
        nonce = json.loads(content)["nonce"]
        entry = _ENTRY.validate_json(content, strict=True)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, ""
    return (entry, nonce) if isinstance(nonce, str) else (None, "")


_ENTRY: Final = TypeAdapter(Entry)
