"""``python -m tandemmq.bench --scenario beside``: latency of messages at a given rate while the broker has other work.

quiet        nothing else
checkpoints  one each second, over 200,000 messages without a consumer
rotation     journal files of 1 MiB, so that one ends every second
compaction   20 files of 32 MiB, each with one message that no consumer takes
standby      a standby starts, over a journal of 500 MB
unscrubbed   a journal of 250 MB that is not read
scrub        the same, read from the disk by the scrubber, at its default rate
drain        1,000,000 messages of another queue are consumed meanwhile, as fast as possible

Latencies count from the moment at which a message was due (bench.plan); each case has its own broker.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tandemmq.bench.driver.load import run_load
from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.journals import FILE_BYTES, write_journal
from tandemmq.bench.peers.server import TREE, TandemMQ
from tandemmq.bench.report import Say, head

BODY_BYTES = 1024
RECORD_BYTES = 1_290  # size of such a message in the journal
WAITING_MESSAGES = 200_000
DRAINED_MESSAGES = 1_000_000
COMPACTED_FILES = 20
FOLLOWED_BYTES = 500_000_000
RARELY = "store.checkpoint_interval=1h"

Meanwhile = Callable[[TandemMQ, Path, LoadPlan], None]


@dataclass(frozen=True, slots=True)
class Case:
    """A case. ``stored``: number of messages in a journal that is written before the broker starts; only each
    ``live_every``-th is not removed. ``filled``: number of messages that are sent before the load. ``meanwhile`` runs
    on a thread during the load."""

    settings: Sequence[str] = (RARELY,)
    stored: int = 0
    live_every: int = 1
    filled: int = 0
    meanwhile: Meanwhile | None = None


def _stand_by(server: TandemMQ, data: Path, plan: LoadPlan) -> None:
    standby = TandemMQ(data=data, broker="second")
    try:
        standby.start()
        standby.await_standby(has_caught_up=True)
    finally:
        standby.discard()


def _drain(server: TandemMQ, data: Path, plan: LoadPlan) -> None:
    run_load(
        LoadPlan(
            server.endpoint, producers=0, count=0, queues=1, destination="/queue/drained", expected=DRAINED_MESSAGES
        )
    )


_PER_FILE = FILE_BYTES // (RECORD_BYTES + 70)
CASES: Mapping[str, Case] = {
    "quiet": Case(),
    "checkpoints": Case(("store.checkpoint_interval=1s",), stored=WAITING_MESSAGES),
    "rotation": Case((RARELY, "store.journal_max_file_length=1mb")),
    "compaction": Case((), stored=COMPACTED_FILES * _PER_FILE, live_every=_PER_FILE),
    "standby": Case((RARELY,), stored=FOLLOWED_BYTES // RECORD_BYTES, meanwhile=_stand_by),
    "unscrubbed": Case((RARELY, "store.scrub_rate=0"), stored=WAITING_MESSAGES),
    "scrub": Case((RARELY, "store.scrub_interval=1ms"), stored=WAITING_MESSAGES),
    "drain": Case((RARELY,), filled=DRAINED_MESSAGES, meanwhile=_drain),
}


def beside(
    cases: Sequence[str], rate: float, seconds: float, rounds: int, tree: Path | None, say: Say
) -> dict[str, Any]:
    """Run all rounds of all cases, alternating between the cases. ``tree``: source tree of the broker; None: this one.
    Raises BenchError."""
    runs = []
    for number in range(1, rounds + 1):
        for name in cases:
            figures = _run(CASES[name], rate, seconds, tree or TREE)
            runs.append({"case": name, "round": number, **figures})
            say(f"round {number}  {name:<12} p99 {figures['receipt_p99_ms']:7.2f} ms")
    return {
        **head("beside"),
        "compiled": tree is not None,
        "rate": rate,
        "runs": runs,
    }


def _run(case: Case, rate: float, seconds: float, tree: Path) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-beside-", ignore_cleanup_errors=True) as directory:
        data = Path(directory, "data")
        if case.stored:
            write_journal(data, case.stored, BODY_BYTES, live_every=case.live_every)
        with TandemMQ(data=data, tree=tree, settings=case.settings) as server:
            plan = LoadPlan(
                server.endpoint,
                rate=rate,
                seconds=seconds,
                processes=2,
                server_pid=server.pid,
                admin_url=server.admin_url,
            )
            if case.filled:
                drained = replace(plan, rate=None, processes=1, queues=1, destination="/queue/drained")
                run_load(replace(drained, consumers=0, count=case.filled, body_bytes=100))
            with _running(case.meanwhile, server, data, plan):
                return run_load(plan).figures()


@contextmanager
def _running(meanwhile: Meanwhile | None, server: TandemMQ, data: Path, plan: LoadPlan) -> Iterator[None]:
    """Run ``meanwhile`` within this context, wait for its end, and raise its error."""
    failed: list[Exception] = []

    def work(meanwhile: Meanwhile) -> None:
        try:
            meanwhile(server, data, plan)
        except (BenchError, OSError) as problem:
            failed.append(problem)

    thread = threading.Thread(target=work, args=(meanwhile,)) if meanwhile is not None else None
    if thread is not None:
        thread.start()
    try:
        yield
    finally:
        if thread is not None:
            thread.join()
    if failed:
        raise failed[0]


COLUMNS = (
    "case", "round",
    "receipt_p50_ms", "receipt_p99_ms", "receipt_p999_ms", "receipt_max_ms", "receive_p99_ms", "receive_max_ms",
)  # fmt: skip
