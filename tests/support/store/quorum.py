"""A set of nodes in one process, as far as a store sees one: directories that are copied batch by batch, and a quorum.

There are no votes and no time here: ``lead`` says who leads next. It knows nothing of what stands in a file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from tandemmq.journal.errors import Deposed
from tandemmq.journal.files import file_id
from tandemmq.store.records.headers import SetHeader
from tandemmq.store.threads import OS_THREADS, Threads

STORES = tuple(f"{number:032x}" for number in range(1, 4))
WAIT_SECONDS = 0.005
# Numbers that are left out before the first file of an epoch: its number is that of the epoch, which candidates that
# came to nothing use up.
GAP = 3


class Quorum:
    """Three nodes. Followers take what is written at once, and answer unless ``is_cut``."""

    def __init__(self, root: Path, threads: Threads = OS_THREADS) -> None:
        self.threads = threads
        self.directories = [root / f"node-{number}" for number in range(3)]
        for directory in self.directories:
            directory.mkdir()
        self.guard = threading.Lock()
        self.epoch = 0  # that was promised last
        self.leader: Node | None = None
        self.final = (0, 0)
        self.lineage: list[tuple[int, int, int]] = []
        self.is_cut = False  # whether followers get what is written, and say nothing

    def node(self, number: int) -> Node:
        """A new life of one of the nodes."""
        return Node(self, self.directories[number])

    def lead(self, node: Node) -> None:
        """This node leads next, and the one that leads now is not heard any more."""
        with self.guard:
            numbers = [n for each in self.directories for name in os.listdir(each) if (n := file_id(name)) is not None]
            self.epoch = max(self.epoch, *numbers, 0) + GAP
            self.leader = node
            node.epoch = self.epoch


class Node:
    """The authority of one life of a node."""

    leaves_end_markers = False
    free_bytes = None

    def __init__(self, quorum: Quorum, directory: Path) -> None:
        self.directory = directory
        self.epoch = 0
        self._quorum = quorum
        self._synced = (0, 0)
        self._has_ended = False

    def first_file(self, last: int) -> int:
        self.check_promotion()
        return self.epoch

    def check_promotion(self) -> None:
        if self._quorum.leader is not self:
            raise Deposed(self.epoch, f"epoch {self._quorum.epoch} is another node's")

    def damaged(self, files: Sequence[int]) -> None:
        raise Deposed(self.epoch, f"{files} are damaged")

    def set_header(self) -> SetHeader:
        names = dict(zip(STORES, ("a", "b", "c"), strict=True))
        return SetHeader("ab" * 16, STORES, names, tuple(self._quorum.lineage))

    def begin(self, file: int, files: Callable[[], tuple[int, ...]]) -> None:
        """All others get what they lack, and lose what this node does not have."""
        self._has_ended = False
        for follower in self._followers():
            for path in follower.glob("db-*.log"):
                if file_id(path.name) not in files():
                    path.unlink()
            for number in files():
                if number != file:
                    content = (self.directory / f"db-{number}.log").read_bytes()
                    (follower / f"db-{number}.log").write_bytes(content)

    def _followers(self) -> list[Path]:
        return [directory for directory in self._quorum.directories if directory != self.directory]

    def wrote(self, file: int, offset: int, data: bytes | bytearray, end: int) -> None:
        assert not self._has_ended, "nothing is written when it has ended"
        if self._quorum.leader is not self:
            return
        for follower in self._followers():
            fd = os.open(follower / f"db-{file}.log", os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(fd, data, offset)
                if not offset:  # as long as a header says that it was prepared
                    os.ftruncate(fd, max(len(data), os.stat(self.directory / f"db-{file}.log").st_size))
            finally:
                os.close(fd)

    def synced(self, file: int, end: int) -> None:
        self._synced = (file, end)

    def settle(self, file: int, end: int, *, must_be_final: bool = False, alive: Callable[[], object]) -> None:
        quorum = self._quorum
        while quorum.is_cut or quorum.leader is not self:
            self.check_promotion()
            alive()
            quorum.threads.sleep(WAIT_SECONDS)
        with quorum.guard:
            if must_be_final:
                assert self._synced == (file, end), "what is final is on this disk, too"
            if self._synced == (file, end):
                quorum.final = (file, end)

    def sealed(self, file: int, end: int) -> None:
        pass

    @property
    def horizon(self) -> tuple[int, int] | None:
        return self._quorum.final

    def end(self) -> None:
        self._has_ended = True
