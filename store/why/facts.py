"""A copy of what a state says of its files, made in short pieces, so that a running store can be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from store.headers import Chronicle
from store.records.commands import ADD
from store.state import State

# Asked of the state at once: the storage thread serves clients in between.
FILES_A_PIECE = 200

T = TypeVar("T")


class Ask(Protocol):
    """Runs a short function on the thread that owns the state, and returns what it returns."""

    def __call__(self, function: Callable[[State], T], /) -> T: ...


@dataclass(slots=True)
class FileFacts:
    """``is_known`` False: the state has given the file up, and it is being removed."""

    size: int
    live: int
    live_bytes: int
    holders: dict[int, tuple[int, int]]
    pins: set[int]
    is_known: bool = True


class Facts:
    """``files`` are those on the disk, of ``sizes``; ``reclaimable`` those that go with the next checkpoint; ``tail``
    is the one that is written to (with ``is_written`` False: the one that would come next)."""

    def __init__(self, ask: Ask, chronicle: Chronicle, sizes: Mapping[int, int], *, is_written: bool) -> None:
        self.files: dict[int, FileFacts] = {}
        names = sorted(sizes)
        for start in range(0, len(names), FILES_A_PIECE):
            self.files |= ask(partial(_copy_files, files=names[start : start + FILES_A_PIECE], sizes=sizes))
        self.owners = ask(_copy_owners)
        self.transactions = ask(_copy_transactions)
        self.tail, reclaimable = ask(partial(_reclaimable, chronicle=chronicle, is_written=is_written))
        self.reclaimable = {file for file in reclaimable if file in self.files}

    def held_by_own(self) -> set[int]:
        """The files in which something lives."""
        held = {file for file, known in self.files.items() if known.live}
        for owner in self.owners.values():
            held |= owner.records
        for transaction in self.transactions:
            held |= transaction.operations.keys() | {transaction.prepared_in}
        return held


@dataclass(slots=True)
class OwnerFacts:
    """A queue, or a durable subscription, whose own ``records`` stand in those files."""

    destination: str
    client_id: str | None
    subscription_name: str | None
    records: set[int]


@dataclass(slots=True)
class TransactionFacts:
    """An open transaction."""

    key: str
    is_prepared: bool
    prepared_in: int
    operations: dict[int, int]  # file -> how many
    newest_add: tuple[int, int] | None  # (location, size)


def _copy_files(state: State, files: Iterable[int], sizes: Mapping[int, int]) -> dict[int, FileFacts]:
    found: dict[int, FileFacts] = {}
    for file in files:
        held = state.files.get(file)
        if held is None:
            found[file] = FileFacts(sizes[file], 0, 0, {}, set(), is_known=False)
            continue
        holders = {owner: (holder[0], holder[1]) for owner, holder in held.holders.items() if holder[0]}
        found[file] = FileFacts(
            sizes[file], held.live, held.live_bytes, holders, {p for p in held.pins if p in state.files}
        )
    return found


def _copy_owners(state: State) -> dict[int, OwnerFacts]:
    return {
        owner.id: OwnerFacts(
            str(owner.destination),
            owner.client_id,
            owner.subscription_name,
            {owner.record_location >> 32, owner.latest_record >> 32} if owner.record_location else set(),
        )
        for owner in state.owners.values()
    }


def _copy_transactions(state: State) -> list[TransactionFacts]:
    found = []
    for key, transaction in state.transactions.items():
        operations: dict[int, int] = {}
        newest: tuple[int, int] | None = None
        for operation in transaction.operations:
            operations[operation.location >> 32] = operations.get(operation.location >> 32, 0) + 1
            if operation.kind == ADD:
                newest = operation.location, operation.size
        found.append(TransactionFacts(key, transaction.is_prepared, transaction.prepared_at >> 32, operations, newest))
    return found


def _reclaimable(state: State, chronicle: Chronicle, is_written: bool) -> tuple[int, tuple[int, ...]]:
    tail = state.position.file if state.position is not None else 0
    if not is_written:
        tail += 1  # whoever is master next begins a file of its own
    return tail, state.reclaimable(chronicle.first_of_epoch, tail)
