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
subscription. Both are written again (store.migration.reordering). If that exceeds the bounds, it is reported, and
``export`` is the alternative.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

from tandemmq.disk import Disk
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.scan import scan
from tandemmq.journal.verify import damage_in
from tandemmq.store.kahadb.minimal import is_minimal, set_index_aside, write_minimal
from tandemmq.store.kahadb.page_file import FREE, REDO
from tandemmq.store.migration.contents import Contents, counterpart
from tandemmq.store.migration.corrections import Corrections, prepared_again
from tandemmq.store.migration.handback_report import Report
from tandemmq.store.migration.offline_epoch import OfflineEpoch
from tandemmq.store.migration.reading import files_to_read, read_contents
from tandemmq.store.migration.rehearsal import Rehearsal, order_difference
from tandemmq.store.migration.reordering import Bounds, Topic, add_again, add_topic_again, judge_topic, out_of_order
from tandemmq.store.migration.sealing import content_after_end, end_file, hidden_strays, unmark_file
from tandemmq.store.records.commands import encode_trace
from tandemmq.store.records.loose import OPENWIRE_VERSION
from tandemmq.store.records.message import Destination
from tandemmq.store.records.transactions import LocalTransactionId
from tandemmq.store.state.owners import OwnerState
from tandemmq.store.tools.inspect import read_headers

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
        ends = {file: _end_of(files, file) for file in files.list()} | dict(read_headers(files).ends)
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


def _end_of(files: JournalFiles, file: int) -> int:
    end = 0
    for batch in scan(files, file):
        end = batch.end
    return end


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
        there = rehearsal.owner(owner)
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
