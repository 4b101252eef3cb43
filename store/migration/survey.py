"""Survey of a directory before an import or take-over. Nothing is written to the directory.

It works on any directory with a journal, of ActiveMQ or TandemMQ. If a broker is running there, records that may still
be undone are omitted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tandemmq.journal.errors import JournalError
from tandemmq.store.damage.report import JournalLost
from tandemmq.store.migration.contents import Contents
from tandemmq.store.migration.proof import Proof, prove, prove_prepared
from tandemmq.store.migration.reading import Progress, read_contents, unseen
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.takeover.scheduler import find_scheduled_jobs


@dataclass(frozen=True, slots=True)
class FileShare:
    """Journal file. ``bytes``: its length. ``holders``: text that names an owner -> (number, bytes) of its live
    messages in the file. ``pins``: files with messages whose acknowledgements are in this file."""

    file: int
    bytes: int
    holders: dict[str, tuple[int, int]]
    pins: list[int]

    @property
    def live_bytes(self) -> int:
        return sum(size for _, size in self.holders.values())


@dataclass(slots=True)
class Survey:
    """Result of a survey. ``damage``: texts for the operator; the other fields describe the contents that are not
    damaged."""

    proof: Proof = field(default_factory=dict)
    files: list[FileShare] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    transactions: list[str] = field(default_factory=list)
    scheduled: dict[str, int] = field(default_factory=dict)  # directory of a scheduler -> jobs
    notes: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(share.bytes for share in self.files)

    @property
    def bytes_freed_by_compaction(self) -> int:
        """Bytes that would be freed if all live messages were copied into new files."""
        return max(0, self.bytes - sum(share.live_bytes for share in self.files))


def survey(directory: str, scratch: str, *, is_live: bool = False, progress: Progress = unseen) -> Survey:
    """Read all of ``directory``. ``is_live``: a broker is running there. Raises OSError if the volume fails."""
    found = Survey(scheduled={jobs.directory: jobs.pending for jobs in find_scheduled_jobs(directory)})
    try:
        with read_contents(
            directory, scratch, is_final=not is_live, steps_over_damage=True, progress=progress
        ) as contents:
            found.damage = [str(damage) for damage in contents.damages]
            found.proof = prove(contents, contents.owners()) | prove_prepared(contents)
            found.files = _shares(contents)
            for key, transaction in contents.state.transactions.items():
                if not transaction.is_prepared:
                    count = len(transaction.operations)
                    found.transactions.append(f"{key}: open, never prepared ({count} operations)")
    except (JournalError, JournalLost, RecordDamaged) as error:
        found.damage.append(str(error))
    return found


def _shares(contents: Contents) -> list[FileShare]:
    holders: dict[int, dict[str, tuple[int, int]]] = {}
    for owner in contents.owners():
        name = str(owner)
        for _, entry in contents.state.entries(owner.id, 0):
            file = holders.setdefault(entry.location >> 32, {})
            count, size = file.get(name, (0, 0))
            file[name] = (count + 1, size + entry.size)
    there = contents.files.list()
    pins = {file: contents.state.files[file].pins for file in there if file in contents.state.files}
    return [
        FileShare(
            file,
            contents.files.size(file),
            holders.get(file, {}),
            sorted(pin for pin in pins.get(file, ()) if pin in pins),
        )
        for file in there
    ]
