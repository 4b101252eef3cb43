"""The rules of a fair comparison, and one workload of it before real brokers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from tandemmq.bench.peers import fair
from tandemmq.bench.peers.brokers import HOME, JAVA
from tandemmq.bench.peers.fair import FULL, Result, Rule, calls_in, is_synced, measure, ratios, turns, warm_up
from tandemmq.bench.peers.loads import WORKLOADS, Window


def window(rate: float, cpu_us: float = 100.0, p99_ms: float = 2.0) -> Window:
    return Window(rate, rate, cpu_us, 10.0, 0.1, 0.1, 1.0, p99_ms, 1.0, p99_ms)


@pytest.mark.parametrize(
    ("rates", "windows"),
    [
        ([100, 100, 100], 3),
        ([100, 96, 99], 3),
        ([100, 95, 100, 96, 100], 5),  # 5 % is not less than 5 %
        ([50, 70, 90, 94, 93, 500], 5),
        ([100, 106, 112, 118, 112], None),
    ],
)
def test_a_broker_is_warm_when_three_windows_in_a_row_are_alike(rates: list[float], windows: int | None) -> None:
    result, taken = Result(), iter(rates)
    warm_up(result, replace(FULL, windows_max=len(rates)), lambda: window(next(taken)))
    assert (result.is_warm, len(result.windows)) == (windows is not None, windows or len(rates))


def test_the_warm_up_ends_after_so_many_windows() -> None:
    result, rates = Result(), count(100, 10)
    warm_up(result, FULL, lambda: window(next(rates) * 1.2 ** len(result.windows)))
    assert (result.is_warm, len(result.windows)) == (False, 30)


def test_at_a_given_rate_a_broker_is_warm_by_its_cpu() -> None:
    result, costs = Result(), iter([300.0, 200.0, 150.0, 149.0, 148.0])
    warm_up(result, FULL, lambda: window(1_000, next(costs)), "cpu_us")
    assert (result.is_warm, len(result.windows)) == (True, 5)


def test_brokers_take_turns_in_the_same_order() -> None:
    assert list(turns("AB", 3)) == list("ABABAB")
    assert FULL.rounds >= 5


def result(*rates: float, is_warm: bool = True, problem: str | None = None, p99_ms: float = 2.0) -> Result:
    return Result([], is_warm, [window(rate, 1e6 / rate, p99_ms) for rate in rates], problem=problem)


@pytest.mark.parametrize(
    ("ours", "peer", "expected"),
    [
        (result(200, 400, 300), result(100, 150, 90, p99_ms=6.0), (3.0, 3.0, 3.0, 3.0)),
        (result(300), result(100, is_warm=False), None),
        (result(300, is_warm=False), result(100), None),
        (result(300), result(100, problem="it hung up"), None),
        (result(300), result(), None),
    ],
)
def test_only_warm_brokers_have_a_ratio(ours: Result, peer: Result, expected: tuple[float, ...] | None) -> None:
    found = ratios({"compiled": ours, "activemq": peer})["compiled"]["activemq"]
    assert (found and tuple(found.values())) == expected


def test_amqp_is_a_multiple_of_stomp() -> None:
    medians = (
        {"rate": 90, "cpu_us": 24.0, "step_p99_ms": 3.0, "receive_p99_ms": None},
        dict(zip(FIGURES, (100, 20, 2, 1), strict=True)),
    )
    amqp, stomp = ({"brokers": {"compiled": {"medians": each}, "artemis": {"medians": each}}} for each in medians)
    found = fair.of_stomp({"amqp-windowed": amqp, "stomp-windowed": stomp, "amqp-1000": amqp})
    assert found == {"amqp-windowed": {"compiled": {"rate": 0.9, "cpu_us": 1.2, "step_p99_ms": 1.5}}}


FIGURES = ("rate", "cpu_us", "step_p99_ms", "receive_p99_ms")

STRACE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 70.16    0.087251         822       106           fdatasync
 29.56    0.036766         343       107         7 io_uring_enter
  0.28    0.000347         347         1           fsync
------ ----------- ----------- --------- --------- ----------------
100.00    0.124364         581       214         7 total
"""


@pytest.mark.parametrize(
    ("calls", "confirmed", "outstanding", "expected"),
    [
        (calls_in(STRACE), 107 * 8, 8, True),
        (calls_in(STRACE), 107 * 8 + 1, 8, False),  # more messages than can have shared the syncs
        (calls_in(STRACE), 1_000_000, None, True),
        (calls_in(""), 1, 8, False),
        ({"io_uring_enter": 100, "sync_file_range": 100}, 1, None, False),  # neither waits for the disk
    ],
)
def test_syncs_prove_what_was_confirmed(
    calls: dict[str, int], confirmed: int, outstanding: int | None, expected: bool
) -> None:
    assert is_synced(calls, confirmed, outstanding) is expected


def test_calls_are_counted_by_name() -> None:
    assert calls_in(STRACE) == {"fdatasync": 106, "io_uring_enter": 107, "fsync": 1}


def test_after_its_time_a_run_begins_no_further_workload() -> None:
    now = iter([0.0, 1.0, 100.0])
    cases, rule = ["stomp-waiting", "stomp-windowed"], Rule(seconds_max=60.0)
    figures = fair.fair([], cases, rule, lambda line: None, lambda: next(now))
    assert list(figures["workloads"]) == ["stomp-waiting"]
    assert figures["left_out"] == ["stomp-windowed"]


@pytest.mark.service
@pytest.mark.timeout(300)
def test_a_workload_is_measured_before_our_broker_and_activemq(require_service: Callable[[object, str], None]) -> None:
    require_service(JAVA.exists() and HOME.exists(), f"ActiveMQ is not installed ({HOME}, {JAVA})")
    for program in ("gcc", "strace"):
        require_service(shutil.which(program), f"{program} is not installed")
    rule = Rule(1.0, 0.2, tolerance=2.0, rounds=2, proof_seconds=1.0)
    said: list[str] = []
    found = measure(["tree", "activemq"], WORKLOADS["stomp-windowed"], rule, said.append)
    assert [(name, each.problem) for name, each in found.items()] == [("tree", None), ("activemq", None)]
    for each in found.values():
        assert each.is_synced or "ptrace" in str(each.unproved), "unless this user may not trace, both sync"
        assert (each.is_warm, len(each.windows), len(each.rounds)) == (True, 3, 2)
        assert all(one.rate > 0 and one.cpu_us > 0 and (one.step_p99_ms or 0) > 0 for one in each.rounds)
    assert [line.split()[0] for line in said] == ["tree", "activemq"] * 3
    assert ratios(found)["tree"]["activemq"] is not None
