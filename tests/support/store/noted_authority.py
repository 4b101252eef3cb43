"""An authority that records its calls, in one list with the calls of the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from tandemmq.store.authority import Authority
from tandemmq.store.records.headers import SetHeader


class Told(NamedTuple):
    """A batch, as passed to ``wrote``."""

    file: int
    offset: int
    data: bytes
    end: int


class NotedAuthority:
    """Calls another authority. ``steps``: descriptions of calls, like those of a NotingDisk. ``on_settle``: called
    before the call of settle."""

    def __init__(self, other: Authority, steps: list[str]) -> None:
        self.steps = steps
        self.told: list[Told] = []
        self.ends: dict[int, int] = {}  # ends of sealed files
        self.settled: list[tuple[int, int, bool]] = []
        self.files: Callable[[], tuple[int, ...]] = tuple
        self.on_settle: Callable[[], object] = lambda: None
        self._other = other

    def first_file(self, last: int) -> int:
        self.steps.append("ask for the first file")
        return self._other.first_file(last)

    def check_promotion(self) -> None:
        self.steps.append("ask for the promotion")
        self._other.check_promotion()

    def set_header(self) -> SetHeader | None:
        return self._other.set_header()

    def begin(self, file: int, files: Callable[[], tuple[int, ...]]) -> None:
        self.steps.append(f"begin {file}")
        self.files = files
        self._other.begin(file, files)

    def wrote(self, file: int, offset: int, data: bytes | bytearray, end: int) -> None:
        self.steps.append(f"told {file}")
        self.told.append(Told(file, offset, bytes(data), end))
        if self._other.wrote is not None:
            self._other.wrote(file, offset, data, end)

    def synced(self, file: int, end: int) -> None:
        self.steps.append(f"synced {file}")
        self._other.synced(file, end)

    def settle(self, file: int, end: int, *, must_be_final: bool = False, alive: Callable[[], object]) -> None:
        self.steps.append(f"final {file}" if must_be_final else f"confirmed {file}")
        self.settled.append((file, end, must_be_final))
        self.on_settle()
        self._other.settle(file, end, must_be_final=must_be_final, alive=alive)

    def sealed(self, file: int, end: int) -> None:
        self.steps.append(f"sealed {file}")
        self.ends[file] = end
        self._other.sealed(file, end)

    def mend(self, file: int) -> Future[bool] | None:
        self.steps.append(f"mend {file}")
        return self._other.mend(file)

    def damaged(self, files: Sequence[int]) -> None:
        self.steps.append(f"damaged {files}")
        self._other.damaged(files)

    @property
    def written(self) -> tuple[int, int]:
        """Return the end of the journal by the last call."""
        return self.told[-1].file, self.told[-1].end

    @property
    def free_bytes(self) -> int | None:
        return self._other.free_bytes

    @property
    def leaves_end_markers(self) -> bool:
        return self._other.leaves_end_markers

    @property
    def horizon(self) -> tuple[int, int] | None:
        return self._other.horizon

    def end(self) -> None:
        self.steps.append("end")
        self._other.end()
