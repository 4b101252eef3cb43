"""What there is in a directory that may be taken over: looked at, not touched. For a report before an import.

It works on any directory with a journal, ActiveMQ's included, also beside a running broker: then what is not
settled yet is left out.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from journal.errors import JournalError
from journal.files import JournalFiles
from journal.scan import scan
from store.contents import Contents, owner_name, read_contents
from store.damage import JournalLost
from store.proof import Proof, prove, prove_prepared
from store.records.commands import Schedule, decode
from store.records.errors import RecordDamaged

# KahaEntryType numbers of a scheduler's store
_ADD_JOB, _REMOVE_JOB, _DESTROY = 11, 13, 15
_SCHEDULER, _JOB = 1, 2  # numbers of fields
SCHEDULER_DATA = "scheduleDB.data"


@dataclass(frozen=True, slots=True)
class FileShare:
    """A journal file: its length, what lives in it (owner in words -> count and bytes), and the files whose dead
    messages its acknowledgements keep dead."""

    file: int
    bytes: int
    holders: dict[str, tuple[int, int]]
    pins: list[int]

    @property
    def live_bytes(self) -> int:
        return sum(size for _, size in self.holders.values())


@dataclass(slots=True)
class Survey:
    """``damage`` are sentences for an operator; the rest is what remains without it."""

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
        """How much shorter the journal would be, were each live message copied into new files."""
        return max(0, self.bytes - sum(share.live_bytes for share in self.files))


def survey(
    directory: str, scratch: str, *, is_live: bool = False, on_read: Callable[[int], object] = lambda size: None
) -> Survey:
    """Look at everything in ``directory``. ``is_live``: a broker is writing there. OSError as the volume gives it."""
    found = Survey(scheduled=scheduled_jobs(directory))
    try:
        with read_contents(directory, scratch, is_final=not is_live, steps_over_damage=True) as contents:
            found.damage = [str(damage) for damage in contents.damages]
            found.proof = prove(contents, contents.owners(), on_read=on_read) | prove_prepared(contents)
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
        name = owner_name(owner)
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


def scheduled_jobs(directory: str) -> dict[str, int]:
    """The schedulers of ActiveMQ beside or in a directory, and how many jobs each holds. They are left aside."""
    parent = glob.escape(os.path.dirname(os.path.abspath(directory)))
    here = glob.escape(os.path.abspath(directory))
    places = {
        os.path.dirname(path)
        for pattern in (
            f"{here}/{{}}",
            f"{here}/scheduler/{{}}",
            f"{parent}/scheduler/{{}}",
            f"{parent}/*/scheduler/{{}}",
        )
        for path in glob.glob(pattern.format(SCHEDULER_DATA))
    }
    return {place: _jobs(JournalFiles(place)) for place in sorted(places)}


def _jobs(files: JournalFiles) -> int:
    jobs: set[tuple[object, object]] = set()
    for file in files.list():
        for batch in scan(files, file, is_live=True):
            for _, payload in batch.records:
                try:
                    command = decode(payload)
                except RecordDamaged:
                    continue  # before 5.11 the records are bare messages
                if not isinstance(command, Schedule):
                    continue
                job = command.fields.get(_SCHEDULER), command.fields.get(_JOB)
                if command.kind == _ADD_JOB:
                    jobs.add(job)
                elif command.kind == _REMOVE_JOB:
                    jobs.discard(job)
                elif command.kind == _DESTROY:
                    jobs = {known for known in jobs if known[0] != job[0]}
    return len(jobs)
