"""Check that an index belongs to this journal, and that the journal is still there up to its position.

A checkpoint is written only when the journal is on the disk up to its position (safety.md 4). So an index that stands
after the last good batch is either of another journal (another epoch, a restored backup), or proves that the journal
lost records. The two cases differ so:

    the headers name another epoch, or an end before it; a good batch reads differently           another journal
    the journal ends before it, cleanly, with an end record after its last batch                 another: a backup
    the journal ends before it in bytes that are no end, or its batch is damaged                  damage
    its file, or all from there on, is missing, and records that it names stand in the others     lost
    no file is left in which anything was ever written                                            lost
    a file before it begins a later epoch                                                         another: begun afresh
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

# Messages of each holder in each file that are looked up to see whether an index is of this journal.
SAMPLES = 4
SAMPLES_MAX = 256


class IndexNotOfThisJournal(Exception):
    """The index has batches that are not in the journal, or do not count, or it is damaged: to be set aside."""


class Standing(NamedTuple):
    """Parts of the journal that an index proves lost, and where reading resumes if they are stepped over."""

    damages: list[Damage]
    resume: Position


def judge(
    files: JournalFiles,
    ids: Sequence[int],
    epoch_history: EpochHistory,
    state: State,
    starts_whole: Callable[[int], bool],
) -> Standing | None:
    """Return None when the batch at the position of the index is there. Raises IndexNotOfThisJournal.

    ``starts_whole`` says whether the first batch of a file is good.
    """
    position = state.position
    if position is None:
        return None
    # What a refused start leaves behind, a fence without a header, is no journal either.
    # prove: fence-alone-is-no-journal "position.offset or state.epoch" -> "True"
    was_written = bool(position.offset or state.epoch)
    # prove: missing-journal-is-not-empty "was_written and" -> "False and"
    if was_written and is_gone(files, ids):
        expected = sorted({*state.files, position.file})
        damages = gone(files, expected, f"up to byte {position.offset} of db-{position.file}.log")
        return Standing(damages, Position(ids[0] if ids else 0, 0))
    present = list(ids)
    while present and present[-1] >= position.file and position.offset and is_blank(files, present[-1]):
        present.pop()  # the fence of a failed promotion
    if position.file not in present:
        if present and position.file < present[-1]:
            return None  # reclaimed since (an index of any age catches up), or lost: the headers will tell
        if any(header.epoch > state.epoch for header in epoch_history.headers.values()):
            raise IndexNotOfThisJournal(f"the journal was begun afresh after epoch {state.epoch}, in which it was made")
        return _behind_the_last(files, present, state, position)
    epoch = epoch_history.epoch_at(position.file)
    is_headless = position.file not in epoch_history.headers and not starts_whole(position.file)
    # prove: index-of-this-epoch "state.epoch != epoch" -> "False"
    if state.epoch != epoch and not (is_headless and position.offset):
        raise IndexNotOfThisJournal(f"it was made in epoch {state.epoch}, file {position.file} is of {epoch}")
    if position.offset == 0:
        return None
    found = next(iter(scan(files, position.file, position.batch, position.offset, is_live=True)), None)
    # prove: index-batch "found.checksum == position.checksum" -> "True"
    if found is not None and found.end == position.offset and found.checksum == position.checksum:
        return None
    return _batch_is_gone(files, epoch_history, state, position)


def is_blank(files: JournalFiles, file: int) -> bool:
    """Return whether the file is not there, or nothing was ever written into it."""
    walk = scan(files, file, is_live=True)
    try:
        return next(iter(walk), None) is None and walk.ending.kind is not EndingKind.TORN
    except JournalMissing:
        return True


def is_gone(files: JournalFiles, ids: Iterable[int]) -> bool:
    """Return whether none of these files was ever written to, or there are none."""
    return all(is_blank(files, file) for file in sorted(ids, reverse=True))


def gone(files: JournalFiles, expected: Iterable[int], extent: str) -> list[Damage]:
    """Return the damage of a journal that is gone: an index says that it had these files and reached to ``extent``."""
    reason = (
        f"nothing of this journal is left, and an index expects it {extent}. Restore its files; or give up their "
        f"contents, and start afresh: `tandemmq store afresh {files.directory}`"
    )
    # ActiveMQ never collects the file that it writes.
    return [Damage(file, 0, WHOLE_FILE, reason, is_lost=True, may_be_collected=False) for file in expected]


def _behind_the_last(files: JournalFiles, present: list[int], state: State, position: Position) -> Standing:
    last = present[-1] if present else 0
    if not any(file in state.files for file in present) or is_of_another_journal(files, present, state):
        raise IndexNotOfThisJournal(f"it stands in file {position.file}, the journal ends with file {last}")
    reason = f"an index was written when the journal reached byte {position.offset} of db-{position.file}.log"
    gone = [file for file in sorted({*state.files, position.file}) if file > last]
    damages = [Damage(file, 0, WHOLE_FILE, reason, is_lost=True) for file in gone]
    end = Position(last, 0)
    for batch in scan(files, last, on_corrupt=lambda _: None):
        end = _end_of(batch)
    return Standing(damages, end)


def _batch_is_gone(files: JournalFiles, epoch_history: EpochHistory, state: State, position: Position) -> Standing:
    """Judge a journal that has the file, but not the batch at the position of the index."""
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
    if resume.offset < position.offset:  # nothing good follows
        resume = last
        end = walk.ending
        if end.kind is EndingKind.END_RECORD or epoch_history.may_have_holes(file):
            raise IndexNotOfThisJournal(
                f"it stands at byte {position.offset} of file {file}, which ends at {end.offset}"
            )
        if not any(damage.start <= position.batch < damage.stop for damage in damages):
            reason = f"an index was written when this file reached {position.offset}; {_what_is(end.kind)}"
            damages.append(Damage(file, last.offset, position.offset, reason))
    if is_of_another_journal(files, [file], state):
        raise IndexNotOfThisJournal(differs)
    return Standing(damages, resume)


def _what_is(kind: EndingKind) -> str:
    if kind is EndingKind.TORN:
        return "now its last batches are incomplete"
    return "now it is shorter" if kind is EndingKind.FILE_END else "now it is empty there"


def _end_of(batch: Batch) -> Position:
    return Position(batch.file, batch.end, batch.offset, batch.checksum)


def is_of_another_journal(files: JournalFiles, present: Sequence[int], state: State) -> bool:
    """Return whether the journal contradicts the index: other records are where it names some, and no sample
    agrees."""
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
    """Yield the path and position of each index below ``root``. Locks nothing, and reads only the newest roots."""
    for path in named_indexes(root, disk):
        try:
            meta = newest_meta(path, disk)
        except OSError:
            continue  # no index, or gone meanwhile, or not readable: no witness
        if meta:
            yield path, Position(*json.loads(meta)["position"])


def newest_meta(path: str, disk: Disk) -> bytes:
    """Return the meta of the newest root of the index in ``path``; empty when no root is good. Locks nothing."""
    with opened(disk, os.path.join(path, DATA), os.O_RDONLY) as fd:
        roots = decode_roots(read_slots(disk, fd))
    return roots[0].meta if roots else b""


def numbering_of(meta: bytes) -> int:
    """Return the number from which an index counts its owners: a reader must count in the same way."""
    return int(json.loads(meta).get("first_owner", 0)) if meta else 0
