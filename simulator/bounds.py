"""Bounds that are checked while brokers run, not only at the end.

take-over   a standby that has caught up replays at its promotion only what was written since, however much is stored
journal     after a time without faults it takes at most 2 x the bytes needed in that time + 2 files + the bytes
            written in that time
lock        no broker is granted it while the proof of another one is valid, unless a fault harmed the lock;
            and no broker fences without a proof
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from tandemmq.journal.files import file_id
from tandemmq.journal.format import CONTROL_SIZE, END_RECORD_SIZE, decode_records
from tandemmq.simulator.faults import Site
from tandemmq.simulator.node import Node
from tandemmq.simulator.server import File
from tandemmq.store.state.state import State
from tandemmq.store.store import Store

#: A standby polls ten times a second, and a later batch confirms the last batch that it saw.
FOLLOWED_SECONDS: Final = 1.0
#: Additional records that a promotion may find: those of a promotion that failed, and those under way.
MORE_RECORDS: Final = 40
#: Time of a checkpoint, a cleaning, the checkpoint after a compaction, and their work.
CYCLE_SECONDS: Final = 15.0
SAMPLE_SECONDS: Final = 1.0
FACTOR: Final = 2
FILES_BEYOND: Final = 2
#: Bytes of an acknowledgement as a part of the message that it keeps, at most.
ACKNOWLEDGEMENT_SHARE: Final = 0.6


class Written:
    """Records and bytes that were written to journal files, and when."""

    def __init__(self) -> None:
        self._batches: deque[tuple[float, int, int]] = deque()

    def note(self, now: float, data: bytes) -> None:
        records = decode_records(data, CONTROL_SIZE, len(data) - END_RECORD_SIZE, 0)
        self._batches.append((now, 0 if records is None else len(records), len(data)))

    def since(self, when: float) -> tuple[int, int]:
        """Return the records and bytes written since then."""
        late = [(records, size) for at, records, size in self._batches if at >= when]
        return sum(records for records, _ in late), sum(size for _, size in late)


class Bounds:
    """Checks the bounds while brokers run. ``problem`` is called with a sentence for each broken bound."""

    def __init__(self, site: Site, file_bytes: int, believed_seconds: float, problem: Callable[[str], None]) -> None:
        self.written = Written()
        self._site = site
        self._file_bytes = file_bytes
        self._believed_seconds = believed_seconds
        self._problem = problem
        self._peace_since = 0.0
        self._masters: dict[str, int] = {}  # name -> epoch, of the last sample
        self._needed: deque[tuple[float, float]] = deque()  # when, bytes: in this time without faults
        # name -> time since which written records may be read by a promotion that began, and the number of further
        # records
        self._allowed: dict[str, tuple[float, int]] = {}

    def sample_often(self) -> None:
        """Sample from now on, at intervals."""
        self._sample()
        self._site.world.after(SAMPLE_SECONDS, self.sample_often)

    # ---- take-over and lock

    def notified(self, node: Node, kind: str, facts: dict[str, object]) -> None:
        """Check a step that a broker took."""
        if kind == "lock-taken":
            self._allow(node)
            self._look_for_another(node)
        elif kind == "replayed":
            began = self._allowed.pop(node.name, None)
            records = facts["records"]
            assert isinstance(records, int), "records are counted"
            if began is not None:
                self._site.tally.add("promotions", "by a standby that had caught up")
                since, known = began
                # Up to now: a broker that hung in its promotion reads what others wrote meanwhile.
                allowed = known + self.written.since(since)[0]
                if records > allowed:
                    self._problem(
                        f"{node.name} had caught up, and replays {records} records: at most {allowed} are due"
                    )

    def _allow(self, node: Node) -> None:
        self._allowed.pop(node.name, None)
        standby = node.mastership.standby if node.mastership is not None else None
        if standby is None:
            return
        lag = standby.lag
        # A broker that read lost data finds that its index belongs to another journal, and begins anew.
        if lag.has_caught_up and not node.host.sees_lost_data:
            since = self._site.world.now - lag.seconds - FOLLOWED_SECONDS - self._believed_seconds
            self._allowed[node.name] = since, lag.records + MORE_RECORDS

    def _look_for_another(self, node: Node) -> None:
        if self._site.is_lock_harmed or not node.has_proof():  # it hung, and reports it afterwards
            return
        for other in self._site.nodes:
            if other is not node and other.has_proof():
                self._problem(f"{node.name} was granted the lock while {other.name} still proves that it has it")

    def fences(self, node: Node) -> None:
        """Check a promotion that is about to make its fence."""
        if not node.has_proof():
            self._problem(f"{node.name} fences the others off and cannot prove that the lock is its own")

    # ---- the journal

    def _sample(self) -> None:
        site = self._site
        now = site.world.now
        masters = {node.name: node.mastership.epoch for node in site.nodes if node.is_master and node.mastership}
        if masters != self._masters or len(masters) != 1 or site.mending or site.disturbed_at >= self._peace_since:
            self._masters, self._peace_since = masters, now
            self._needed.clear()
            return
        master = next(node for node in site.nodes if node.is_master)
        store = master.mastership.store if master.mastership is not None else None
        if isinstance(store, Store):
            store.ask(_held).add_done_callback(self._compare)

    def _compare(self, answer: Future[dict[int, tuple[int, set[int]]]]) -> None:
        if answer.cancelled():
            return
        site = self._site
        held = answer.result()
        sizes = journal_sizes(site.server.find(site.directory))
        dead = {file: max(0, size - held[file][0]) for file, size in sizes.items() if file in held}
        live = sum(bytes_held for bytes_held, _ in held.values())
        acknowledgements = sum(
            min(dead.get(file, 0), ACKNOWLEDGEMENT_SHARE * sum(dead.get(pin, 0) for pin in pins))
            for file, (_, pins) in held.items()
        )
        now = site.world.now
        self._needed.append((now, live + acknowledgements))
        if now - self._peace_since < CYCLE_SECONDS:
            return
        needed = max(size for at, size in self._needed if at >= now - CYCLE_SECONDS)
        bound = FACTOR * needed + FILES_BEYOND * self._file_bytes + self.written.since(now - CYCLE_SECONDS)[1]
        taken = sum(sizes.values())
        site.tally.add("looks at a running journal", "within its bound" if taken <= bound else "beyond its bound")
        if taken > bound:
            self._problem(
                f"the journal takes {taken} bytes while it runs, {bound:.0f} are allowed: {needed:.0f} are needed"
            )


def _held(state: State) -> dict[int, tuple[int, set[int]]]:
    """Return for each file the bytes of its live records, and the files whose messages its acknowledgements keep."""
    return {
        file: (held.live_bytes, {pin for pin in held.pins if pin in state.files and pin != file})
        for file, held in state.files.items()
    }


def journal_sizes(directory: File) -> dict[int, int]:
    """Return the sizes of the journal files in a directory, by id."""
    entries = directory.entries or {}
    return {number: len(file.data) for name, file in entries.items() if (number := file_id(name)) is not None}
