"""Check a directory of several stores: each store, and whether they agree with each other. Reads only."""

from __future__ import annotations

from tandemmq.journal.errors import JournalError
from tandemmq.journal.files import JournalFiles
from tandemmq.store.damage.report import JournalLost
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.message import Destination
from tandemmq.store.records.transactions import transaction_of_key
from tandemmq.store.recovery.rebuild import Trial
from tandemmq.store.several.filters import OUTCOMES_DIRECTORY
from tandemmq.store.several.joint import is_joint
from tandemmq.store.several.layout import ROOT, path_of, stores_in
from tandemmq.store.tools.check import Progress, Report, check, scratch_index


def check_all(
    directory: str,
    index_directory: str | None = None,
    *,
    scratch: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check every store in ``directory`` as ``store.tools.check.check`` does, and whether they agree with each other.

    No destination may be in two stores, and txStore must have no messages. For each transaction that several stores
    prepared, a note gives the outcome at the next start. ``index_directory`` is that of the settings; None: each index
    is beside its journal.
    """
    try:
        names = stores_in(directory)
    except FileNotFoundError:
        names = []
    if names in ([], [ROOT]):
        return check(directory, index_directory, scratch=scratch, progress=progress)
    total = Report()
    for name in names:
        index_root = None if index_directory is None else path_of(index_directory, name)
        report = check(
            path_of(directory, name), index_root, scratch=scratch, progress=_progress_after(progress, total.bytes)
        )
        total.problems += [f"{name}: {problem}" for problem in report.problems]
        total.notes += [f"{name}: {note}" for note in report.notes]
        total.damages += [{"store": name, **damage} for damage in report.damages]
        total.files += report.files
        total.bytes += report.bytes
        total.records += report.records
        total.messages += report.messages
        total.owners += report.owners
    if total.is_clean:
        _check_together(directory, names, total, scratch)
    return total


def _progress_after(progress: Progress | None, before: int) -> Progress | None:
    """Return a function that reports the progress of one store, after ``before`` bytes of finished stores."""
    if progress is None:
        return None
    return lambda done, all_bytes: progress(before + done, before + all_bytes)


def _check_together(directory: str, names: list[str], report: Report, scratch: str | None) -> None:
    homes: dict[Destination, str] = {}
    prepared: dict[str, list[str]] = {}
    decided: set[str] = set()
    for name in names:
        try:
            held, transactions = _contents_of(path_of(directory, name), scratch)
        except (OSError, JournalError, JournalLost, RecordDamaged) as error:
            report.problem(f"{name}: {error}")
            return
        if name == OUTCOMES_DIRECTORY:
            decided.update(transactions)
            for destination in held:
                report.problem(f"{name}: it has messages of {destination}, but must have only outcomes")
            continue
        for destination in held:
            other = homes.setdefault(destination, name)
            if other != name:
                report.problem(f"{destination} is in two stores, {other} and {name}")
        for key in transactions:
            prepared.setdefault(key, []).append(name)
    for key, stores in prepared.items():
        if key in decided:
            outcome = "decided: the next start commits it"
        elif is_joint(transaction_of_key(key)):
            outcome = "not decided: the next start rolls it back"
        else:
            outcome = "in doubt: its client must decide it"
        report.notes.append(f"{key} is prepared in {', '.join(stores)}, {outcome}")


def _contents_of(path: str, scratch: str | None) -> tuple[set[Destination], list[str]]:
    """Return the destinations that have messages or subscriptions in a store, and the keys of the transactions that are
    prepared in it."""
    with scratch_index(scratch) as index:
        follower = Trial(JournalFiles(path), index)
        follower.advance(is_final=True)
        state = follower.state
        held = {o.destination for o in state.owners.values() if o.count or o.subscription_name is not None}
        return held, [key for key, each in state.transactions.items() if each.is_prepared]
