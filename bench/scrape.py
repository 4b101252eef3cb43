"""Time of a Prometheus scrape, and the delay of other clients meanwhile, by the number of destinations.

A client sends messages that are not persistent, and waits for each receipt: the longest wait shows the effect of a
scrape on all clients. It is measured without scrapes first.
"""

from __future__ import annotations

import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tandemmq.bench.driver.stomp import command_frame, connect, request
from tandemmq.bench.growth import send_frames
from tandemmq.bench.peers.tandemmq import TandemMQ
from tandemmq.bench.report import aligned, commit, machine

SIZES = (100, 1_000, 10_000)
SCRAPES = 20
# Each destination has its own metrics, or a scrape has only sums.
CASES = {"sums": (), "destinations": ("admin.metrics_destinations=>", "admin.metrics_destinations_max=100000")}

Say = Callable[[str], None]


def scrape(cases: Sequence[str], sizes: Sequence[int], say: Say) -> dict[str, Any]:
    """Return the figures of each case by size. Raises BenchError and OSError."""
    return {
        "scenario": "scrape",
        "machine": machine(),
        "commit": commit(),
        "cases": {case: list(_case(case, sizes, say)) for case in cases},
    }


def _case(case: str, sizes: Sequence[int], say: Say) -> Iterator[dict[str, Any]]:
    with TandemMQ(settings=CASES[case]) as server:
        there = 0
        for size in sizes:
            peer = connect(server.endpoint)
            send_frames(peer, _sends(there, size), size - there)
            there = size
            say(f"{case}, {size} queues")
            _scraped(server)
            with _Waits(server) as quiet:
                time.sleep(1.0)
            late = _late(server)
            with _Waits(server) as waits:
                scrapes = [_scraped(server) for _ in range(SCRAPES)]
            peer.close()
            yield {
                "destinations": size,
                "bytes": scrapes[-1][1],
                "scrape_ms_p50": round(statistics.median(seconds for seconds, _ in scrapes) * 1000, 1),
                "scrape_ms_max": round(max(seconds for seconds, _ in scrapes) * 1000, 1),
                "turns_late_by_20_ms": _late(server) - late,
                "longest_wait_ms": round(waits.longest * 1000, 1),
                "longest_wait_ms_without": round(quiet.longest * 1000, 1),
            }


def _sends(there: int, wanted: int) -> Iterator[bytes]:
    for number in range(there, wanted):
        yield command_frame("SEND", [("destination", f"/queue/scraped.{number}"), ("persistent", "true")])


def _scraped(server: TandemMQ) -> tuple[float, int]:
    """Scrape once; return seconds and bytes."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    began = time.perf_counter()
    with opener.open(f"{server.admin_url}/metrics", timeout=60) as answer:
        length = len(answer.read())
    return time.perf_counter() - began, length


def _late(server: TandemMQ) -> int:
    """Return how often the event loop was more than 20 ms late; it is sampled 20 times a second."""
    counts = dict(server.status()["loop_lag_seconds"]["buckets"])
    return int(counts["+Inf"] - counts["0.02"])


class _Waits:
    """``longest`` wait for a receipt within the block, in seconds."""

    def __init__(self, server: TandemMQ) -> None:
        self.longest = 0.0
        self._peer = connect(server.endpoint)
        self._is_over = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Waits:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()
        self._peer.close()

    def _run(self) -> None:
        while not self._is_over:
            began = time.perf_counter()
            request(self._peer, "SEND", [("destination", "/topic/scraped")], "r")
            self.longest = max(self.longest, time.perf_counter() - began)
            time.sleep(0.0005)


def table(figures: dict[str, Any]) -> list[str]:
    """Return the figures as aligned columns."""
    rows = [
        [
            "case",
            "destinations",
            "bytes",
            "scrape ms p50",
            "longest",
            "turns over 20 ms",
            "a client waits ms at most",
            "without",
        ]
    ]
    for case, steps in figures["cases"].items():
        rows += [[case, *(f"{value:,}" for value in step.values())] for step in steps]
    return aligned(rows)
