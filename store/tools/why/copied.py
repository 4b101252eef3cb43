"""Copy of the facts about the files of a state, made in short pieces so that the store can keep running."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol, TypeVar

from tandemmq.store.records.commands import ADD
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.state.state import State
from tandemmq.store.tools.why.facts import Facts, FileFacts, OwnerFacts, TransactionFacts

# Number of files in one piece. The storage thread serves clients between pieces.
FILES_A_PIECE = 200

T = TypeVar("T")


class Ask(Protocol):
    """Runs a short function on the thread that owns the state, and returns its result."""

    def __call__(self, function: Callable[[State], T], /) -> T: ...


def copy_facts(ask: Ask, epoch_history: EpochHistory, sizes: Mapping[int, int], *, is_written: bool) -> Facts:
    """Return the facts of the files on the disk, with their ``sizes``; ``is_written``: a master writes them now."""
    files: dict[int, FileFacts] = {}
    names = sorted(sizes)
    for start in range(0, len(names), FILES_A_PIECE):
        files |= ask(partial(_copy_files, files=names[start : start + FILES_A_PIECE], sizes=sizes))
    owners = ask(_copy_owners)
    transactions = ask(_copy_transactions)
    tail, reclaimable = ask(partial(_reclaimable, epoch_history=epoch_history, is_written=is_written))
    return Facts(files, owners, transactions, tail, {file for file in reclaimable if file in files})


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


def _reclaimable(state: State, epoch_history: EpochHistory, is_written: bool) -> tuple[int, tuple[int, ...]]:
    tail = state.position.file if state.position is not None else 0
    if not is_written:
        tail += 1  # the next master begins a new file
    return tail, state.reclaimable(epoch_history.first_of_epoch, tail)
