"""A message lake: Parquet in directories by date and destination, and a ledger of the journal files in it.

    LAKE/messages/date=2026-11-22/destination=orders/<commit>-0.parquet
    LAKE/_tandemmq/lake.json            layout of the lake, which never changes
                   lock                 held by the process that adds to it
                   staging/<commit>/    files being made
                   pending/<commit>.json    decided: moves that are left to be made
                   commits/<commit>.json    done: journal files, and the Parquet files made from them

A commit adds a group of journal files:

1. The Parquet files are made in staging, and synced.
2. The pending entry is written. This is the decision: before it, no file is in its place; after it, each file is moved
   to its place once, if necessary by the next process that opens the lake.
3. The files are moved, and the entry in commits is written.

So no message is ever in the lake twice, even for a reader that does not use the ledger. A reader that uses it sees all
or nothing of a commit.

Only for mounted file systems, because it requires rename(2). Imports neither Spark nor Arrow.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import portalocker
from portalocker.exceptions import AlreadyLocked, LockException

from tandemmq.pipeline.columns import ACKS, MESSAGES, RECORDS
from tandemmq.pipeline.json_files import read_json, write_json

FORMAT: Final = 1
LEDGER: Final = "_tandemmq"
TABLES: Final = (MESSAGES, ACKS, RECORDS)
BY_DESTINATION: Final = "destination"
BY_DATE: Final = "date"
_COMMIT_DIGITS: Final = 20


class LakeError(ValueError):
    """The lake cannot be used: another process is adding to it, it has another layout, or it is damaged."""


class Identity(NamedTuple):
    """Identity of a journal file, independent of its path: its number, and the number and digest of the bytes that
    count."""

    file: int
    counted: int
    counted_sha256: str


@dataclass(frozen=True, slots=True)
class Archived:
    """A journal file in the lake. A file with the same ``bytes`` and ``modified`` (nanoseconds; None: not known) need
    not be read again.

    ``damaged``: number of its bytes that could not be read.
    """

    store: str
    file: int
    bytes: int
    counted: int
    counted_sha256: str
    damaged: int = 0
    modified: int | None = None

    @property
    def identity(self) -> Identity:
        return Identity(self.file, self.counted, self.counted_sha256)


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of a lake. ``destinations``: only these; empty: all. ``raw``: with frames."""

    by: str = BY_DESTINATION
    destinations: tuple[str, ...] = ()
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: a group of journal files, and for each table the paths of its Parquet files below the lake and the
    number of rows."""

    name: str
    files: tuple[Archived, ...]
    parquet: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)


def commit_name(files: Iterable[Archived]) -> str:
    """Return the name of a commit, which depends only on the files."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: (file.store, file.file)):
        digest.update(f"{file.store}\0{file.file}\0{file.counted}\0{file.counted_sha256}\n".encode())
    return digest.hexdigest()[:_COMMIT_DIGITS]


class Lake(AbstractContextManager["Lake"]):
    """A lake that is open for adding, in only one process at a time. Close it. Raises LakeError, OSError.

    Opening creates the lake if it does not exist, and completes an interrupted commit of an earlier process.
    """

    def __init__(self, path: str, layout: Layout) -> None:
        self.path = Path(path).resolve()
        self.layout = layout
        self._ledger = self.path / LEDGER
        for name in ("staging", "pending", "commits"):
            (self._ledger / name).mkdir(parents=True, exist_ok=True)
        self._lock = portalocker.Lock(self._ledger / "lock", timeout=0, fail_when_locked=True)
        try:
            self._lock.acquire()
        except (AlreadyLocked, LockException) as error:
            raise LakeError(f"another process is adding to {self.path}") from error
        try:
            self._lay_out(layout)
            self._recover()
            self.commits: dict[str, Commit] = dict(_commits(self._ledger / "commits"))
        except BaseException:
            self._lock.release()
            raise
        self._files: dict[Identity, Archived] = {}
        self._by_place: dict[tuple[str, int], Archived] = {}
        for commit in self.commits.values():
            self._note(commit)

    def close(self) -> None:
        self._lock.release()

    def __exit__(self, *_: object) -> None:
        self.close()

    def has(self, identity: Identity) -> bool:
        """Return whether the lake has this file."""
        return identity in self._files

    def at(self, store: str, file: int) -> Archived | None:
        """Return the file with this store and number that was added last."""
        return self._by_place.get((store, file))

    def files_of(self, store: str) -> set[int]:
        return {file for place, file in self._by_place if place == store}

    def staging(self, files: Iterable[Archived]) -> Path:
        """Return an empty staging directory for the Parquet of these files, which must be in a directory for each table
        and partition."""
        place = self._ledger / "staging" / commit_name(files)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return place

    def commit(self, files: tuple[Archived, ...], rows: Mapping[str, int]) -> Commit:
        """Move the staged Parquet of these files to its place. Durable on return. If this process dies after the
        decision (see above), the next one completes the commit."""
        name = commit_name(files)
        staged = self._ledger / "staging" / name
        moves = list(_moves(staged, name))
        for source, _ in moves:
            _sync(staged / source)
        for directory in sorted({(staged / source).parent for source, _ in moves}):
            _sync(directory)
        parquet = {table: tuple(target for _, target in moves if target.startswith(f"{table}/")) for table in TABLES}
        made = Commit(name, files, parquet, dict(rows))
        body = asdict(made)
        del body["name"]  # the name of the file states it
        self.write(f"pending/{name}.json", {"format": FORMAT, **body, "moves": moves})
        self._finish(name, moves)
        self.commits[name] = made
        self._note(made)
        return made

    def read(self, name: str) -> Any:
        """Return the JSON in a file of the ledger; None: the file does not exist."""
        path = self._ledger / name
        try:
            return read_json(path)
        except ValueError as error:
            raise LakeError(f"{path} is damaged: {error}") from error

    def write(self, name: str, body: Mapping[str, Any]) -> None:
        """Replace a file of the ledger atomically. Durable on return."""
        write_json(self._ledger / name, body)

    def _lay_out(self, layout: Layout) -> None:
        description = {"format": FORMAT, **asdict(layout), "destinations": sorted(layout.destinations)}
        found = self.read("lake.json")
        if found is None:
            self.write("lake.json", description)
            return
        for name, value in description.items():
            if found.get(name) != value:
                raise LakeError(f"{self.path} was made with {name} = {found.get(name)!r}, not {value!r}")

    def _recover(self) -> None:
        for path in sorted((self._ledger / "pending").glob("*.json")):
            body = self.read(f"pending/{path.name}")
            self._finish(path.stem, [(source, target) for source, target in body["moves"]])
        # Commits without a decision are dropped.
        for left_over in (self._ledger / "staging").iterdir():
            shutil.rmtree(left_over)

    def _finish(self, name: str, moves: list[tuple[str, str]]) -> None:
        staged = self._ledger / "staging" / name
        directories = set()
        for source, target in moves:
            place = self.path / target
            _make(place.parent, self.path)
            try:
                os.replace(staged / source, place)
            except FileNotFoundError:
                if not place.exists():
                    raise LakeError(f"{place} is missing, and its staged file is missing, too") from None
            directories.add(place.parent)
        for directory in sorted(directories):
            _sync(directory)
        ledger = self._ledger
        os.replace(ledger / "pending" / f"{name}.json", ledger / "commits" / f"{name}.json")
        _sync(ledger / "commits")
        _sync(ledger / "pending")
        shutil.rmtree(staged, ignore_errors=True)

    def _note(self, commit: Commit) -> None:
        for file in commit.files:
            self._files[file.identity] = file
            self._by_place[file.store, file.file] = file


def committed(path: str) -> dict[str, Commit]:
    """Return the commits of a lake by name, for a reader. Takes no lock. Empty if there is no lake."""
    return dict(_commits(Path(path) / LEDGER / "commits"))


def _commits(directory: Path) -> Iterator[tuple[str, Commit]]:
    if not directory.is_dir():
        return
    for path in sorted(directory.glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name)):
        try:
            body = json.loads(path.read_bytes())
            files = tuple(Archived(**file) for file in body["files"])
            parquet = {table: tuple(places) for table, places in body["parquet"].items()}
            yield path.stem, Commit(path.stem, files, parquet, body["rows"])
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(f"{path} is damaged: {error}") from error


def _moves(staged: Path, commit: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each Parquet file below ``staged``, and its path below the lake. Spark's random file names are
    replaced by the commit's name."""
    by_directory: dict[Path, int] = {}
    for path in sorted(staged.rglob("*.parquet")):
        source = path.relative_to(staged)
        if path.name.startswith((".", "_")) or any(part.startswith("_") for part in source.parts):
            continue
        number = by_directory[source.parent] = by_directory.get(source.parent, -1) + 1
        yield str(source), str(source.parent / f"{commit}-{number}.parquet")


def _make(directory: Path, root: Path) -> None:
    """Create a directory and its parents below ``root``, which must exist. All are durable on return."""
    if directory == root or directory.is_dir():
        return
    _make(directory.parent, root)
    directory.mkdir(exist_ok=True)
    _sync(directory.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
