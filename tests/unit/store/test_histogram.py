"""Histograms, and what a store measures of itself by them."""

from __future__ import annotations

from pathlib import Path

from tandemmq.store.histogram import Histogram
from tests.support.store.store_harness import Q, Term


def test_values_are_counted_by_the_first_bound_that_is_not_smaller() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 7.0):
        histogram.note(value)
    assert histogram.figures() == {"buckets": [["1.0", 2], ["2.0", 3], ["+Inf", 4]], "sum": 10.0}


def test_two_are_summed_and_neither_changes() -> None:
    histogram = Histogram((1.0,))
    histogram.note(0.5)
    both = histogram.plus([1, 2], 9.0)
    assert (both.counts, both.sum) == ([2, 2], 9.5)
    assert (histogram.counts, histogram.sum) == ([1, 0], 0.5)


def test_a_store_measures_receipts_syncs_batches_and_checkpoints(tmp_path: Path) -> None:
    term = Term(str(tmp_path))
    term.store.queue(Q)
    term.end_turn()
    for _ in range(3):
        term.add()
    term.wait_durable(3)
    measured = term.store.measured()
    assert sum(measured["send_to_receipt_seconds"].counts) == 1, "of one turn one sample"
    assert sum(measured["journal_batch_records"].counts) == term.store.figures.batches
    assert measured["journal_batch_records"].sum == term.store.figures.records
    assert sum(measured["journal_sync_duration_seconds"].counts) == term.store.figures.syncs
    assert all(histogram.sum > 0 for name, histogram in measured.items() if name != "checkpoint_duration_seconds")
    (done,) = term.store.checkpoint()
    term.wait(done.done)
    assert sum(term.store.measured()["checkpoint_duration_seconds"].counts) == term.store.figures.checkpoints > 0
    term.close()


def test_the_next_turn_is_a_sample_when_the_last_one_came_back(tmp_path: Path) -> None:
    with Term(str(tmp_path)) as term:
        term.store.queue(Q)
        term.end_turn()
        for number in range(1, 4):
            added = term.add()
            term.wait_durable(number * 2 - 1)
            term.remove(added, term.store.queue(added.message.destination))
            term.wait_durable(number * 2)
        assert sum(term.store.measured()["send_to_receipt_seconds"].counts) == 3, "an acknowledgement is none"
