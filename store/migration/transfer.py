"""Transfer: copies all live messages of one directory into another, and proves that they arrived.

    import    into a directory of TandemMQ, after its present contents
    export    into a new directory, which ActiveMQ can open too

Both write the same records, in this order: subscriptions; the messages of each queue, in the order of delivery; the
messages of each topic; prepared transactions, as operations and a Prepare. A message of a topic is written once, in a
batch with a Remove for each durable subscription that must not get it. Items that the target has already are not
written again, so an interrupted transfer can be repeated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import FILE_LENGTH_DEFAULT
from tandemmq.store.migration.contents import Contents, NotTransferable, Stored, counterpart, current_add
from tandemmq.store.migration.offline_epoch import OfflineEpoch
from tandemmq.store.migration.proof import Proof, begin, differences, fingerprint, prove, prove_prepared
from tandemmq.store.migration.reading import Progress, read_contents, unseen
from tandemmq.store.records.commands import encode, encode_prepare, encode_remove
from tandemmq.store.records.hints import with_user_hint
from tandemmq.store.records.message import Destination
from tandemmq.store.records.transactions import transaction_of_key
from tandemmq.store.state.owners import OwnerState

Selects = Callable[[Destination], bool]


@dataclass(slots=True)
class Transfer:
    """Result of a transfer. ``source``: proof of the items that were read. ``copied``, ``skipped``: numbers of messages
    that were copied, and of items that the target had already. ``left_aside``: transactions that are not transferred,
    as texts."""

    source: Proof = field(default_factory=dict)
    copied: int = 0
    skipped: int = 0
    subscriptions: int = 0
    transactions: int = 0
    left_aside: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Carried:
    """Transfer with its proof. ``target``: proof of the same items, by a new read of the target's journal.
    ``differences``: empty if all items arrived."""

    transfer: Transfer
    target: Proof
    differences: list[str]


def selecting(pattern: str | None) -> Selects:
    """Return a function that tells whether a destination matches ``pattern``. None matches all destinations.

    A pattern may begin with ``queue://`` or ``topic://``. ``*`` stands for one part of a name, ``>`` at the end for all
    following parts.
    """
    if pattern is None:
        return lambda destination: True
    kind, separator, name = pattern.rpartition("://")
    parts = [".*" if part == ">" else r"[^.]*" if part == "*" else re.escape(part) for part in name.split(".")]
    wanted = re.compile(r"\.".join(parts), re.DOTALL)

    def selects(destination: Destination) -> bool:
        found_kind, _, found_name = str(destination).partition("://")
        return (not separator or kind == found_kind) and wanted.fullmatch(found_name) is not None

    return selects


def transfer(
    source: Contents,
    epoch: OfflineEpoch,
    *,
    selects: Selects = lambda destination: True,
    on_read: Callable[[int], object] = lambda size: None,
) -> Transfer:
    """Write the items of ``source`` that the target does not have into ``epoch``; durable on return.

    Raises NotTransferable if a subscription has another topic or selector in the target; then nothing was written. No
    other process may write to source or target. ``on_read`` is called with the size of each message that is read.
    """
    work = _Work(source, epoch, on_read)
    owners = [owner for owner in source.owners() if selects(owner.destination)]
    subscriptions = [owner for owner in owners if owner.subscription_name is not None]
    for owner in subscriptions:
        work.demand_agreement(owner)
    for owner in subscriptions:
        work.subscribe(owner)
    epoch.flush()
    epoch.checkpoint()
    for owner in owners:
        if owner.subscription_name is None:
            work.queue(owner)
    for _, group in groupby(subscriptions, attrgetter("destination")):
        work.topic(list(group))
    work.transactions(selects)
    epoch.flush()
    return work.report


def carry_over(
    source: str,
    target: str,
    scratch: str,
    *,
    name: str,
    selects: Selects = lambda destination: True,
    has_proof: Callable[[], bool] = lambda: True,
    progress: Progress = unseen,
    file_length: int = FILE_LENGTH_DEFAULT,
) -> Carried:
    """Transfer from the directory ``source`` to the directory ``target``, then read the target again and compare.

    ``scratch`` is a directory for temporary indexes, with 50 to 150 bytes for each message and directory; the caller
    removes it. The caller holds the lock of ``target``; ``has_proof`` returns whether it still does. ``file_length``:
    length of new journal files in bytes. Raises NotTransferable if the source has changed meanwhile, and the errors of
    ``transfer`` and ``read_contents``.
    """
    files = JournalFiles(source)
    before = _file_stamps(files)
    with read_contents(source, os.path.join(scratch, "source"), progress=progress) as held:
        with (
            OfflineEpoch(
                target,
                os.path.join(scratch, "target"),
                name=name,
                has_proof=has_proof,
                journal_max_file_length=file_length,
            ) as epoch,
            progress("copying", sum(owner.bytes for owner in held.owners())) as advance,
        ):
            done = transfer(held, epoch, selects=selects, on_read=_summed(advance))
        if _file_stamps(files) != before:
            raise NotTransferable(f"{source} changed while it was read: a broker is running there")
        found = _proof_of_target(held, target, os.path.join(scratch, "again"), done.source, progress)
    return Carried(done, found, differences(done.source, found))


def _proof_of_target(source: Contents, target: str, scratch: str, wanted: Proof, progress: Progress) -> Proof:
    with read_contents(target, scratch, progress=progress) as held:
        known = {str(owner): owner.id for owner in source.owners()}
        owners = [owner for owner in held.owners() if str(owner) in wanted]

        def counts(owner: OwnerState, message_id: str) -> bool:
            return source.holds(known[str(owner)], message_id)

        with progress("proving", sum(owner.bytes for owner in owners)) as advance:
            proof = prove(held, owners, counts=counts, on_read=_summed(advance))
        return proof | {key: sum for key, sum in prove_prepared(held).items() if key in wanted}


def _file_stamps(files: JournalFiles) -> list[tuple[int, int, int]]:
    """Return (file, length, modification time) of all journal files, to detect whether a process wrote to them."""
    statuses = ((file, files.disk.stat(files.path(file))) for file in files.list())
    return [(file, status.st_size, status.st_mtime_ns) for file, status in statuses]


def _summed(advance: Callable[[int], None]) -> Callable[[int], None]:
    done = 0

    def add(size: int) -> None:
        nonlocal done
        done += size
        advance(done)

    return add


class _Work:
    def __init__(self, source: Contents, epoch: OfflineEpoch, on_read: Callable[[int], object]) -> None:
        self._source = source
        self._epoch = epoch
        self._target = epoch.contents
        self._on_read = on_read
        self.report = Transfer()

    # ---- subscriptions

    def demand_agreement(self, owner: OwnerState) -> None:
        mine = counterpart(owner, self._target)
        if mine is None:
            self._demand_free_name(owner)
            return
        wanted, found = self._source.subscription(owner).info, self._target.subscription(mine).info
        if wanted != found:
            raise _other_terms(owner, found, wanted)

    def _demand_free_name(self, owner: OwnerState) -> None:
        """Raise NotTransferable if the target has another subscription of the same client and name with another
        pattern."""
        if owner.subscription_name is None:
            return
        pattern = self._source.subscription(owner).info
        for other in self._target.state.owners.values():
            if other.subscription_name is None or other.key != owner.key:
                continue
            found = self._target.subscription(other).info
            if pattern is None or found is None or pattern.subscribed_destination != found.subscribed_destination:
                raise _other_terms(owner, found, pattern)

    def subscribe(self, owner: OwnerState) -> None:
        if counterpart(owner, self._target) is not None:
            return
        # Its pending messages are written one by one, so it must not be retroactive.
        command, user = self._source.subscription_of(owner)
        self._epoch.write([with_user_hint(encode(command._replace(retroactive=False)), user)])
        self.report.subscriptions += 1

    # ---- messages

    def queue(self, owner: OwnerState) -> None:
        target = counterpart(owner, self._target)
        summing = begin(self._source, owner)
        for stored in self._source.messages(owner.id):
            self._on_read(stored.size)
            summing.add(fingerprint(stored.message), len(stored.message.body))
            if target is not None and self._target.holds(target.id, stored.add.message_id):
                self.report.skipped += 1
                continue
            self._epoch.write([_plain(stored)])
            self.report.copied += 1
        self.report.source[str(owner)] = summing.result()

    def topic(self, subscriptions: list[OwnerState]) -> None:
        """Copy the messages of one topic for all its subscriptions. A message that several of them hold is written
        once."""
        destination = subscriptions[0].destination
        sums = {owner.id: begin(self._source, owner) for owner in subscriptions}
        targets = {owner.id: counterpart(owner, self._target) for owner in subscriptions}
        all_owners = self._target.state.topics.get(destination, ())
        for stored, holders in self._source.together([owner.id for owner in subscriptions]):
            self._on_read(stored.size)
            printed = fingerprint(stored.message)
            wanting = set()
            for holder in holders:
                sums[holder].add(printed, len(stored.message.body))
                there = targets[holder]
                assert there is not None, "all subscriptions were written first"
                if not self._target.holds(there.id, stored.add.message_id):
                    wanting.add(there.id)
            self.report.skipped += len(holders) - len(wanting)
            self.report.copied += len(wanting)
            if wanting:
                self._epoch.write([_plain(stored), *self._removes(stored, all_owners, wanting)])
        self.report.source.update((str(owner), sums[owner.id].result()) for owner in subscriptions)

    def _removes(self, stored: Stored, all_owners: Iterable[int], wanting: set[int]) -> Iterator[bytes]:
        """Yield a Remove for each subscription of the target that must not get this message and does not have it."""
        for owner in all_owners:
            if owner not in wanting and not self._target.holds(owner, stored.add.message_id):
                key = self._target.state.owners[owner].key
                yield encode_remove(stored.add.destination, stored.add.message_id, None, key)

    # ---- transactions

    def transactions(self, selects: Selects) -> None:
        for key, transaction in self._source.state.transactions.items():
            if not transaction.is_prepared:
                self.report.left_aside.append(f"{key}: open, never prepared ({len(transaction.operations)} operations)")
                continue
            operations = [operation for operation in transaction.operations if selects(operation.destination)]
            if not operations:
                continue
            if key in self._target.state.transactions:
                self.report.skipped += len(operations)
                continue
            payloads = [encode(self._source.operation(operation)) for operation in operations]
            self._epoch.write([*payloads, encode_prepare(transaction_of_key(key))])
            self.report.transactions += 1
        self.report.source.update(prove_prepared(self._source, selects))


def _other_terms(owner: OwnerState, found: object, wanted: object) -> NotTransferable:
    return NotTransferable(
        f"{owner}: the target has a subscription of that name with other terms ({found}; in the source: {wanted})"
    )


def _plain(stored: Stored) -> bytes:
    """Return the payload of an Add for the message, outside of any transaction."""
    add = current_add(stored.add, stored.message, stored.is_current)
    return encode(add._replace(transaction=None))
