"""A set in one process: real replicas, threads and files; network and directory in memory; a master that only writes
batches."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tandemmq.broker.replication.member import SetAuthority
from tandemmq.broker.replication.promise import PromiseFile
from tandemmq.broker.replication.replica import Replica
from tandemmq.broker.replication.state import ReplicaSettings
from tandemmq.config.replication import sync_of
from tandemmq.journal.errors import Deposed
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.scan import scan, scanned_end
from tandemmq.journal.writer import JournalWriter
from tandemmq.store.records.commands import Trace, decode, encode_trace
from tandemmq.store.records.headers import Header, encode_header
from tandemmq.store.threads import OS_THREADS, Threads
from tandemmq.store.writer.journal_end import NoProof
from tests.support.replication.shared_directory import SharedDirectory
from tests.support.replication.switch import Switch

FILE_LENGTH = 1 << 16
T = 0.5
WAIT_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02

Answer = TypeVar("Answer")


class SmallNode:
    """One member. Call ``serve`` when it is elected, then ``write``. A power loss needs a LosingDisk as ``disk``."""

    def __init__(
        self, whole: SmallSet, name: str, *, weight: int = 1, sync: str = "quorum_disk", disk: type | None = None
    ) -> None:
        self.name = name
        self.directory = whole.path / name
        self.directory.mkdir(exist_ok=True)
        self._whole = whole
        self.weight = weight
        self.sync = sync_of(sync)
        self.disk: Any = whole.disk if disk is None else disk()
        self.promise_disk: Any = whole.disk  # disk of its next start
        self.boot = 1  # boot of its host
        self.free_bytes = 1 << 40
        self._writing = threading.RLock()  # so that a killed process does not write
        self.start()

    def start(self) -> None:
        whole = self._whole
        self.files = JournalFiles(str(self.directory), self.disk, whole.threads.lock)
        self.members = whole.shared.member()
        self.replica = Replica(
            self.files,
            partial(PromiseFile, str(self.directory), self.name, self.promise_disk),
            ReplicaSettings(
                "set", self.name, whole.replicas, self.sync, self.weight, T, 0, boot_id=f"boot {self.boot}"
            ),
            network=whole.switch.network(self.name, whole.threads),
            members=self.members,
            threads=whole.threads,
            chance=random.Random(whole.chance.random()),
            free_bytes=lambda: self.free_bytes,
        )
        self.authority = SetAuthority(self.replica)
        self.writer: JournalWriter | None = None
        self.is_running = True
        self.replica.start()

    @property
    def epoch(self) -> int:
        term = self.replica.state.term
        return 0 if term is None else term.epoch

    def serve(self) -> None:
        """Begin the epoch for which it was elected; on return the first batch is final."""
        with self._writing:
            self._serve()

    def _serve(self) -> None:
        self.authority = authority = SetAuthority(self.replica)
        files = self.files
        listed = files.list()
        first = authority.first_file(listed[-1] if listed else 0)
        files.prepare(self.name, FILE_LENGTH)
        own = files.publish(self.name, first)
        ends = {file: scanned_end(files, file) for file in listed}
        authority.begin(first, lambda: tuple(files.list()))
        self.writer = JournalWriter(files, self.name, own, file_length_max=FILE_LENGTH)
        header = Header(
            first, self.name, "promotion", ends, tuple(files.list()), length=FILE_LENGTH, set=authority.set_header()
        )
        self._put([encode_header(header)], must_be_final=True)

    def write(self, *texts: str) -> None:
        """Write one batch; on return it is confirmed."""
        with self._writing:
            writer = self.writer
            assert writer is not None
            payloads = [encode_trace(text) for text in texts]
            if writer.is_full(sum(map(len, payloads))):
                self._rotate()
            self._put(payloads)

    def begin_file(self) -> None:
        """Begin a file with pending changes of the set; on return it is final."""
        with self._writing:
            self._rotate()
            assert self.writer is not None
            self.authority.settle(*self.writer.position, must_be_final=True, alive=lambda: None)

    def _rotate(self) -> None:
        writer, authority = self.writer, self.authority
        assert writer is not None
        file, end = writer.position
        authority.sealed(file, end)
        header = Header(
            self.epoch,
            self.name,
            "rotation",
            {file: end},
            (*self.files.list(), file + 1),
            length=FILE_LENGTH,
            set=authority.set_header(),
        )
        writer.rotate(encode_header(header))
        data = (self.directory / f"db-{file + 1}.log").read_bytes()[: writer.position[1] + 5]
        authority.wrote(file + 1, 0, data, writer.position[1])
        writer.sync()
        authority.synced(*writer.position)

    def _put(self, payloads: list[bytes], *, must_be_final: bool = False) -> None:
        writer, authority = self.writer, self.authority
        assert writer is not None
        file, start = writer.position
        writer.append(payloads)
        end = writer.position[1]
        with open(self.files.path(file), "rb") as reading:
            reading.seek(start)
            data = reading.read(end + 5 - start)
        authority.wrote(file, start, data, end)
        if must_be_final or self.sync.local_disk:
            writer.sync()
            authority.synced(file, end)
        writer.check_fence()
        authority.settle(file, end, must_be_final=must_be_final, alive=lambda: None)

    def leave(self) -> None:
        """Leave like a demotion."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None
        self.authority.end()
        self.replica.release()

    def stop(self) -> None:
        if self.is_running:
            self.is_running = False
            self.leave()
            self.replica.end()

    def kill(self) -> None:
        """End like SIGKILL: no message is sent, written data stays."""
        if self.is_running:
            self.is_running = False
            self.members.crash()
            self.replica.end(resigns=False)
            with self._writing:
                if self.writer is not None:
                    self.writer.close()
                    self.writer = None
                self.authority.end()

    def lose_power(self, is_lost: Callable[[int], bool]) -> None:
        """Lose the power. ``is_lost``: decides by number which unsynced writes to each file are lost."""
        self.disk.cut_power()
        self.kill()
        self.disk.power_up(self.directory, is_lost)
        self.boot += 1

    def content(self) -> list[str]:
        """Return the texts of all batches, in order."""
        found = []
        for file in self.files.list():
            for batch in scan(self.files, file, is_live=True):
                for _, payload in batch.records:
                    command = decode(payload)
                    if isinstance(command, Trace) and not (command.message or "").startswith("TANDEMMQ"):
                        found.append(command.message or "")
        return found


class SmallSet:
    """The set. ``left_out``: nodes that are not started yet; ``add`` starts one."""

    def __init__(
        self,
        path: Path,
        replicas: int = 3,
        *,
        seed: int = 0,
        left_out: tuple[str, ...] = (),
        threads: Threads = OS_THREADS,
        system_disk: Any = os,
        **options: object,
    ) -> None:
        self.path = path
        self.threads = threads
        self.disk = system_disk
        self.replicas = replicas
        self.chance = random.Random(seed)
        self.switch = Switch()
        self.shared = SharedDirectory()
        self._options = options
        names = [f"n{number}" for number in range(replicas)]
        self.nodes = [self._make(name) for name in names if name not in left_out]

    def _make(self, name: str, **options: object) -> SmallNode:
        return SmallNode(self, name, **(self._options | options))  # type: ignore[arg-type]

    def add(self, name: str, **options: object) -> SmallNode:
        self.nodes.append(self._make(name, **options))
        return self.nodes[-1]

    def until(self, condition: Callable[[], Answer], what: str) -> Answer:
        """Return the first true result of ``condition``. Fails with the text ``what`` if there is none in time."""
        deadline = self.threads.monotonic() + WAIT_SECONDS_MAX
        while not (answer := condition()):
            assert self.threads.monotonic() < deadline, f"it does not happen: {what}"
            self.threads.sleep(POLL_SECONDS)
        return answer

    def until_same(self, *nodes: SmallNode) -> None:
        """Wait until these nodes, or all, have the same data."""
        first, *rest = nodes or self.nodes
        self.until(lambda: all(node.content() == first.content() for node in rest), "all have the same")

    def others(self, *nodes: SmallNode) -> list[SmallNode]:
        return [each for each in self.nodes if each not in nodes]

    def elect(self, *among: SmallNode) -> SmallNode:
        """Return the node that is elected among these, serving. If it founds the set, all have its first header on
        return."""
        is_founding = not any(node.replica.state.is_voter and node.replica.state.header for node in self.nodes)
        candidates = among or tuple(self.nodes)
        found = self.until(lambda: self.try_elect(*candidates), "a node is elected and serves")
        if is_founding:
            self.until(lambda: all(node.replica.state.header for node in self.nodes), "all have the header")
        assert found is not None
        return found

    def begun(self, text: str = "a") -> SmallNode:
        """Return the node that is elected first, after all have its batch."""
        master = self.elect()
        master.write(text)
        self.until_same()
        return master

    def try_elect(self, *among: SmallNode) -> SmallNode | None:
        """Return the elected node of these, serving; None if there is none yet. All of them are candidates from now
        on."""
        for node in among:
            if node.replica.try_acquire():
                try:
                    node.serve()
                    return node
                except (Deposed, NoProof):
                    node.leave()
        return None

    def close(self) -> None:
        for node in self.nodes:
            node.stop()


NewSet = Callable[..., SmallSet]
