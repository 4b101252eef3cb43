"""Prepare a directory of ours for ActiveMQ, which then rebuilds its own index from the journal.

    1  our fence and header                no other broker writes any more, every earlier file has an end
    2  files end where headers say         store.migration.sealing: copy and rename; the originals stay in quarantine
    3  a rehearsal by ActiveMQ's rules     store.migration.rehearsal: its messages, and their order
    4  records correct differences         removes, unsubscribes, copies, an order; then the rehearsal continues, and
                                           must agree
    5  a mark                              so that a second run has nothing to do
    6  ActiveMQ's index                    set aside, and the minimal one written in its place

After each step the directory opens here, and the step may be repeated: after a kill, run the command again.
ActiveMQ does not see the order of messages that a compaction has copied, and may not see the pending messages of a
moved subscription: both are written again (store.migration.reordering), unless that exceeds the bounds; then it is
reported, and ``export`` is the alternative.
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
from tandemmq.store.migration.rehearsal import Rehearsal, order_trouble
from tandemmq.store.migration.reordering import Bounds, Topic, add_again, add_topic_again, judge_topic, out_of_order
from tandemmq.store.migration.sealing import end_file, hidden_strays, unmark_file, what_is_behind
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
    says: Callable[[str], object] = lambda step: None,
    bounds: Bounds = BOUNDS,
    disk: Disk = os,
) -> Report:
    """Do all steps of the module; blocking, under the lock. ``is_ready`` if ActiveMQ may be started.

    ``accepts_order``: an order that ActiveMQ would not keep is reported, and is no obstacle. ``says`` is called with
    each step, to show progress. ``bounds`` limit a queue's messages that are added again for their order. Raises the
    errors of ``store.migration.offline_epoch.OfflineEpoch``.
    """
    files = JournalFiles(directory, disk)
    if is_handed_back(files):
        return Report(was_done=True, is_ready=True)
    report = Report()
    says("reading the journal")
    with OfflineEpoch(directory, os.path.join(scratch, "epoch"), name=NAME, has_proof=has_proof, disk=disk) as epoch:
        report.set_aside += epoch.set_aside
        ends = read_headers(files).ends
        says("verifying the journal")
        _find_damage(files, ends, report)
        if report.problems:
            return report
        for file, end, reason, unmarks in _unsealed(files, ends):
            epoch.check_fence()
            aside = unmark_file(files, file, end, disk) if unmarks else end_file(files, file, end, disk)
            report.ended.append(f"db-{file}.log: {reason}; the original is {aside}")
        with closing(Rehearsal(files, os.path.join(scratch, "rehearsal"))) as rehearsal:
            says("rehearsing by ActiveMQ's rules")
            rehearsal.advance()
            says("comparing")
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
    """Report what a hand-back would have to do (dry run). Writes only to ``scratch``."""
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
            _foretell(contents, rehearsal, report)
    report.is_ready = not (report.problems or report.order)
    return report


def is_handed_back(files: JournalFiles) -> bool:
    """Return whether a hand-back was the last change of a directory, and no zombie has written since."""
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
    """Report damage: ActiveMQ would serve damaged batches, or not start; it does not know our marks of lost ranges."""
    for file in files.list():
        for start, stop in damage_in(files, file, ends.get(file)):
            report.problem(f"db-{file}.log is damaged from {start} to {stop}")


def _unsealed(files: JournalFiles, ends: Mapping[int, int]) -> Iterator[tuple[int, int, str, bool]]:
    """Yield (file, its end, the reason, whether its mark is the cause) of the files that ActiveMQ would misread."""
    for file in files.list():
        end = ends.get(file)
        if end is None:
            continue
        if end and hidden_strays(files, file, end):
            yield file, end, "a file of copies that holds more than copies", True
            continue
        reason = what_is_behind(files, file, end)
        if reason is not None:
            yield file, end, f"{reason}: it is ended at {end}", False


# ---- records of the journal


def _reorder(epoch: OfflineEpoch, rehearsal: Rehearsal, report: Report, bounds: Bounds) -> None:
    """Restore for ActiveMQ the order that a compaction took from queues and topics, as far as the bounds allow."""
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
        if judge_topic(contents, rehearsal, owners, bounds) is Topic.AGAIN:
            transaction = LocalTransactionId(f"ID:tandemmq-handback-topics-{epoch.epoch}", number)
            add_topic_again(contents, owners, transaction, prepared_again(contents), epoch.write)
            epoch.flush()
            report.reordered.append(f"{topic}: what its subscriptions hold was added again")


def _foretell(contents: Contents, rehearsal: Rehearsal, report: Report) -> None:
    """Report, for a dry run, which orders would be corrected, and which not."""
    for owner in contents.owners():
        trouble = order_trouble(contents, rehearsal, owner) if owner.subscription_name is None else None
        if trouble is not None:
            can_be_mended = out_of_order(contents, rehearsal, owner, BOUNDS) is not None
            (report.reordered if can_be_mended else report.order).append(trouble)
    for topic, owners in _topics(contents):
        verdict = judge_topic(contents, rehearsal, owners, BOUNDS)
        if verdict is not Topic.AS_IT_IS:
            (report.reordered if verdict is Topic.AGAIN else report.problems).append(f"{topic}: {verdict.value}")


def _topics(contents: Contents) -> list[tuple[Destination, list[OwnerState]]]:
    """Return the topics, each with its subscriptions."""
    state = contents.state
    return [
        (topic, [state.owners[owner] for owner in owners]) for topic, owners in sorted(state.topics.items()) if owners
    ]


def _judge(contents: Contents, rehearsal: Rehearsal, report: Report) -> None:
    """Report, after all corrections, where ActiveMQ's messages or their order differ from ours."""
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
        trouble = order_trouble(contents, rehearsal, owner)
        if trouble is not None:
            report.order.append(trouble)
    for owner in rehearsal.contents.owners():
        if counterpart(owner, contents) is None:
            report.problem(f"{owner}: ActiveMQ would still know it")
