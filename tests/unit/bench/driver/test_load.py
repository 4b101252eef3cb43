"""The driver with a real broker: its counts match the messages, and its figures match the samples."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.bench.driver.load import (
    Sample,
    percentile,
    rate_between,
    rate_of_share,
    reached_at,
    run_backlog,
    run_load,
    value_at,
)
from tandemmq.bench.driver.outage import run_outage
from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.stomp import BenchError, Endpoint
from tandemmq.bench.jms_load import run_jms_load
from tandemmq.bench.mqtt_load import answer, length, publish_start, run_mqtt_load
from tandemmq.bench.peers.ports import free_port
from tandemmq.bench.peers.server import HOST, Measured, Server
from tests.support import forked
from tests.support.services.pairs import TandemMQ


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with TandemMQ(tmp_path_factory.mktemp("broker")) as server:
        yield server


def plan_of(server: Server, name: str) -> LoadPlan:
    return LoadPlan(
        server.endpoint,
        producers=2,
        consumers=2,
        queues=2,
        window=20,
        count=601,
        destination=f"/queue/{name}",
        server_pid=server.pid,
        stall_seconds=10,
    )


@pytest.mark.parametrize(
    ("version", "mode", "processes"),
    [("1.1", "client-individual", 1), ("1.1", "client", 2), ("1.2", "client", 1), ("1.2", "auto", 2)],
)
def test_every_message_is_sent_confirmed_and_received_once(
    broker: Server, version: str, mode: str, processes: int
) -> None:
    plan = replace(
        plan_of(broker, f"load.{version}.{mode}.{processes}"),
        endpoint=replace(broker.endpoint, version=version),
        acknowledgement=mode,
        processes=processes,
        checks_order=True,
    )

    result = run_load(plan)

    assert (result.sent, result.confirmed, result.received) == (601, 601, 601)
    assert result.order is not None
    assert (result.order.seen, result.order.skipped, result.order.late) == (601, 0, 0)
    assert result.receipt_p50_ms is not None
    assert result.server_peak_memory_bytes
    # Acknowledged messages are removed: a second reader finds nothing.
    assert run_load(replace(plan, producers=0, count=0, expected=1, stall_seconds=0.2)).received == 0


def test_a_time_instead_of_a_count_ends_with_all_of_it_received(broker: Server) -> None:
    result = run_load(replace(plan_of(broker, "load.time"), count=None, seconds=0.5, warmup_seconds=0.1))

    assert result.sent == result.confirmed == result.received > 0
    assert result.seconds == pytest.approx(0.5)


def test_a_backlog_comes_out_once_and_in_order(broker: Server) -> None:
    result = run_backlog(replace(plan_of(broker, "load.backlog"), count=2000, queues=1))

    assert result.is_complete
    assert (result.fill.received, result.drain.received) == (0, 2000)


def test_a_broker_that_is_not_there_is_an_error_in_words() -> None:
    with pytest.raises(BenchError, match="refused"):
        run_load(LoadPlan(Endpoint(HOST, free_port())))


def test_the_command_prints_json(broker: Server) -> None:
    command = [sys.executable, "-m", "tandemmq", "bench", "--port", str(broker.port), "--count", "200", "--json"]
    ended = forked.run(command, timeout=60)

    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    assert (figures["scenario"], figures["received"]) == ("windowed", 200)


def test_at_a_rate_messages_are_sent_when_they_are_due_and_latencies_count_from_then(broker: Server) -> None:
    plan = plan_of(broker, "load.rate")
    assert [plan.rate, replace(plan, rate=100.0).due(1, 2)] == [None, pytest.approx(0.05)]

    result = run_load(replace(plan, count=None, seconds=0.4, warmup_seconds=0.2, rate=500.0))

    assert result.sent == result.confirmed == result.received
    assert result.sent in (300, 301), "what is due at the very end depends on how the clock rounds"
    assert result.receipt_p50_ms is not None
    assert result.receipt_max_ms is not None
    assert 0 < result.receipt_p50_ms <= result.receipt_max_ms
    assert result.receive_max_ms is not None


def test_who_stands_still_is_measured_with_all_that_was_due_meanwhile(broker: Server) -> None:
    """A client that sends at fixed times sees these waits, too: there is no coordinated omission."""
    is_over = threading.Event()

    def stop_and_continue() -> None:
        while not is_over.wait(0.1):  # all the time, because a busy machine may start the load late
            os.kill(broker.pid, signal.SIGSTOP)
            is_over.wait(0.4)
            os.kill(broker.pid, signal.SIGCONT)

    stopping = threading.Thread(target=stop_and_continue)
    stopping.start()
    plan = replace(plan_of(broker, "load.still"), count=None, seconds=0.75, warmup_seconds=0.0, rate=400.0)
    try:
        result = run_load(plan)
    finally:
        is_over.set()
        stopping.join()
    assert result.confirmed == 300
    # Most of them were due while it stood; of a client that waits for its answers, a fifth would be late.
    assert result.receipt_p50_ms is not None
    assert result.receipt_p50_ms > 50


# ---- The outage scenario against a real pair


def test_a_killed_master_is_survived_and_its_standby_goes_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    standby = TandemMQ(tmp_path / "b", data=data, broker="b")
    with TandemMQ(tmp_path / "a", data=data, broker="a") as master:
        try:
            standby.start()
            standby.await_standby()

            result = run_outage([master.endpoint, standby.endpoint], master.pid, seconds_before=0.3, seconds_after=0.1)
        finally:
            standby.discard()

    assert result.survivor.endswith(f":{standby.port}")
    assert result.confirmed_before > 0
    assert result.confirmed_after > 0
    assert result.outage_seconds >= result.until_connected_seconds > 0


def test_nobody_at_the_addresses_is_an_error_in_words() -> None:
    with pytest.raises(BenchError, match="no broker answers"):
        run_outage([Endpoint("127.0.0.1", free_port())], victim_pid=2**22, patience_seconds=0.1)


# ---- The MQTT load: all that is sent arrives and is confirmed


@pytest.mark.parametrize(
    ("count", "encoded"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\1"), (16_383, b"\xff\x7f"), (16_384, b"\x80\x80\1")]
)
def test_lengths_are_those_of_the_standard(count: int, encoded: bytes) -> None:
    assert length(count) == encoded


def test_packets_are_those_of_the_standard() -> None:
    assert publish_start("a/b", 1, 5) == b"\x32\x0c\0\3a/b"
    assert publish_start("a/b", 0, 5) == b"\x30\x0a\0\3a/b"
    assert answer(6, b"\0\1") == b"\x62\2\0\1"  # PUBREL has a flag


@pytest.mark.thorough
@pytest.mark.parametrize("qos", range(3))
def test_a_load_of_so_many_messages_ends_when_all_arrived(qos: int) -> None:
    with Measured() as server:
        plan = LoadPlan(Endpoint(HOST, server.ports["mqtt"]), 2, 2, 2, 100, 20, count=101)
        result = run_mqtt_load(server.pid, plan, qos)
    assert (result.sent, result.received) == (101, 101)
    assert result.confirmed == (101 if qos else 0)


@pytest.mark.parametrize("window", [1, 20])
def test_a_jms_load_of_so_many_messages_ends_when_all_arrived(window: int) -> None:
    with Measured() as server:
        plan = LoadPlan(Endpoint(HOST, server.ports["jms"]), 2, 2, 2, 100, window, count=101)
        result = run_jms_load(server.pid, plan)
    assert (result.sent, result.received) == (101, 101)
    assert result.confirmed == (101 if window == 1 else 0)


# ---- figures from samples

# 100 messages a second for ten seconds, then 50 for ten more.
SAMPLES = [Sample(float(second), 0, min(second, 10) * 100 + max(0, second - 10) * 50, 0) for second in range(21)]


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2.0), (0.99, 4.0), (0.0, 1.0), (1.0, 4.0), (0.25, 1.0)])
def test_a_percentile_is_a_value_that_was_measured(share: float, expected: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], share) == expected


def test_nothing_has_no_percentile() -> None:
    assert percentile([], 0.5) is None


@given(st.lists(st.floats(0, 1000), min_size=1), st.floats(0, 1))
def test_a_percentile_has_its_share_at_or_below_it(values: list[float], share: float) -> None:
    found = percentile(sorted(values), share)

    assert found is not None
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6


def test_a_counter_is_known_between_samples() -> None:
    assert value_at(SAMPLES, 2.5, "confirmed") == 250
    assert value_at(SAMPLES, -1, "confirmed") == 0
    assert value_at(SAMPLES, 99, "confirmed") == 1500


def test_rates_are_taken_between_moments_and_between_shares() -> None:
    assert rate_between(SAMPLES, 1.0, 3.0, "confirmed") == pytest.approx(100)
    assert rate_between(SAMPLES, 3.0, 3.0, "confirmed") == 0
    assert rate_of_share(SAMPLES, 0.0, 0.1, "confirmed") == pytest.approx(100)
    assert rate_of_share(SAMPLES, 0.9, 1.0, "confirmed") == pytest.approx(50)


def test_the_moment_a_count_was_reached_lies_between_two_samples() -> None:
    assert reached_at(SAMPLES, 250, "confirmed") == pytest.approx(2.5)
    assert reached_at(SAMPLES, 0, "confirmed") == 0
    assert reached_at(SAMPLES, 9999, "confirmed") == 20
