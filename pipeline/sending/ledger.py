"""Ledger: the progress of a replay in files that stay valid after kill -9. A resumed run sends the messages that are
not recorded here.

    STATE/run.json          the replay: written once, before the first message is sent
    STATE/round.json        slices of each task, and their target; written again by each run
    STATE/plan/slice=K/     the messages of slice K, as Parquet, in the order of their numbers
    STATE/progress/K.json   number up to which the broker confirmed the messages of slice K, and refused ones
    STATE/lock              held by the run; progress/K.lock by the task that sends slice K

Each file is written under another name, synced and renamed. All senders must see the same directory.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tandemmq.client.tls import NO_FILES, TlsFiles
from tandemmq.pipeline.json_files import read_json, write_json

STATE: Final = "replay"  # below the directory --out of the job
VERSION: Final = 1
# Time to wait for a slice's lock: a sender may run a little longer than its driver, if the driver died.
LOCK_SECONDS_MAX: Final = 30.0
_POLL_SECONDS: Final = 0.1


class LedgerError(ValueError):
    """A file of the ledger has invalid content."""


class InUse(OSError):
    """Another process is sending the same messages."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Messages of one destination with the numbers from ``first`` to ``last``. One task sends them in order."""

    number: int
    destination_type: str
    destination: str
    first: int
    last: int
    bytes: int
    first_id: str
    last_id: str

    @property
    def messages(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Run:
    """A replay. The id of a SEND is made from ``run_id`` and the message's slice and number, so it is the same in each
    attempt.

    ``asked``: options that determine the messages. ``addresses``: brokers of the first attempt.
    """

    run_id: str
    asked: dict[str, Any]
    addresses: tuple[str, ...]
    slices: tuple[Slice, ...]

    def send_id(self, slice_number: int, number: int) -> str:
        """Return the value of the header tandemmq-send-id (docs/duplicates.md)."""
        return f"replay-{self.run_id}-{slice_number}:{number}"


@dataclass(frozen=True, slots=True)
class Round:
    """Work of the tasks in one run. ``tasks[n]``: the slices of task n. The tasks read ``passcode_file`` and the files
    of ``tls``."""

    url: str
    login: str | None
    passcode_file: str | None
    per_second_each: float | None
    to: str | None
    is_unending: bool
    tasks: tuple[tuple[int, ...], ...]
    tls: TlsFiles = NO_FILES


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a slice: all numbers up to ``confirmed`` have a receipt, except those in ``refused``, which has the
    reasons."""

    confirmed: int = 0
    refused: dict[int, str] = field(default_factory=dict)
    attempts: int = 0
    noted_ms: int = 0

    def is_done(self, slice: Slice) -> bool:
        return self.confirmed >= slice.last and not self.refused

    def sent(self, slice: Slice) -> int:
        """Return how many messages of the slice the broker has confirmed."""
        return max(self.confirmed - slice.first + 1, 0) - len(self.refused)


class Ledger:
    """The files in the directory STATE."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.plan = self.directory / "plan"
        self._progress = self.directory / "progress"

    def run(self) -> Run | None:
        """Return the run; None: no message was sent yet, and an existing plan may be incomplete."""
        found = _read(self.directory / "run.json")
        if found is None:
            return None
        slices = tuple(Slice(**each) for each in found["slices"])
        return Run(found["run_id"], found["asked"], tuple(found["addresses"]), slices)

    def begin(self, run: Run) -> None:
        """Store ``run``, which declares the plan complete. Durable on return."""
        _write(self.directory / "run.json", asdict(run))

    def round(self) -> Round:
        found = _read(self.directory / "round.json")
        if found is None:
            raise LedgerError(f"{self.directory} has no round.json: the tasks do not see the directory of the driver")
        tls = TlsFiles(**found.get("tls", {}))
        return Round(**{**found, "tasks": tuple(map(tuple, found["tasks"])), "tls": tls})

    def begin_round(self, round: Round) -> None:
        self._progress.mkdir(exist_ok=True)
        _write(self.directory / "round.json", asdict(round))

    def progress(self, slice_number: int) -> Progress:
        found = _read(self._progress / f"{slice_number}.json")
        if found is None:
            return Progress()
        return Progress(**{**found, "refused": {int(number): why for number, why in found["refused"].items()}})

    def note(self, slice_number: int, progress: Progress) -> None:
        """Store the progress. Durable on return."""
        _write(self._progress / f"{slice_number}.json", asdict(progress))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock this directory against other runs, within this context. Raises InUse."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with _opened(self.directory / "lock") as descriptor:
            if not _is_locked(descriptor):
                raise InUse(f"another replay is running with {self.directory.parent}")
            yield

    @asynccontextmanager
    async def alone_with(self, slice_number: int) -> AsyncIterator[None]:
        """Lock this slice against other tasks, within this context. Raises InUse if another task holds the lock for
        LOCK_SECONDS_MAX."""
        with _opened(self._progress / f"{slice_number}.lock") as descriptor:
            tries = int(LOCK_SECONDS_MAX / _POLL_SECONDS)
            while not _is_locked(descriptor):
                if not (tries := tries - 1):
                    raise InUse(f"another task sends slice {slice_number} of {self.directory}")
                await asyncio.sleep(_POLL_SECONDS)
            yield


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a lock file. The kernel releases the lock when the descriptor is closed, also when the process is killed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = read_json(path)
    except ValueError as error:
        raise LedgerError(f"{path} cannot be read: {error}") from None
    if found is None:
        return None
    if not isinstance(found, dict) or found.pop("version", None) != VERSION:
        raise LedgerError(f"{path} is not of version {VERSION}")
    return found


def _write(path: Path, content: dict[str, Any]) -> None:
    write_json(path, {"version": VERSION, **content})
