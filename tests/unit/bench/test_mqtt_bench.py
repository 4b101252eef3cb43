"""The MQTT load: all that is sent arrives and is confirmed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandemmq.bench.compare import OURS
from tandemmq.bench.connection import Endpoint
from tandemmq.bench.mqtt import QOS, MqttTandemMQ, mqtt, run_line
from tandemmq.bench.mqtt_connection import answer, length, publish_start
from tandemmq.bench.mqtt_load import run_mqtt_load
from tandemmq.bench.plan import LoadPlan

PLAN = LoadPlan(Endpoint("", 0), 2, 2, 2, 100, 20, seconds=1.0, warmup_seconds=0.5, rate=100.0)


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
@pytest.mark.parametrize("case", QOS)
def test_all_that_is_sent_arrives(case: str) -> None:
    (run,) = mqtt([case], [OURS], 1, PLAN, lambda line: None)["runs"]
    assert run["problem"] is None
    assert run["sent_per_second"] > 0
    assert run["received_per_second"] > 0
    assert QOS[case] == 0 or run["lost"] == 0
    assert run["receive_p50_ms"] <= run["receive_p99_ms"] <= run["receive_max_ms"]
    assert case in run_line(run)


@pytest.mark.thorough
@pytest.mark.parametrize("qos", range(3))
def test_a_load_of_so_many_messages_ends_when_all_arrived(qos: int) -> None:
    with MqttTandemMQ() as server:
        result = run_mqtt_load(server.pid, replace(PLAN, endpoint=server.endpoint, rate=None, count=101), qos)
    assert (result.sent, result.received, result.lost) == (101, 101, 0)
    assert result.confirmed == (101 if qos else 0)
