"""Check that an index belongs to this journal, and that the journal still exists up to the index's position.

A checkpoint is written only when the journal is synced up to its position. So if the position is after the last good
batch, either the index belongs to another journal (another epoch, a restored backup), or the journal has lost records:

    the headers state another epoch, or an end before the position                        another journal
    a good batch at the position has other contents                                       another journal
    the journal ends before the position, cleanly, with an end record                     another journal: a backup
    a file with a lower number begins a later epoch                                       another journal: a new one
    the journal ends before the position without an end record, or the batch is damaged   damage
    the file of the position is missing, and other records of the index are in the rest   lost
    no file with content exists                                                           lost
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import NamedTuple

from tandemmq.disk import Disk, opened
from tandemmq.index.pages import read_slots
from tandemmq.index.roots import decode_roots
from tandemmq.journal.errors import JournalCorrupt, JournalError, JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.reader import JournalReader
from tandemmq.journal.scan import Batch, EndingKind, scan
from tandemmq.store.damage.report import WHOLE_FILE, Damage
from tandemmq.store.records.commands import added, decode
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.recovery.index_directory import DATA, named_indexes
from tandemmq.store.state.state import State
from tandemmq.store.state.tail import Position

# Number of messages of each owner in each file that are read to check whether an index belongs to this journal, and the
# limit for all of them.
SAMPLES = 4
SAMPLES_MAX = 256


class IndexNotOfThisJournal(Exception):
    """The index has batches that are not in the journal or do not count, or it is damaged. It must be set aside."""


class ProvenLoss(NamedTuple):
    """Parts of the journal that are lost according to an index, and the position where reading resumes if the loss is
    accepted."""

    damages: list[Damage]
    resume: Position


def judge(
    files: JournalFiles,
    ids: Sequence[int],
    epoch_history: EpochHistory,
    state: State,
    starts_whole: Callable[[int], bool],
) -> ProvenLoss | None:
    """Return None if the batch at the position of the index exists, or the parts that are lost. Raises
    IndexNotOfThisJournal.

    ``starts_whole`` returns whether the first batch of a file is good.
    """
    position = state.position
    if position is None:
        return None
    # A refused start leaves a fence without a header, which is no journal either.
    # prove: fence-alone-is-no-journal "position.offset or state.epoch" -> "True"
    was_written = bool(position.offset or state.epoch)
    # prove: missing-journal-is-not-empty "was_written and" -> "False and"
    if was_written and is_gone(files, ids):
        expected = sorted({*state.files, position.file})
        damages = gone(files, expected, f"up to byte {position.offset} of db-{position.file}.log")
        return ProvenLoss(damages, Position(ids[0] if ids else 0, 0))
    present = list(ids)
    while present and present[-1] >= position.file and position.offset and is_blank(files, present[-1]):
        present.pop()  # the fence of a failed promotion
    if position.file not in present:
        if present and position.file < present[-1]:
            return None  # the file was reclaimed, or is lost; the follower finds out by the headers
        if any(header.epoch > state.epoch for header in epoch_history.headers.values()):
            raise IndexNotOfThisJournal(f"it was made in epoch {state.epoch}, and a new journal was begun later")
        return _behind_the_last(files, present, state, position)
    epoch = epoch_history.epoch_at(position.file)
    is_headless = position.file not in epoch_history.headers and not starts_whole(position.file)
    # prove: index-of-this-epoch "state.epoch != epoch" -> "False"
    if state.epoch != epoch and not (is_headless and position.offset):
        raise IndexNotOfThisJournal(f"it was made in epoch {state.epoch}, but file {position.file} is of epoch {epoch}")
    if position.offset == 0:
        return None
    found = next(iter(scan(files, position.file, position.batch, position.offset, is_live=True)), None)
    # prove: index-batch "found.checksum == position.checksum" -> "True"
    if found is not None and found.end == position.offset and found.checksum == position.checksum:
        return None
    return _batch_is_gone(files, epoch_history, state, position)


def is_blank(files: JournalFiles, file: int) -> bool:
    """Return whether the file does not exist, or nothing was written to it since it was made."""
    walk = scan(files, file, is_live=True)
    try:
        return next(iter(walk), None) is None and walk.ending.kind is not EndingKind.TORN
    except JournalMissing:
        return True


def is_gone(files: JournalFiles, ids: Iterable[int]) -> bool:
    """Return whether all of these files are blank, or there are none."""
    return all(is_blank(files, file) for file in sorted(ids, reverse=True))


def gone(files: JournalFiles, expected: Iterable[int], extent: str) -> list[Damage]:
    """Return the loss of a whole journal. According to an index it had these files and reached to ``extent``."""
    reason = (
        f"all files of this journal are missing, but according to an index it reached {extent}. Restore its files, or "
        f"accept the loss of their contents and begin a new journal: `tandemmq store afresh {files.directory}`"
    )
    # ActiveMQ does not remove the file that it writes.
    return [Damage(file, 0, WHOLE_FILE, reason, is_lost=True, may_be_collected=False) for file in expected]


def _behind_the_last(files: JournalFiles, present: list[int], state: State, position: Position) -> ProvenLoss:
    last = present[-1] if present else 0
    if not any(file in state.files for file in present) or is_of_another_journal(files, present, state):
        raise IndexNotOfThisJournal(f"its position is in file {position.file}, but the journal ends with file {last}")
    reason = f"an index was written when the journal reached byte {position.offset} of db-{position.file}.log"
    gone = [file for file in sorted({*state.files, position.file}) if file > last]
    damages = [Damage(file, 0, WHOLE_FILE, reason, is_lost=True) for file in gone]
    end = Position(last, 0)
    for batch in scan(files, last, on_corrupt=lambda _: None):
        end = _end_of(batch)
    return ProvenLoss(damages, end)


def _batch_is_gone(files: JournalFiles, epoch_history: EpochHistory, state: State, position: Position) -> ProvenLoss:
    """Return the loss for a journal that has the file, but not the batch, at the position of the index. Raises
    IndexNotOfThisJournal."""
    file = position.file
    differs = f"its last batch, file {file} bytes {position.batch} to {position.offset}, has other contents"
    damages: list[Damage] = []

    def note(damage: JournalCorrupt) -> None:
        damages.append(Damage(file, damage.start, damage.stop, damage.reason))

    walk = scan(files, file, 0, epoch_history.ends.get(file), on_corrupt=note)
    last = resume = Position(file, 0)
    for batch in walk:
        if batch.offset < position.offset and batch.end > position.batch:
            raise IndexNotOfThisJournal(differs)
        if batch.offset >= position.offset and resume.offset < position.offset:
            resume = Position(file, batch.offset)
        last = _end_of(batch)
    if resume.offset < position.offset:  # no good batch follows
        resume = last
        end = walk.ending
        if end.kind is EndingKind.END_RECORD or epoch_history.may_have_holes(file):
            raise IndexNotOfThisJournal(
                f"its position is byte {position.offset} of file {file}, which ends at {end.offset}"
            )
        if not any(damage.start <= position.batch < damage.stop for damage in damages):
            reason = f"an index was written when this file reached byte {position.offset}; {_describe(end.kind)}"
            damages.append(Damage(file, last.offset, position.offset, reason))
    if is_of_another_journal(files, [file], state):
        raise IndexNotOfThisJournal(differs)
    return ProvenLoss(damages, resume)


def _describe(kind: EndingKind) -> str:
    if kind is EndingKind.TORN:
        return "now its last batches are incomplete"
    return "now it is shorter" if kind is EndingKind.FILE_END else "now it is empty there"


def _end_of(batch: Batch) -> Position:
    return Position(batch.file, batch.end, batch.offset, batch.checksum)


def is_of_another_journal(files: JournalFiles, present: Sequence[int], state: State) -> bool:
    """Return whether the journal contradicts the index: at the locations of some of its messages are other records, and
    at none is the right one."""
    is_contradicted = False
    with closing(JournalReader(files)) as reader:
        for location, size, message_id in islice(_samples(present, state), SAMPLES_MAX):
            try:
                add = added(decode(reader.read(location, size)))
            except (JournalError, RecordDamaged):
                continue  # damage is no contradiction
            if add is not None and add.message_id == message_id:
                return False
            is_contradicted = True
    return is_contradicted


def _samples(present: Sequence[int], state: State) -> Iterator[tuple[int, int, str]]:
    for file in reversed(present):
        held = state.files.get(file)
        for owner in [] if held is None else list(held.holders):
            for _, entry in islice(state.held_in(owner, file), SAMPLES):
                yield entry.location, entry.size, entry.message_id


def places_of_indexes(root: str, disk: Disk = os) -> Iterator[tuple[str, Position]]:
    """Yield (path, position) of each index in ``root``. Only the newest root of an index is read, without its lock."""
    for path in named_indexes(root, disk):
        try:
            meta = newest_meta(path, disk)
        except OSError:
            continue  # no index, or not readable
        if meta:
            yield path, Position(*json.loads(meta)["position"])


def newest_meta(path: str, disk: Disk) -> bytes:
    """Return the meta of the newest root of the index in ``path``, or b"" if no root is good. The index is not locked.
    Raises OSError."""
    with opened(disk, os.path.join(path, DATA), os.O_RDONLY) as fd:
        roots = decode_roots(read_slots(disk, fd))
    return roots[0].meta if roots else b""


def numbering_of(meta: bytes) -> int:
    """Return the first owner id of the index with this meta. A reader of the index must use the same one."""
    return int(json.loads(meta).get("first_owner", 0)) if meta else 0
