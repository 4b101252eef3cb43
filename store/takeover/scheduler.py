"""Count of the jobs in ActiveMQ's scheduler store, which a take-over does not read or change otherwise.

The scheduler store is a separate journal, in a directory ``scheduler`` beside the store or below it. This broker does
not deliver its jobs; the report of a take-over gives their number.
"""

from __future__ import annotations

import glob
import os
from typing import NamedTuple

from tandemmq.journal.errors import JournalError
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.scan import scan
from tandemmq.store.records.commands import Schedule, decode
from tandemmq.store.records.errors import RecordDamaged

ADD, RESCHEDULE, REMOVE, REMOVE_RANGE, DESTROY = range(11, 16)
# Field numbers
_SCHEDULER, _JOB = 1, 2
_ADD_NEXT, _RESCHEDULE_NEXT = 9, 4
_RANGE_START, _RANGE_END = 2, 3

# Places of the scheduler store, relative to the store. ActiveMQ's default is <data>/<broker name>/scheduler, with the
# store in <data>/kahadb or <data>/<broker name>/KahaDB.
_PLACES = ("scheduler", "../scheduler", "../*/scheduler")


class ScheduledJobs(NamedTuple):
    """Number of jobs that wait in the scheduler store in ``directory`` (``pending``), and of records that could not be
    read (``unread``): damaged ones, or those of ActiveMQ before 5.11."""

    directory: str
    pending: int
    unread: int


def find_scheduled_jobs(store_directory: str) -> tuple[ScheduledJobs, ...]:
    """Return the scheduler stores beside or below a store that have jobs or unread records. Raises the OSError of the
    volume."""
    found: dict[str, ScheduledJobs] = {}
    for place in _PLACES:
        for path in sorted(glob.glob(os.path.join(glob.escape(os.path.abspath(store_directory)), place))):
            directory = os.path.normpath(path)
            if directory not in found and os.path.isdir(directory):
                jobs = count_scheduled_jobs(directory)
                if jobs.pending or jobs.unread:
                    found[directory] = jobs
    return tuple(found.values())


def count_scheduled_jobs(directory: str) -> ScheduledJobs:
    """Count the jobs of a scheduler store. Blocking: reads its whole journal."""
    files = JournalFiles(directory)
    pending: dict[tuple[object, object], int] = {}
    unread = 0
    for file in files.list():
        damages: list[JournalError] = []
        for batch in scan(files, file, on_corrupt=damages.append):
            for _, payload in batch.records:
                try:
                    command = decode(payload)
                except RecordDamaged:
                    unread += 1
                    continue
                if isinstance(command, Schedule):
                    _apply(pending, command)
        unread += len(damages)
    return ScheduledJobs(directory, len(pending), unread)


def _apply(pending: dict[tuple[object, object], int], command: Schedule) -> None:
    fields = command.fields
    scheduler = fields.get(_SCHEDULER)
    job = scheduler, fields.get(_JOB)
    if command.kind == ADD:
        pending[job] = int(fields.get(_ADD_NEXT, 0))
    elif command.kind == RESCHEDULE:
        if job in pending:
            pending[job] = int(fields.get(_RESCHEDULE_NEXT, 0))
    elif command.kind == REMOVE:
        pending.pop(job, None)
    elif command.kind in (REMOVE_RANGE, DESTROY):
        start, end = int(fields.get(_RANGE_START, 0)), int(fields.get(_RANGE_END, 0))
        for known, due in list(pending.items()):
            if known[0] == scheduler and (command.kind == DESTROY or start <= due <= end):
                del pending[known]
