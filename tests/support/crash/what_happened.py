"""The events of a recorded life, read from its record, to check that a life does what its name claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tandemmq.journal.files import file_id
from tandemmq.journal.format import CONTROL_MARK
from tandemmq.journal.scan import Scan
from tandemmq.store.records.commands import Commit, Prepare, Rollback, Trace, decode
from tandemmq.store.records.headers import decode_header
from tandemmq.store.records.hints import CopyHint, hint_of
from tandemmq.store.records.transactions import XaTransactionId
from tandemmq.store.several.joint import is_joint
from tests.support.crash.recording_disk import Event, Link, Move, Write
from tests.support.journal.in_memory import MemorySource

ARCHIVE = "data-archive"
# Events that a life may have.
PROMOTION = "promotion"
FENCE_WITHOUT_HEADER = "fence without header"
ROTATION = "rotation"
COMPACTION = "compaction"
ARCHIVING = "archive"
XA_PREPARED = "XA prepare"
XA_COMMITTED = "XA commit"
XA_ROLLED_BACK = "XA rollback"
TAKE_OVER = "take-over from ActiveMQ"
LATE_WRITE = "write by a deposed master"
JOINT = "transaction over several stores"


def what_happened(events: Sequence[Event], start: int) -> Counter[str]:
    """Return how often each of these happened from event ``start`` on."""
    found: Counter[str] = Counter()
    directories = {event.node: event.name for event in events if isinstance(event, Link) and event.is_directory}
    files: dict[int, tuple[int, int]] = {}  # node -> directory and number of a journal file
    fences: dict[int, set[int]] = {}  # directory -> numbers of its files
    headed: set[int] = set()
    for number, event in enumerate(events):
        is_new = number >= start
        if isinstance(event, Link) and (file := file_id(event.name)) is not None:
            if directories.get(event.directory) == ARCHIVE:
                found[ARCHIVING] += is_new
                continue
            files[event.node] = event.directory, file
            fences.setdefault(event.directory, set()).add(file)
            headed.update([event.node] if not is_new else [])
        elif isinstance(event, Move) and event.as_name.startswith("db.data.aside-"):
            found[TAKE_OVER] += is_new
        elif isinstance(event, Write) and event.node in files and is_new:
            directory, file = files[event.node]
            for payload in payloads_of(event):
                header = decode_header(payload)
                if header is None:
                    is_late = max(fences[directory]) > file and not isinstance(decode(payload), Trace)
                    found[LATE_WRITE] += is_late
                    found.update(kinds_of(payload))
                    continue
                headed.add(event.node)
                found[PROMOTION if header.reason == "promotion" else ROTATION] += 1
    found[FENCE_WITHOUT_HEADER] = len(files.keys() - headed)
    return +found


def payloads_of(event: Write) -> Iterator[bytes]:
    if event.data.startswith(CONTROL_MARK):
        for batch in Scan(lambda: MemorySource(event.data), 1, is_live=True):
            for _, payload in batch.records:
                yield payload


def kinds_of(payload: bytes) -> Iterable[str]:
    if isinstance(hint_of(payload), CopyHint):
        yield COMPACTION
    command = decode(payload)
    if not isinstance(command, Prepare | Commit | Rollback) or not isinstance(command.transaction, XaTransactionId):
        return
    if is_joint(command.transaction):
        yield JOINT
    elif isinstance(command, Prepare):
        yield XA_PREPARED
    else:
        yield XA_COMMITTED if isinstance(command, Commit) else XA_ROLLED_BACK
