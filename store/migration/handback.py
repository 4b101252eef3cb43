"""Hand-back: prepares a directory of TandemMQ for ActiveMQ, which then rebuilds its own index from the journal.

    1  fence and header                    no other broker writes any more; every earlier file has an end
    2  truncate files at their ends        store.migration.sealing: copy and rename; the originals stay in quarantine
    3  rehearsal by ActiveMQ's rules       store.migration.rehearsal: its messages, and their order
    4  records that correct differences    removes, unsubscribes, copies, the order; then the rehearsal continues, and
                                           must agree with TandemMQ's view
    5  mark                                so that a second run has nothing to do
    6  ActiveMQ's index                    renamed, and replaced by the minimal index

After each step TandemMQ can open the directory, and the step can be repeated: if the command is killed, run it again.
ActiveMQ does not know the order of messages that a compaction has copied, and may miss pending messages of a copied
subscription. Both are written again (store.migration.corrections). If that exceeds the bounds, it is reported, and
``export`` is the alternative.

Sealing makes journal files end at the ends that TandemMQ's headers state, because ActiveMQ ignores headers. TandemMQ
ignores bytes after the end of a file; ActiveMQ would read them. They are late writes of a deposed master, or a
torn tail. Such a file is copied up to its end, and the copy is renamed to its name, so the name always leads to a
complete file. The original stays in ``quarantine/``. The copy has the same length as the original: after its end record
it is filled with zeros.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from zlib import adler32

from tandemmq.disk import Disk, opened, sync_directory, write_fully
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import (
    CONTROL,
    CONTROL_MARK,
    CONTROL_MARK_SIZE,
    CONTROL_SIZE,
    END_RECORD,
    END_RECORD_SIZE,
    RECORD_HEADER_SIZE,
)
from tandemmq.journal.scan import FileSource, scan, scanned_end
from tandemmq.journal.verify import damage_in
from tandemmq.store.kahadb.minimal import is_minimal, set_index_aside, write_minimal
from tandemmq.store.kahadb.page_file import FREE, REDO
from tandemmq.store.migration.contents import Contents, counterpart
from tandemmq.store.migration.corrections import (
    Bounds,
    Corrections,
    Report,
    Topic,
    add_again,
    add_topic_again,
    judge_topic,
    out_of_order,
    prepared_again,
)
from tandemmq.store.migration.offline_epoch import OfflineEpoch
from tandemmq.store.migration.reading import files_to_read, read_contents
from tandemmq.store.migration.rehearsal import Rehearsal, order_difference
from tandemmq.store.records.commands import COMMIT, REMOVE, REWRITTEN, TRACE, Rewritten, decode, encode_trace
from tandemmq.store.records.loose import OPENWIRE_VERSION
from tandemmq.store.records.message import Destination
from tandemmq.store.records.transactions import LocalTransactionId
from tandemmq.store.state.owners import OwnerState
from tandemmq.store.tools.inspect import read_headers

QUARANTINE = "quarantine"
NEW = ".new"
CHUNK_BYTES = 1 << 20
# Record type that every reader skips (kahadb.md 1.2).
SKIPPED_TYPE = 9


def content_after_end(files: JournalFiles, file: int, end: int) -> str | None:
    """Return a text that describes the content that ActiveMQ would read at or after ``end``, or None if there is none.

    The end marker of a rotation, a batch of traces after the end, is harmless.
    """
    for batch in scan(files, file, end, is_live=True):
        if any(payload[0] != TRACE for _, payload in batch.records):
            break
        end = batch.end
    with closing(FileSource(files, file)) as source:
        mark = source.read(end, END_RECORD_SIZE)
        if mark and mark != END_RECORD and mark != bytes(END_RECORD_SIZE):
            return "bytes that are no end record follow its end"
        size = source.size()
        overlap = CONTROL_MARK_SIZE - 1
        for start in range(end, size, CHUNK_BYTES):
            if CONTROL_MARK in source.read(start, CHUNK_BYTES + overlap):
                return "a batch follows its end"
    return None


def hidden_strays(files: JournalFiles, file: int, end: int | None) -> bool:
    """Return whether ActiveMQ would skip records of ``file`` that no other file has.

    A file of copies begins with a mark. ActiveMQ skips the whole file while its source file exists. It may nevertheless
    have appended other records than removes and commits to the file (kahadb.md 8.1, item 4).
    """
    is_marked = False
    for batch in scan(files, file, 0, end):
        for _, payload in batch.records:
            if not is_marked:
                if payload[0] != REWRITTEN:
                    return False
                command = decode(payload)
                assert isinstance(command, Rewritten), "the number is that of Rewritten"
                if not command.skip_if_source_exists or not files.exists(command.source_file):
                    return False
                is_marked = True
            elif payload[0] not in (TRACE, REMOVE, COMMIT):
                return True
    return False


def end_file(files: JournalFiles, file: int, end: int, disk: Disk = os) -> str:
    """Replace the file by a copy that ends at ``end``; durable on return. Return the new path of the original."""
    return _put_in_place(files, file, end, b"", disk)


def unmark_file(files: JournalFiles, file: int, end: int, disk: Disk = os) -> str:
    """Replace a file of copies by a copy without its mark, so that ActiveMQ reads it. It ends at ``end``. Durable on
    return; return the new path of the original."""
    with closing(FileSource(files, file)) as source:
        control = source.read(0, CONTROL_SIZE)
        mark, length, checksum = CONTROL.unpack(control)
        body = bytearray(source.read(CONTROL_SIZE, length))
    body[RECORD_HEADER_SIZE - 1] = SKIPPED_TYPE
    if checksum > 0:
        checksum = adler32(body)
    return _put_in_place(files, file, end, CONTROL.pack(mark, length, checksum) + body, disk)


def _put_in_place(files: JournalFiles, file: int, end: int, head: bytes, disk: Disk) -> str:
    path = files.path(file)
    new = path + NEW
    with closing(FileSource(files, file)) as source, opened(disk, new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        write_fully(disk, fd, head, 0)
        for start in range(len(head), end, CHUNK_BYTES):
            write_fully(disk, fd, source.read(start, min(CHUNK_BYTES, end - start)), start)
        write_fully(disk, fd, END_RECORD, end)
        disk.ftruncate(fd, max(source.size(), end + END_RECORD_SIZE))
        disk.fsync(fd)  # prove: sealed-copy-sync
    aside = _keep_original(files, file, disk)
    disk.replace(new, path)
    sync_directory(disk, files.directory)  # prove: sealed-name-durable
    return aside


def _keep_original(files: JournalFiles, file: int, disk: Disk) -> str:
    """Link the original into quarantine; durable on return. Return its path there."""
    quarantine = os.path.join(files.directory, QUARANTINE)
    disk.makedirs(quarantine, exist_ok=True)
    number = 1
    while True:
        aside = os.path.join(quarantine, f"db-{file}.log.{number}")
        try:
            disk.link(files.path(file), aside)
            break
        except FileExistsError:
            number += 1
    sync_directory(disk, quarantine)  # prove: original-kept-before-replaced
    sync_directory(disk, files.directory)
    return aside


NAME = "handback"
MARK = encode_trace("TANDEMMQ-HANDBACK")
BOUNDS = Bounds()


def hand_back(
    directory: str,
    scratch: str,
    *,
    accepts_order: bool = False,
    has_proof: Callable[[], bool] = lambda: True,
    on_step: Callable[[str], object] = lambda step: None,
    bounds: Bounds = BOUNDS,
    disk: Disk = os,
) -> Report:
    """Do all steps of the module. Blocks; the caller holds the lock. ``is_ready`` of the result: ActiveMQ can be
    started.

    ``accepts_order``: a different order of messages is reported, but does not prevent the hand-back. ``on_step`` is
    called with the name of each step, to show progress. ``bounds`` limit the messages of a queue that are added again
    to correct their order. Raises the errors of ``store.migration.offline_epoch.OfflineEpoch``.
    """
    files = JournalFiles(directory, disk)
    if is_handed_back(files):
        return Report(was_done=True, is_ready=True)
    report = Report()
    on_step("reading the journal")
    with OfflineEpoch(directory, os.path.join(scratch, "epoch"), name=NAME, has_proof=has_proof, disk=disk) as epoch:
        report.set_aside += epoch.set_aside
        ends = read_headers(files).ends
        on_step("verifying the journal")
        _find_damage(files, ends, report)
        if report.problems:
            return report
        for file, end, reason, unmarks in _unsealed(files, ends):
            epoch.check_fence()
            aside = unmark_file(files, file, end, disk) if unmarks else end_file(files, file, end, disk)
            report.ended.append(f"db-{file}.log: {reason}; the original is {aside}")
        with closing(Rehearsal(files, os.path.join(scratch, "rehearsal"))) as rehearsal:
            on_step("rehearsing by ActiveMQ's rules")
            rehearsal.advance()
            on_step("comparing")
            corrections = Corrections(epoch.contents, rehearsal, report, epoch)
            corrections.make()
            epoch.checkpoint()
            rehearsal.advance()
            _reorder(epoch, rehearsal, report, bounds)
            corrections.settle_topics()
            epoch.flush()
            epoch.checkpoint()
            rehearsal.advance()
            _judge(epoch.contents, rehearsal, report)
        if report.problems or (report.order and not accepts_order):
            return report
        epoch.write([MARK])
        epoch.flush()
        epoch.check_fence()
    if not _has_minimal_index(directory):
        report.set_aside += set_index_aside(directory, time.time_ns(), disk)
        write_minimal(directory, OPENWIRE_VERSION, disk)
    report.is_ready = True
    return report


def rehearse(directory: str, scratch: str) -> Report:
    """Return a report of the changes that a hand-back would make (dry run). Writes only to ``scratch``."""
    files = files_to_read(directory)
    if is_handed_back(files):
        return Report(was_done=True, is_ready=True)
    report = Report()
    with read_contents(directory, os.path.join(scratch, "epoch")) as contents:
        ends = {file: scanned_end(files, file) for file in files.list()} | dict(read_headers(files).ends)
        _find_damage(files, ends, report)
        unsealed = list(_unsealed(files, ends))
        report.ended = [f"db-{file}.log: {reason}" for file, _, reason, _ in unsealed]
        with closing(
            Rehearsal(
                files,
                os.path.join(scratch, "rehearsal"),
                frozenset(file for file, _, _, unmarks in unsealed if unmarks),
            )
        ) as rehearsal:
            rehearsal.advance()
            Corrections(contents, rehearsal, report, None).make()
            _report_plan(contents, rehearsal, report)
    report.is_ready = not (report.problems or report.order)
    return report


def is_handed_back(files: JournalFiles) -> bool:
    """Return whether a hand-back was the last change of the directory. False if a deposed master wrote later."""
    ids = files.list()
    if not ids or not _has_minimal_index(files.directory):
        return False
    last = b""
    for batch in scan(files, ids[-1], is_live=True):
        for _, payload in batch.records:
            last = payload
    return last == MARK and not any(_unsealed(files, read_headers(files).ends))


def _has_minimal_index(directory: str) -> bool:
    others = [name for name in (REDO, FREE) if os.path.exists(os.path.join(directory, name))]
    return not others and is_minimal(directory)


# ---- files


def _find_damage(files: JournalFiles, ends: Mapping[int, int], report: Report) -> None:
    """Report damage as problems: ActiveMQ would read damaged batches, or not start. It ignores TandemMQ's marks of lost
    ranges."""
    for file in files.list():
        for start, stop in damage_in(files, file, ends.get(file)):
            report.problem(f"db-{file}.log is damaged from {start} to {stop}")


def _unsealed(files: JournalFiles, ends: Mapping[int, int]) -> Iterator[tuple[int, int, str, bool]]:
    """Yield the files that ActiveMQ would read wrongly, as (file, its end, reason, whether the mark of a file of copies
    is the reason)."""
    for file in files.list():
        end = ends.get(file)
        if end is None:
            continue
        if end and hidden_strays(files, file, end):
            yield file, end, "the file is marked as a file of copies, but has other records too", True
            continue
        reason = content_after_end(files, file, end)
        if reason is not None:
            yield file, end, f"{reason}: the file is truncated at {end}", False


# ---- records of the journal


def _reorder(epoch: OfflineEpoch, rehearsal: Rehearsal, report: Report, bounds: Bounds) -> None:
    """Restore for ActiveMQ the order of queues and topics that a compaction has changed, within the bounds."""
    contents = epoch.contents
    for number, owner in enumerate(contents.owners(), 1):
        if owner.subscription_name is not None:
            continue
        messages = out_of_order(contents, rehearsal, owner, bounds)
        if messages:
            transaction = LocalTransactionId(f"ID:tandemmq-handback-{epoch.epoch}", number)
            add_again(contents, messages, transaction, prepared_again(contents), epoch.write)
            epoch.flush()
            report.reordered.append(f"{owner}: {len(messages)} messages were added again, in their order")
    for number, (topic, owners) in enumerate(_topics(contents), 1):
        if judge_topic(contents, rehearsal, owners, bounds) is Topic.ADD_AGAIN:
            transaction = LocalTransactionId(f"ID:tandemmq-handback-topics-{epoch.epoch}", number)
            add_topic_again(contents, owners, transaction, prepared_again(contents), epoch.write)
            epoch.flush()
            report.reordered.append(f"{topic}: the messages of its subscriptions were added again")


def _report_plan(contents: Contents, rehearsal: Rehearsal, report: Report) -> None:
    """Report, for a dry run, which orders would be corrected, and which exceed the bounds."""
    for owner in contents.owners():
        difference = order_difference(contents, rehearsal, owner) if owner.subscription_name is None else None
        if difference is not None:
            can_be_corrected = out_of_order(contents, rehearsal, owner, BOUNDS) is not None
            (report.reordered if can_be_corrected else report.order).append(difference)
    for topic, owners in _topics(contents):
        verdict = judge_topic(contents, rehearsal, owners, BOUNDS)
        if verdict is not Topic.UNCHANGED:
            (report.reordered if verdict is Topic.ADD_AGAIN else report.problems).append(f"{topic}: {verdict.value}")


def _topics(contents: Contents) -> list[tuple[Destination, list[OwnerState]]]:
    """Return the topics, each with its subscriptions."""
    state = contents.state
    return [
        (topic, [state.owners[owner] for owner in owners]) for topic, owners in sorted(state.topics.items()) if owners
    ]


def _judge(contents: Contents, rehearsal: Rehearsal, report: Report) -> None:
    """Report, after all corrections, where ActiveMQ's messages or their order differ from TandemMQ's."""
    for owner in contents.owners():
        there = counterpart(owner, rehearsal.contents)
        if there is None or there.count != owner.count:
            has = 0 if there is None else there.count
            report.problem(f"{owner}: ActiveMQ would hold {has} of {owner.count} messages")
            continue
        for page in contents.pages(owner.id):
            for _, entry in page:
                if not rehearsal.contents.holds(there.id, entry.message_id):
                    report.problem(f"{owner}: ActiveMQ would not hold {entry.message_id}")
        difference = order_difference(contents, rehearsal, owner)
        if difference is not None:
            report.order.append(difference)
    for owner in rehearsal.contents.owners():
        if counterpart(owner, contents) is None:
            report.problem(f"{owner}: ActiveMQ would still have it")
