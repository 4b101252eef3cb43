"""The other members, as this node knows them: their last status, the links to them, and twins.

The statuses decide nothing. The file `replication.known` beside the promise file holds them for commands that run while
no process runs there (`tandemmq replication leave` and `forget`): JSON, replaced now and then, never synced. It may be
old or missing.

Twins are two directories with one store id whose processes are both alive: a cloned disk. No member may admit either of
them. One directory has one process at a time. So of two processes of one store, either all of one is before the other,
or there are two directories. Life and address identify a process. A completed handshake proves that the peer was alive
when the handshake began, or later; a handshake ends within HANDSHAKE_SECONDS_MAX. So a process that is heard more than
TWIN_SECONDS after another one was first heard was alive after the other one was. If that holds both ways, both are
alive.
"""

# proofs: twins

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandemmq.broker.replication.directory import Directory, Entry
from tandemmq.broker.replication.handshake import HANDSHAKE_SECONDS_MAX
from tandemmq.broker.replication.messages import Hello, Message
from tandemmq.broker.replication.network import Link, Listener, Network
from tandemmq.broker.replication.promise import is_older, start_of
from tandemmq.broker.replication.quorum import BEFORE_ALL, NOWHERE, Place
from tandemmq.broker.replication.state import NodeState
from tandemmq.disk import open_regular, read_fully

KNOWN_FILE: Final = "replication.known"
KNOWN_BYTES_MAX: Final = 1 << 20
#: Keys of a member's status that are written to the file.
KNOWN_KEYS: Final = ("node", "role", "epoch", "position", "final", "is_whole", "is_voter")

Status = Mapping[str, Any]


def place_of(value: object) -> Place | None:
    """Return the place in a status, written as [file, end]. None for anything else."""
    if isinstance(value, list) and len(value) == 2 and all(type(each) is int for each in value) and value != [0, 0]:
        return value[0], value[1]
    return None


class Known:
    """Statuses of the members. One thread notes them, any thread may read them. ``now`` is a clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._heard: dict[str, tuple[float, Status]] = {}
        self._final: dict[str, Place] = {}

    def note(self, store: str, status: Status) -> None:
        """Note the status that ``store`` reports of itself now."""
        self._heard[store] = (self._now(), status)
        self._final[store] = max(self.final(store), place_of(status.get("final_here")) or NOWHERE)

    def final(self, store: str) -> Place:
        """Return the highest final place that the store had on its disk, by its reports to this process."""
        return self._final.get(store, NOWHERE)

    def of(self, store: str) -> tuple[Status, float] | None:
        """Return its last status and the age of the status in seconds; None: nothing was heard."""
        heard = self._heard.get(store)
        return None if heard is None else (heard[1], max(0.0, self._now() - heard[0]))

    def written(self, own: Status) -> dict[str, Any]:
        """Return the content of the file: statuses by store, with ``own`` for this node."""
        statuses = {store: status for store, (_, status) in list(self._heard.items())}
        statuses[str(own["store"])] = own
        return {store: {key: status.get(key) for key in KNOWN_KEYS} for store, status in statuses.items()}


def write_known(directory: str) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that writes the known members into the file of this directory when they changed. The function
    reports no disk error: other parts report the disk."""
    path = os.path.join(directory, KNOWN_FILE)
    last: list[Mapping[str, Any]] = []

    def write(members: Mapping[str, Any]) -> None:
        if last == [members]:
            return
        try:
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                json.dump({"members": members}, file, ensure_ascii=False)
            os.replace(f"{path}.new", path)
        except OSError:
            return
        last[:] = [members]

    return write


def read_known(directory: str) -> tuple[dict[str, dict[str, Any]], float] | None:
    """Return the known members by store, and the time when they were written, in seconds since 1970. None: no readable
    file."""
    try:
        fd = open_regular(os, os.path.join(directory, KNOWN_FILE), os.O_RDONLY)
        try:
            content = read_fully(os, fd, KNOWN_BYTES_MAX, 0)
            at = os.fstat(fd).st_mtime
        finally:
            os.close(fd)
        members = json.loads(content)["members"]
        known = {str(store): {key: status.get(key) for key in KNOWN_KEYS} for store, status in members.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return known, at


#: Fields of an entry that change: set, has_journal, is_master, epoch.
Changing = tuple[str | None, bool, bool, int]


class Links:
    """Links of this node. ``ours``: the links that this node dialed, by store; requests go out on them."""

    def __init__(self, state: NodeState, network: Network[Any], directory: Directory, twins: Twins) -> None:
        self.address = ""  # of this node, as advertised to the others
        self.ours: dict[str, Link] = {}
        self._state = state
        self._network = network
        self._directory = directory
        self._twins = twins
        self._heard: dict[str, str] = {}  # addresses that members reported, by store
        self._published: Changing | None = None

    def bind(self, listener: Listener) -> None:
        """Bind and listen. Raises OSError."""
        self.address = self._network.start(listener)

    def watch(self, on_change: Callable[[], None]) -> None:
        """Begin to watch the directory. ``on_change`` is called on any thread; then ``dial`` must be called."""
        self._directory.start(on_change)

    def end(self) -> None:
        self._directory.end()
        self._network.end()

    def up(self, link: Link) -> None:
        member = link.member
        if link.is_ours:
            self.ours[member.store] = link
        if self._heard.get(member.store) != member.address:
            self._heard[member.store] = member.address
            self.dial()

    def down(self, link: Link) -> None:
        if self.ours.get(link.member.store) is link:
            del self.ours[link.member.store]

    def names(self) -> dict[str, str]:
        """Return the present names of the nodes by store: this node, and those that it has a link to. Any thread."""
        linked = {store: link.member.node for store, link in list(self.ours.items())}
        return linked | {self._state.store: self._state.settings.node}

    def dial(self) -> None:
        """Dial every node that may be present."""
        own, voters = self._state.store, self._state.voters
        listed = {each.store: each.address for each in self.entries() if each.store != own}
        # A node that the directory has forgotten, or cannot name now, may still be present: the voters and the links
        # show it.
        kept = {*self.ours, *(() if voters is None else voters.ids)}
        self._heard = {store: address for store, address in self._heard.items() if store in kept}
        taken = set(listed.values())
        heard = {store: address for store, address in self._heard.items() if store in listed or address not in taken}
        self._network.dial({**listed, **heard} if self.problem else {**heard, **listed})

    def tell(self, message: Message) -> None:
        """Send the message to every linked member."""
        for link in self.ours.values():
            link.send(message)

    # ---- identity of this node, and admission of members; the network's thread

    def hello(self) -> Hello:
        """Return the HELLO of this node; see ``network.Listener``."""
        promise, settings = self._state.promise, self._state.settings
        return Hello(
            settings.broker,
            self._state.set,
            settings.node,
            promise.store,
            promise.life,
            self.address,
            nonce="",
        )

    def knows(self, store: str) -> bool:
        """Return whether a node with that store is, or was, a member as far as this node knows."""
        voters = self._state.voters
        is_voter = voters is not None and store in voters.ids
        return is_voter or any(each.store == store for each in self.entries())

    def admits(self, hello: Hello, is_proved: bool) -> str | None:
        """Return the reason to refuse this member; None: it is admitted. See ``network.Listener``."""
        header = self._state.header
        if header is not None and hello.set is not None and hello.set != header.id:
            return f"of the set {hello.set}; this node is of {header.id}"
        seen = self._state.promise.lives.get(hello.store, 0)
        is_old = is_older(hello.life, seen)
        # An old backup that is started beside the set ends no links of others. A clone or its original may have the
        # later life.
        # prove: an-unknown-old-life-is-no-twin "not self._twins.knows(hello)" -> "False"
        is_backup = start_of(hello.life) < start_of(seen) and not self._twins.knows(hello)
        if not is_backup:
            if is_proved:
                self._twins.heard(hello)
            refusal = self._twins.refusal(hello.store)
            if refusal is not None:  # prove: twins-are-refused "refusal is not None" -> "False"
                return refusal
        if is_old:
            return (
                f"a later life of store {hello.store} was seen: its directory was restored from a backup. Remove "
                "its promise file; then it follows as a learner"
            )
        return None

    # ---- the directory

    def entries(self) -> tuple[Entry, ...]:
        """Return the members that the directory lists."""
        return self._directory.entries()

    @property
    def problem(self) -> str | None:
        """Reason for which the directory cannot be reached now; None: it can."""
        return self._directory.problem

    def _changing(self) -> Changing:
        state = self._state
        term, leads = state.term, state.leads
        return state.set, state.position > BEFORE_ALL, leads, term.epoch if term is not None and leads else 0

    def own_entry(self) -> Entry:
        """Return the entry of this node."""
        state, settings = self._state, self._state.settings
        set_id, has_journal, leads, epoch = self._changing()
        return Entry(
            state.store,
            settings.node,
            self.address,
            settings.weight,
            set_id,
            has_journal,
            settings.version,
            leads,
            epoch,
            settings.admin,
            settings.connectors,
        )

    def publish(self) -> None:
        """Publish the entry of this node in the directory, if it has changed."""
        if (changing := self._changing()) != self._published:
            self._published = changing
            self._directory.publish(self.own_entry())


log = logging.getLogger(__name__)

#: Longer than a handshake takes, even by a slower clock.
TWIN_SECONDS: Final = HANDSHAKE_SECONDS_MAX + 1.0
#: A process that was not heard for this long has ended. A refused process connects again each second.
SILENT_SECONDS: Final = 30.0

Process = tuple[int, str]  # life and address


@dataclass(slots=True)
class _Heard:
    """History of one process, as it was heard. ``first`` and ``last``: when, by the clock, it completed a handshake.
    ``left_at``: when a link to it last ended. ``links``: those that are up now."""

    node: str
    first: float
    last: float
    left_at: float
    links: list[Link]

    def is_silent(self, now: float) -> bool:
        return not self.links and now - max(self.last, self.left_at) >= SILENT_SECONDS


class Twins:
    """Processes of each store, as one member heard them. The network's thread; ``problem`` any thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._heard: dict[str, dict[Process, _Heard]] = {}
        self._told: dict[str, tuple[str, float]] = {}  # by store: the report, and when the twins were last seen

    @property
    def problem(self) -> str:
        """Report of the stores that two nodes use; "": none."""
        now = self._now()
        return "; ".join(told for told, at in list(self._told.values()) if now - at < SILENT_SECONDS)

    def refusal(self, store: str) -> str | None:
        """Return why nodes of this store are refused: two of them are alive. None: at most one is."""
        told, at = self._told.get(store, ("", 0.0))
        return told if told and self._now() - at < SILENT_SECONDS else None

    def heard(self, hello: Hello) -> None:
        """Note that this node completed a handshake now, and knows the token."""
        now, store = self._now(), hello.store
        heard = self._alive(store, now)
        one = heard.setdefault((hello.life, hello.address), _Heard(hello.node, now, now, now, []))
        one.last = now
        others = [each for each in heard.values() if each is not one]
        # If both are known and one restarts, it is another process at the same address.
        elsewhere = any(address != hello.address for _, address in heard)
        # prove: a-known-twin-is-not-let-in-by-a-start "elsewhere" -> "False"
        told = self.refusal(store) if elsewhere else None
        if any(_both_live(one, other) for other in others):
            told = _told(store, heard)
        if told is not None:
            _hang_up([one, *others], "two nodes have this store id")  # prove: twins-lose-their-links
            if self.refusal(store) is None:
                log.error("%s", told)
            self._told[store] = told, now  # prove: twins-are-not-let-in
            return
        self._told.pop(store, None)
        if now > one.first + TWIN_SECONDS:
            # A silent process that is alive connects again after this; otherwise the process has ended.
            silent = [each for each in others if now > each.first + TWIN_SECONDS]
            _hang_up(silent, "another node has its store id")  # prove: a-linked-twin-comes-again

    def knows(self, hello: Hello) -> bool:
        """Return whether this process was heard, and has not been silent since."""
        return (hello.life, hello.address) in self._heard.get(hello.store, {})

    def link_up(self, link: Link) -> None:
        heard = self._heard.get(link.member.store, {}).get((link.member.life, link.member.address))
        if heard is not None:
            heard.links.append(link)

    def link_down(self, link: Link) -> None:
        for heard in self._heard.get(link.member.store, {}).values():
            if link in heard.links:
                heard.links.remove(link)
                heard.left_at = self._now()  # its handshake was as long ago as before

    def _alive(self, store: str, now: float) -> dict[Process, _Heard]:
        """Return the processes of one store. Removes silent processes of all stores first."""
        for each, heard in list(self._heard.items()):
            kept = {process: one for process, one in heard.items() if not one.is_silent(now)}
            if kept:
                self._heard[each] = kept
            else:
                del self._heard[each]
        return self._heard.setdefault(store, {})


def _told(store: str, heard: dict[Process, _Heard]) -> str:
    live = [
        f"{one.node} at {address}"
        for (_, address), one in sorted(heard.items(), key=lambda each: each[0])
        if any(_both_live(one, other) for other in heard.values() if other is not one)
    ]
    nodes = " and ".join(live)
    return f"store {store} is used by two nodes, {nodes}: none is let in. Stop one of them and empty its directory"


def _both_live(one: _Heard, other: _Heard) -> bool:
    """Return whether each was heard in a handshake that began after the other one was first heard."""
    # prove: twins-are-both-alive " and other.last > one.first + TWIN_SECONDS"
    return one.last > other.first + TWIN_SECONDS and other.last > one.first + TWIN_SECONDS


def _hang_up(processes: list[_Heard], reason: str) -> None:
    for each in processes:
        for link in list(each.links):
            link.close(reason)
