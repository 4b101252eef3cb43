"""Run of a load in separate processes, and its figures.

Rates are taken between two moments of the run: after the warm-up and at the deadline, or, with a fixed count, from the
first message to the last receipt and the last message received. CPU seconds are of the whole run, from the first
message to the last, so that they divide by all messages.
"""

import json
import multiprocessing
import time
import urllib.request
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawArray
from threading import BrokenBarrierError

from tandemmq.bench import process
from tandemmq.bench.connection import BenchError
from tandemmq.bench.frames import OrderCheck
from tandemmq.bench.plan import LoadPlan
from tandemmq.bench.statistics import Sample, percentile, rate_between, reached_at
from tandemmq.bench.worker import START_TIMEOUT_SECONDS, Shared, WorkerReport, work

SAMPLE_SECONDS = 0.05
ADMIN_TIMEOUT_SECONDS = 2.0
REPORT_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Result of one run. Latencies are milliseconds, None if there were none; rates are messages a second."""

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

    def figures(self) -> dict[str, object]:
        """Return everything but the samples, for a program."""
        shown: dict[str, object] = {
            name: getattr(self, name) for name in self.__slots__ if name not in ("order", "samples")
        }
        if self.order is not None:
            shown["order"] = {"seen": self.order.seen, "skipped": self.order.skipped, "late": self.order.late}
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in shown.items()}


def run_load(plan: LoadPlan) -> LoadResult:
    """Run one load to its end: until every sent message was received, or nothing moved for a while.

    Raises BenchError when the broker refuses, closes a connection, or no receipt comes for ``stall_seconds``.
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
    """Return the producers and consumers of each process; producers first, in even shares."""
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
    # The age of messages that were in the queue before does not show how fast it is delivered.
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
    )


def _watch(plan: LoadPlan, shared: Shared, workers: list[tuple[BaseProcess, Pipe]], go: float) -> list[Sample]:
    """Read the counters until all is sent, confirmed and received, or nothing moves for ``stall_seconds``."""
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
                return samples  # the counts show the caller that messages are missing
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
    """Return the number of syncs of the broker's store so far, from ``GET /status``; None if it has none."""
    if admin_url is None:
        return None
    try:
        with urllib.request.urlopen(f"{admin_url.rstrip('/')}/status", timeout=ADMIN_TIMEOUT_SECONDS) as answer:  # nosec B310
            found: int | None = json.load(answer)["counts"].get("journal_syncs_total")
    except (OSError, ValueError, KeyError):
        return None
    return found
