"""Checks while a set runs: nothing that is final, or is shown, is ever undone.

final       the part that a node calls final is the same on all nodes, forever, and every later master has it; when a
            master calls it final, it is on the disks of a quorum, and so is the first batch of its epoch
shown       an index of a standby is never ahead of the place that its node knows as final
cut         nothing is after the common point when a node begins to follow
epoch       in one epoch one node is elected, and one sends receipts; no node follows one below its promise
identity    a node keeps its store id, whatever its name, until its promise file is taken away
lease       no two nodes may lead at the same time
election    a node is elected within 2 T of the moment from which a quorum can talk (``_who_can_talk``)
disks       no node is taken for restored: no fault here gives a journal back
problems    no replica reports FORK or BUG
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tandemmq.journal.files import file_id
from tandemmq.journal.format import END_RECORD_SIZE
from tandemmq.simulator.bounds import Bounds
from tandemmq.simulator.node import Node
from tandemmq.store.standby import Standby

if TYPE_CHECKING:
    from tandemmq.broker.replication.term import Term
    from tandemmq.simulator.set_node import SetNode

CHECK_SECONDS: Final = 0.1
#: Limit of an election, in T.
ELECTION_SESSIONS: Final = 2
#: T by the slowest clock.
SLOWEST_CLOCK: Final = 1.05
#: Problems that a replica reports when a node broke the rules.
NEVER: Final = ("FORK", "BUG")

Place = tuple[int, int]


class LockBounds(Bounds):
    """Bounds of the lock, without the other bounds of a shared volume."""

    def sample_often(self) -> None:
        pass

    def _allow(self, node: Node) -> None:
        pass


class SetChecks:
    """Checks of a set. ``problem`` is called with a sentence for each violation."""

    def __init__(self, nodes: Sequence[SetNode], directory: str, problem: Callable[[str], None]) -> None:
        self.slowest_election_seconds = 0.0
        self._election_seconds_max = (
            ELECTION_SESSIONS * nodes[0].options.timeout_seconds * SLOWEST_CLOCK + CHECK_SECONDS
        )
        self._able: tuple[str, ...] = ()
        self._able_since = 0.0
        self._nodes = nodes
        self._directory = directory
        self._problem = problem
        self._world = nodes[0].world
        self._final: Place = (0, 0)
        self._bytes: dict[int, bytes] = {}  # by file: the longest part of it that any node called final
        self._known: dict[tuple[str, int], Place] = {}  # the place that a node, with this disk, called final
        self._disks: dict[str, int] = {}  # disk number of each node at the last check
        self._stores: dict[tuple[str, int], str] = {}  # by name and number of the promise file
        self._terms: dict[tuple[str, int], Term] = {}
        self._elected: dict[int, str] = {}
        self._confirms: dict[int, str] = {}
        self._checked: dict[tuple[str, int, int], int] = {}  # name, disk, file -> the compared length
        self.check_often()

    # ---- reported

    def happened(self, node: SetNode, kind: str, facts: dict[str, object]) -> None:
        if kind == "elected":
            epoch = facts["epoch"]
            assert isinstance(epoch, int), "an epoch is a number"
            other = self._elected.setdefault(epoch, node.name)
            if other != node.name:
                self._problem(f"two masters: {other} and {node.name} are elected for epoch {epoch}")
            self._check_leases()
        elif kind == "replica-problem":
            reason = str(facts["reason"])
            if reason.startswith(NEVER):
                self._problem(f"{node.name}: {reason}")
        elif kind == "restored":
            self._problem(f"{node.name} has less than its disk acknowledged: {facts}")
        elif kind == "following":
            self._check_cut(node)
        elif kind == "store-open":
            self._check_final_of(node, self._final)
        elif kind == "gone":
            self._check_node(node)

    def confirmed(self, name: str, epoch: int) -> None:
        """Note a receipt that a broker sent."""
        other = self._confirms.setdefault(epoch, name)
        if other != name:
            self._problem(f"two masters: {other} and {name} confirm in epoch {epoch}")

    # ---- observed

    def check_often(self) -> None:
        self._world.after(CHECK_SECONDS, self.check_often)
        for node in self._nodes:
            self._check_node(node)
        self._disks = {node.name: node.disks for node in self._nodes}
        self._check_leases()
        self._check_election()

    def _check_node(self, node: SetNode) -> None:
        replica = node.replica
        if replica is None:
            return
        term = replica.state.term
        if self._stores.setdefault((node.name, node.identities), replica.state.store) != replica.state.store:
            self._problem(f"{node.name}, now called {node.called}, is another store with the same promise file")
        key = node.name, node.disks
        if term is not None:
            self._terms[key] = term
        led = self._terms.get(key)  # the final position of its last term counts too: it may be known only there
        as_master = (0, 0) if led is None else led.marks.final
        followed, promise = node.followed_epoch, node.promise
        if followed is not None and promise is not None and followed < promise.epoch:
            self._problem(f"{node.name} follows epoch {followed}, and has promised {promise.epoch}")
        known = max(self._known.get(key, (0, 0)), replica.final, as_master)
        if known > self._known.get(key, (0, 0)):
            self._known[key] = known
            leads = term is not None and not term.is_over
            if term is not None and leads and as_master == known:
                self._check_quorum_of(node, term, known)
            # A former leader may have lost what it had not synced, if others had it on their disks.
            if leads or known == replica.final:
                self._check_final_of(node, known)
        standby = None if node.mastership is None else node.mastership.standby
        if term is None and isinstance(standby, Standby):
            position = standby.state_position
            if position is not None and position > known:
                self._problem(f"{node.name} shows data that is not final: its index is at {position}, final is {known}")

    def _check_final_of(self, node: SetNode, final: Place) -> None:
        """Check that the node's journal has all final data up to ``final``, and remember the data that is new."""
        files = self._journal(node)
        for file in sorted(files):
            if file > final[0]:
                break
            if f"db-{file}.log" in node.unrepaired:
                continue  # compared when it is repaired, or gone
            data = files[file]
            known = self._bytes.get(file, b"")
            key = node.name, node.disks, file
            if file == final[0] and len(data) < final[1]:
                self._problem(f"{node.name} calls db-{file}.log final up to {final[1]}, and has {len(data)} bytes")
                return
            reached = min(final[1], len(known)) if file == final[0] else len(known)
            if self._checked.get(key, -1) < reached:
                common = min(reached, len(data))
                if data[:common] != known[:common]:
                    self._problem(
                        f"undone: db-{file}.log of {node.name} differs from the final data, up to {len(known)}"
                    )
                    return
                self._checked[key] = reached
        self._final = max(self._final, final)
        if final[1] > len(self._bytes.get(final[0], b"")) and final[0] in files:
            self._bytes[final[0]] = files[final[0]][: final[1]]

    def _check_cut(self, node: SetNode) -> None:
        assert node.replica is not None, "the replica reports its cut"
        common_file, common_end = node.replica.state.position[1:]
        for file, data in self._journal(node).items():
            begin = common_end + END_RECORD_SIZE if file == common_file else 0
            if file >= common_file and data[begin:].strip(b"\0"):
                self._problem(f"{node.name} follows from db-{common_file}.log {common_end}, and db-{file}.log goes on")

    def _check_quorum_of(self, node: SetNode, term: Term, final: Place) -> None:
        """Check that a quorum of disks has the data up to ``final``, and the first batch of that epoch: both are safe
        even if all memories are lost."""
        first = term.marks.first
        assert first is not None, "nothing is final before the first batch of an epoch"
        for file, end in dict.fromkeys((first, final)):
            data = self._journal(node).get(file, b"")[:end]
            having = [each.name for each in self._nodes if self._has_on_disk(each, file, data)]
            if data and len(having) < term.marks.voters.quorum:
                self._problem(
                    f"{node.name} calls {final} final in epoch {term.epoch}, and db-{file}.log up to {end} is on no "
                    f"quorum of disks: {', '.join(having)}"
                )

    def _has_on_disk(self, node: SetNode, file: int, data: bytes) -> bool:
        """Return whether the node's disk has, or had, the data. True also if the disk was just replaced, or if the node
        removed the file and knows a later position as final. (A master that slept learns late what the others had.)"""
        if self._disks.get(node.name, node.disks) != node.disks:
            return True
        entries = node.host.server.find(self._directory).entries or {}
        found = entries.get(f"db-{file}.log")
        if found is None:
            return self._known.get((node.name, node.disks), (0, 0)) >= (file, len(data))
        return found.stable(len(data)) == data

    def _journal(self, node: SetNode) -> dict[int, bytes]:
        """Return the journal as the node sees it."""
        entries = node.host.server.find(self._directory).entries or {}
        found = {}
        for name, file in entries.items():
            number = file_id(name)
            if number is not None:
                cached = node.host.cached(file).data
                found[number] = bytes(file.data if cached is None else cached)
        return found

    def _final_now(self, node: SetNode) -> Place:
        replica = node.replica
        term = None if replica is None else replica.state.term
        return max((0, 0) if replica is None else replica.final, (0, 0) if term is None else term.marks.final)

    def _check_leases(self) -> None:
        leading = []
        for node in self._nodes:
            term = None if node.replica is None else node.replica.state.term
            if term is not None and term.has_lease:
                leading.append(f"{node.name} in epoch {term.epoch}")
        if len(leading) > 1:
            self._problem(f"two masters: {' and '.join(leading)} have a lease at the same time")

    # ---- duration

    def _check_election(self) -> None:
        able = self._who_can_talk()
        if able != self._able:
            self._able, self._able_since = able, self._world.now
        took = self._world.now - self._able_since
        if able:
            self.slowest_election_seconds = max(self.slowest_election_seconds, took)
            if took > self._election_seconds_max:
                self._problem(f"no node is elected {took:.1f} s after {', '.join(able)} can talk to each other")
                self._able_since = self._world.now

    def _who_can_talk(self) -> tuple[str, ...]:
        """Return the names of the nodes that can elect; empty while a node is elected, or they are no quorum.

        Their processes run and are not stopped, their disks answer, and each has a connection to each other one that is
        up, over ways that are open and not slow. Each has a vote, would take the mastership and may be a candidate: its
        journal is whole, and it reports no problem. By each one's list of voters they are a quorum. No other running
        node has a way to one of them: it could withhold a vote that is needed. And no message of a node that does not
        run may still be under way to them, such as ALIVE of a master.
        """
        running = [node for node in self._nodes if node.process is not None and not node.process.is_paused]
        if any(node.replica is not None and node.replica.state.term is not None for node in running):
            return ()
        able = [node for node in running if node.may_be_candidate and not node.host.link.is_cut]
        for node in running:
            for other in able:
                if node is not other and not (node in able and node.can_talk_to(other)):
                    return ()
        if any(node.is_delayed_to(other) for node in self._nodes if node not in running for other in able):
            return ()
        votes = {node.store for node in able}
        for node in able:
            voters = None if node.replica is None else node.replica.state.voters
            if voters is None or not voters.have_quorum([store for store in votes if store is not None]):
                return ()
        return tuple(node.name for node in able)

    # ---- at the end

    def check_copies(self) -> None:
        """Check that all nodes have the same content, up to the final place."""
        self._checked.clear()
        for node in self._nodes:
            self._check_final_of(node, self._final)
        whole = [self._journal(node) for node in self._nodes]
        for file, known in self._bytes.items():
            for node, journal in zip(self._nodes, whole, strict=True):
                data = journal.get(file)
                if data is not None and data[: len(known)] != known[: len(data)]:
                    self._problem(f"{node.name} has a db-{file}.log that differs from the final data")
        for node in self._nodes:
            if self._final_now(node) < self._final:
                self._problem(f"{node.name} lacks final data at the end")
