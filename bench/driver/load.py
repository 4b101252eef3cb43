"""Runs of a load in separate processes, and their figures; and of a backlog, which is filled and then drained.

Rates are measured between two moments of the run: the end of the warm-up and the deadline; or with a fixed count, the
first message and the last receipt, or the last received message. CPU seconds are of the whole run, because they are
divided by the number of all messages.

A backlog shows whether sending slows down as a queue gets longer, what the queue costs in memory, and that every
message is delivered once, in the order sent.
"""

import json
import multiprocessing
import time
import urllib.request
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawArray
from threading import BrokenBarrierError
from typing import Literal

from tandemmq.bench.driver import process
from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.stomp import BenchError, OrderCheck
from tandemmq.bench.driver.worker import START_TIMEOUT_SECONDS, Shared, WorkerReport, work

SAMPLE_SECONDS = 0.05
ADMIN_TIMEOUT_SECONDS = 2.0
REPORT_TIMEOUT_SECONDS = 30.0
# Share of all messages over which the rates at the start and at the end are measured.
EDGE_SHARE = 0.1

Field = Literal["sent", "confirmed", "received"]


@dataclass(frozen=True, slots=True)
class Sample:
    """Progress of a run at one moment: numbers of messages sent, confirmed with a receipt, and received."""

    moment: float
    sent: int
    confirmed: int
    received: int


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Result of one run. Latencies are in milliseconds, None if there were none; rates are messages per second."""

    sent: int
    confirmed: int
    received: int
    seconds: float
    sent_per_second: float
    received_per_second: float
    receipt_p50_ms: float | None
    receipt_p99_ms: float | None
    receive_p50_ms: float | None
    receive_p99_ms: float | None
    receipt_p999_ms: float | None
    receipt_max_ms: float | None
    receive_p999_ms: float | None
    receive_max_ms: float | None
    driver_cpu_seconds: float
    server_cpu_seconds: float | None
    server_system_seconds: float | None
    server_waits: int | None
    server_preemptions: int | None
    server_peak_memory_bytes: int | None
    syncs: int | None
    messages_per_sync: float | None
    order: OrderCheck | None
    samples: list[Sample]
    receipt_seconds: list[float]
    """Seconds from each send to its receipt, in ascending order."""

    def figures(self) -> dict[str, object]:
        """Return all figures except samples and single receipts, for JSON."""
        shown: dict[str, object] = {
            name: getattr(self, name) for name in self.__slots__ if name not in ("order", "samples", "receipt_seconds")
        }
        if self.order is not None:
            shown["order"] = {"seen": self.order.seen, "skipped": self.order.skipped, "late": self.order.late}
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in shown.items()}


def run_load(plan: LoadPlan) -> LoadResult:
    """Run one load until every sent message was received, or no counter has changed for ``stall_seconds``.

    Raises BenchError if the broker refuses or closes a connection, or if no receipt arrives for ``stall_seconds``.
    """
    context = multiprocessing.get_context("fork")
    shared = Shared(
        sent=RawArray("Q", max(1, plan.producers)),
        confirmed=RawArray("Q", max(1, plan.producers)),
        received=RawArray("Q", max(1, plan.consumers)),
        start=context.Barrier(1 + len(_shares(plan))),
        stop=context.Event(),
    )
    workers: list[tuple[BaseProcess, Pipe]] = []
    try:
        for producers, consumers in _shares(plan):
            ours, theirs = context.Pipe(duplex=False)
            worker: BaseProcess = context.Process(
                target=work, args=(plan, producers, consumers, shared, theirs), daemon=True
            )
            worker.start()
            theirs.close()
            workers.append((worker, ours))
        return _measure(plan, shared, workers)
    finally:
        shared.stop.set()
        for worker, pipe in workers:
            worker.join(REPORT_TIMEOUT_SECONDS)
            if worker.is_alive():
                worker.kill()
                worker.join()
            pipe.close()


def _shares(plan: LoadPlan) -> list[tuple[list[int], list[int]]]:
    """Return the producers and consumers of each process, in even shares."""
    members = [("producer", number) for number in range(plan.producers)]
    members += [("consumer", number) for number in range(plan.consumers)]
    processes = min(plan.processes, len(members))
    if processes == 2 and plan.producers and plan.consumers:
        return [(list(range(plan.producers)), []), ([], list(range(plan.consumers)))]
    shares = []
    for part in range(processes):
        own = members[part * len(members) // processes : (part + 1) * len(members) // processes]
        producers, consumers = ([number for kind, number in own if kind == each] for each in ("producer", "consumer"))
        shares.append((producers, consumers))
    return shares


def _measure(plan: LoadPlan, shared: Shared, workers: list[tuple[BaseProcess, Pipe]]) -> LoadResult:
    try:
        shared.start.wait(START_TIMEOUT_SECONDS)
    except BrokenBarrierError:
        raise _first_error(workers) from None
    server_before = process.cost(plan.server_pid) if plan.server_pid else None
    syncs_before = syncs(plan.admin_url)
    go = time.monotonic()
    samples = _watch(plan, shared, workers, go)
    server = process.cost(plan.server_pid).since(server_before) if plan.server_pid and server_before else None
    syncs_after = syncs(plan.admin_url)
    shared.stop.set()
    reports = _reports(workers)
    last = samples[-1]
    if plan.count is None:
        start, stop = go + plan.warmup_seconds, go + plan.warmup_seconds + plan.seconds
        sent_rate = rate_between(samples, start, stop, "confirmed")
        received_rate = rate_between(samples, start, stop, "received")
    else:
        start = go
        stop = max(reached_at(samples, last.confirmed, "confirmed"), reached_at(samples, last.received, "received"))
        sent_rate = last.confirmed / max(1e-9, reached_at(samples, last.confirmed, "confirmed") - go)
        received_rate = last.received / max(1e-9, reached_at(samples, last.received, "received") - go)
    receipts = sorted(latency for report in reports for latency in report.receipt_latencies)
    # Latencies of messages that were in the queue before are left out: their age does not show the speed of delivery.
    receives = sorted(latency for report in reports for latency in report.receive_latencies if not plan.expected)
    synced = syncs_after - syncs_before if syncs_before is not None and syncs_after is not None else None
    return LoadResult(
        sent=last.sent,
        confirmed=last.confirmed,
        received=last.received,
        seconds=stop - start,
        sent_per_second=sent_rate,
        received_per_second=received_rate,
        receipt_p50_ms=_milliseconds(percentile(receipts, 0.50)),
        receipt_p99_ms=_milliseconds(percentile(receipts, 0.99)),
        receive_p50_ms=_milliseconds(percentile(receives, 0.50)),
        receive_p99_ms=_milliseconds(percentile(receives, 0.99)),
        receipt_p999_ms=_milliseconds(percentile(receipts, 0.999)),
        receipt_max_ms=_milliseconds(percentile(receipts, 1.0)),
        receive_p999_ms=_milliseconds(percentile(receives, 0.999)),
        receive_max_ms=_milliseconds(percentile(receives, 1.0)),
        driver_cpu_seconds=sum(report.cpu_seconds for report in reports),
        server_cpu_seconds=server.cpu_seconds if server else None,
        server_system_seconds=server.system_seconds if server else None,
        server_waits=server.waits if server else None,
        server_preemptions=server.preemptions if server else None,
        server_peak_memory_bytes=server.peak_memory_bytes if server else None,
        syncs=synced,
        messages_per_sync=last.confirmed / synced if synced and last.confirmed else None,
        order=_sum([check for report in reports for check in report.order]) if plan.checks_order else None,
        samples=samples,
        receipt_seconds=receipts,
    )


def _watch(plan: LoadPlan, shared: Shared, workers: list[tuple[BaseProcess, Pipe]], go: float) -> list[Sample]:
    """Read the counters until all messages are sent, confirmed and received, or no counter changes for
    ``stall_seconds``."""
    deadline = go + plan.warmup_seconds + plan.seconds
    samples = [Sample(go, 0, 0, sum(shared.received))]
    moved_at = go
    while True:
        time.sleep(SAMPLE_SECONDS)
        now = time.monotonic()
        sample = Sample(now, sum(shared.sent), sum(shared.confirmed), sum(shared.received))
        before = samples[-1]
        samples.append(sample)
        if any(pipe.poll() for _, pipe in workers) or not all(worker.is_alive() for worker, _ in workers):
            raise _first_error(workers)
        if (sample.confirmed, sample.received) != (before.confirmed, before.received):
            moved_at = now
        is_all_sent = sample.sent >= plan.count if plan.count is not None else now >= deadline
        is_all_confirmed = is_all_sent and sample.confirmed >= sample.sent
        if is_all_confirmed and (not plan.consumers or sample.received >= sample.sent + plan.expected):
            return samples
        if now - moved_at > plan.stall_seconds:
            if is_all_confirmed:
                return samples  # the caller sees in the counts that messages are missing
            raise BenchError(
                f"no receipt and no message for {plan.stall_seconds:g} s: "
                f"{sample.sent} sent, {sample.confirmed} confirmed, {sample.received} received"
            )


def _reports(workers: list[tuple[BaseProcess, Pipe]]) -> list[WorkerReport]:
    reports: list[WorkerReport] = []
    for _, pipe in workers:
        if not pipe.poll(REPORT_TIMEOUT_SECONDS):
            raise BenchError("a process of the driver does not answer")
        report = pipe.recv()
        if report.error:
            raise BenchError(report.error)
        reports.append(report)
    return reports


def _first_error(workers: list[tuple[BaseProcess, Pipe]]) -> BenchError:
    errors = []
    for _, pipe in workers:
        try:
            if pipe.poll(1.0):
                errors.append(pipe.recv().error)
        except EOFError:
            errors.append("a process of the driver ended early")
    return BenchError(next(filter(None, errors), "a process of the driver ended early"))


def _sum(checks: list[OrderCheck]) -> OrderCheck:
    return OrderCheck(
        sum(check.seen for check in checks), sum(check.skipped for check in checks), sum(check.late for check in checks)
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def syncs(admin_url: str | None) -> int | None:
    """Return the number of syncs of the broker's store so far, from ``GET /status``; None: not available."""
    if admin_url is None:
        return None
    try:
        with urllib.request.urlopen(f"{admin_url.rstrip('/')}/status", timeout=ADMIN_TIMEOUT_SECONDS) as answer:  # nosec B310
            found: int | None = json.load(answer)["counts"].get("journal_syncs_total")
    except (OSError, ValueError, KeyError):
        return None
    return found


# ---- figures from samples


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the nearest-rank percentile of ascending values; None if there are no values."""
    if not ordered:
        return None
    rank = max(1, -int(-share * len(ordered) // 1))
    return ordered[min(rank, len(ordered)) - 1]


def value_at(samples: Sequence[Sample], moment: float, field: Field) -> float:
    """Return the value of a counter at a moment, interpolated linearly between samples."""
    place = bisect_left(samples, moment, key=lambda sample: sample.moment)
    if place == 0:
        return float(getattr(samples[0], field))
    if place == len(samples):
        return float(getattr(samples[-1], field))
    before, after = samples[place - 1], samples[place]
    low, high = getattr(before, field), getattr(after, field)
    return float(low + (high - low) * (moment - before.moment) / (after.moment - before.moment))


def rate_between(samples: Sequence[Sample], start: float, stop: float, field: Field) -> float:
    """Return the messages per second between two moments."""
    if stop <= start:
        return 0.0
    return (value_at(samples, stop, field) - value_at(samples, start, field)) / (stop - start)


def reached_at(samples: Sequence[Sample], count: int, field: Field) -> float:
    """Return the moment at which a counter reached ``count``, with an error of at most the distance of two samples."""
    for before, after in pairwise(samples):
        high: int = getattr(after, field)
        if high >= count:
            low: int = getattr(before, field)
            share = max(0.0, (count - low) / (high - low)) if high > low else 0.0
            return before.moment + (after.moment - before.moment) * share
    return samples[-1].moment


def rate_of_share(samples: Sequence[Sample], first: float, last: float, field: Field) -> float:
    """Return the messages per second while a counter went from the share ``first`` of its final value to the share
    ``last``."""
    total: int = getattr(samples[-1], field)
    start = reached_at(samples, int(total * first), field)
    stop = reached_at(samples, int(total * last), field)
    return total * (last - first) / (stop - start) if stop > start else 0.0


# ---- a backlog


@dataclass(frozen=True, slots=True)
class BacklogResult:
    """Result of a backlog. Rates are messages per second."""

    fill: LoadResult
    drain: LoadResult
    sent_per_second_at_start: float
    sent_per_second_at_end: float

    @property
    def is_complete(self) -> bool:
        """True if every message was delivered once, and in the order of its producer."""
        order = self.drain.order
        assert order is not None, "a drain always checks the order"
        return order.seen == self.fill.confirmed and order.skipped == 0 and order.late == 0

    def figures(self) -> dict[str, object]:
        """Return all figures, for JSON."""
        return {
            "messages": self.fill.confirmed,
            "sent_per_second_at_start": round(self.sent_per_second_at_start, 1),
            "sent_per_second_at_end": round(self.sent_per_second_at_end, 1),
            "end_to_start": round(self.sent_per_second_at_end / self.sent_per_second_at_start, 3)
            if self.sent_per_second_at_start
            else None,
            "is_complete": self.is_complete,
            "fill": self.fill.figures(),
            "drain": self.drain.figures(),
        }


def run_backlog(plan: LoadPlan) -> BacklogResult:
    """Send ``plan.count`` messages, then drain the queues with one consumer for each. Raises BenchError."""
    assert plan.count is not None, "a backlog has a fixed number of messages"
    fill = run_load(replace(plan, consumers=0))
    drain = run_load(
        replace(plan, producers=0, consumers=plan.queues, count=0, expected=fill.confirmed, checks_order=True)
    )
    return BacklogResult(
        fill,
        drain,
        rate_of_share(fill.samples, 0.0, EDGE_SHARE, "confirmed"),
        rate_of_share(fill.samples, 1 - EDGE_SHARE, 1.0, "confirmed"),
    )
