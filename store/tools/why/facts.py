"""Facts that decide whether journal files stay, as plain values: copied from a state, or counted in a journal. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from tandemmq.store.state.file_states import reclaimable


@dataclass(slots=True)
class FileFacts:
    """Facts about a journal file. ``holders``: owner id -> (number of live messages, their bytes). ``live_bytes``
    counts a message of several subscriptions once. ``pins``: files that contain messages, subscriptions or transactions
    that records of this file ended; while such a file exists, this file stays. ``is_known`` False: the file is being
    removed, and the state no longer has it."""

    size: int
    live: int
    live_bytes: int
    holders: dict[int, tuple[int, int]]
    pins: set[int]
    is_known: bool = True


@dataclass(slots=True)
class OwnerFacts:
    """A queue or a durable subscription. ``records``: files that contain its own records."""

    destination: str
    client_id: str | None
    subscription_name: str | None
    records: set[int]


@dataclass(slots=True)
class TransactionFacts:
    """An open transaction. ``prepared_in``: file of its Prepare record; 0: it is not prepared."""

    key: str
    is_prepared: bool
    prepared_in: int
    operations: dict[int, int]  # file -> number of its operations there
    newest_add: tuple[int, int] | None  # (location, size)

    @property
    def files(self) -> set[int]:
        """Files that contain a part of the transaction."""
        return set(self.operations) | ({self.prepared_in} if self.prepared_in else set())


@dataclass(slots=True)
class Facts:
    """Facts about all files. ``files``: files on the disk. ``reclaimable``: files that the next checkpoint removes.
    ``tail``: the file that the master writes; without a master, the file that the next one will begin."""

    files: dict[int, FileFacts]
    owners: dict[int, OwnerFacts]
    transactions: list[TransactionFacts]
    tail: int
    reclaimable: set[int]

    def held_by_own(self) -> set[int]:
        """Return the files that have live messages, records of subscriptions or parts of open transactions."""
        return {file for file, known in self.files.items() if known.live} | held_by_records(
            self.owners.values(), self.transactions
        )

    def reclaimable_without(self, owners: Collection[int], first_of_epoch: Callable[[int], bool]) -> set[int]:
        """Return the files that the next checkpoint would remove if ``owners`` had no messages."""
        files = {file: _without(known, owners) for file, known in self.files.items() if known.is_known}
        held = held_by_records(self.owners.values(), self.transactions)
        return set(reclaimable(files, held, first_of_epoch, self.tail))


def facts_of(
    files: dict[int, FileFacts],
    owners: dict[int, OwnerFacts],
    transactions: list[TransactionFacts],
    tail: int,
    first_of_epoch: Callable[[int], bool],
) -> Facts:
    """Return the facts, with the files that the next checkpoint removes."""
    facts = Facts(files, owners, transactions, tail, set())
    facts.reclaimable = facts.reclaimable_without((), first_of_epoch)
    return facts


def held_by_records(owners: Collection[OwnerFacts], transactions: Collection[TransactionFacts]) -> set[int]:
    """Return the files that have a record of a subscription or a part of an open transaction."""
    held: set[int] = set()
    for owner in owners:
        held |= owner.records
    for transaction in transactions:
        held |= transaction.files
    return held


def _without(known: FileFacts, owners: Collection[int]) -> FileFacts:
    gone = sum(count for owner, (count, _) in known.holders.items() if owner in owners)
    return FileFacts(known.size, known.live - gone, known.live_bytes, known.holders, known.pins)
