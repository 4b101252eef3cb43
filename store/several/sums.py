"""Sums of the figures and reports of several stores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import fields
from functools import partial
from typing import Any

from tandemmq.store.histogram import Histogram
from tandemmq.store.maintenance.compaction import CompactionReport
from tandemmq.store.operations import PreparedTransaction
from tandemmq.store.records.transactions import TransactionId
from tandemmq.store.store import Store
from tandemmq.store.writer.figures import Figures


def figures_of(stores: Iterable[Store]) -> Figures:
    """Return the sums of the counters. ``last_seen_alive`` is the oldest one."""
    total = Figures(float("inf"))
    for store in stores:
        figures = store.figures
        total.last_seen_alive = min(total.last_seen_alive, figures.last_seen_alive)
        for name in (each.name for each in fields(Figures)):
            if isinstance(getattr(total, name), int):
                setattr(total, name, getattr(total, name) + getattr(figures, name))
    return total


def measured_in(stores: Iterable[Store]) -> dict[str, Histogram]:
    """Return the histograms (``Store.measured``) of all stores together."""
    total: dict[str, Histogram] = {}
    for store in stores:
        for name, found in store.measured().items():
            total[name] = total[name].plus(found.counts, found.sum) if name in total else found
    return total


def statistics_of(stores: Mapping[str, Store]) -> list[dict[str, Any]]:
    """Return the figures of each store for ``status``. ``stores``: name of its directory -> store."""
    return [
        {
            "name": name,
            "journal_records_total": store.figures.records,
            "journal_bytes_total": store.figures.bytes_written,
            "journal_files_reclaimed_total": store.figures.files_reclaimed,
            "checkpoints_total": store.figures.checkpoints,
        }
        for name, store in stores.items()
    ]


def prepared_in(stores: Iterable[Store]) -> list[PreparedTransaction]:
    """Return each prepared transaction once, with its additions and removals in all stores."""
    found: dict[TransactionId, PreparedTransaction] = {}
    for store in stores:
        for each in store.prepared():
            before = found.get(each.transaction, PreparedTransaction(each.transaction, 0, 0))
            found[each.transaction] = PreparedTransaction(
                each.transaction,
                before.added + each.added,
                before.removed + each.removed,
                before.adds_to | each.adds_to,
                before.removes_from | each.removes_from,
            )
    return list(found.values())


def full_reason_of(stores: Iterable[Store]) -> str:
    """Return the reason why a store refuses producers, or "" if no store does."""
    reasons = [store.full_reason for store in stores if store.is_full]
    return f"{reasons[0]} (so are {len(reasons) - 1} more stores)" if len(reasons) > 1 else "".join(reasons)


def archive_problem_of(stores: Mapping[str, Store]) -> str | None:
    """Return the first problem with an archive, with the name of its store, or None."""
    problems = (f"{name}: {store.archive_problem}" for name, store in stores.items() if store.archive_problem)
    return next(problems, None)


def compact(stores: Collection[Store], call_soon: Callable[[Callable[[], None]], object]) -> Future[CompactionReport]:
    """Request a compaction of each store. The result is the sum of the reports, without ``files``, because file numbers
    of different stores are not comparable. It is cancelled if a store ends before. ``call_soon`` runs a function on the
    event loop; any thread."""
    total: Future[CompactionReport] = Future()
    requested = [store.compact() for store in stores]
    left = [len(requested)]

    def answered(one: Future[CompactionReport]) -> None:
        left[0] -= 1
        if one.cancelled():
            total.cancel()
        elif left[0] == 0 and total.set_running_or_notify_cancel():
            reports = [each.result() for each in requested]
            sums = [sum(column) for column in zip(*(report[1:] for report in reports), strict=True)]
            total.set_result(CompactionReport((), *sums))

    for each in requested:
        each.add_done_callback(lambda one: call_soon(partial(answered, one)))
    return total
