"""What the JMS comparison makes of its runs."""

import pytest

from tandemmq.bench.jms import ratios, run_line


def run(broker: str, number: int, sent: float, p99: float) -> dict[str, object]:
    return {
        "case": "sync", "broker": broker, "round": number, "problem": None, "sent_per_second": sent,
        "received_per_second": sent, "send_p50_ms": 1.0, "send_p99_ms": p99, "cpu_us_per_message": 100.0,
    }  # fmt: skip


def test_ratios_are_of_the_medians_and_above_one_for_us() -> None:
    ours = [run("tandemmq", number, sent, 2.0) for number, sent in enumerate((30.0, 90.0, 40.0))]

    found = ratios([*ours, run("activemq", 1, 10.0, 6.0)])["tandemmq"]

    assert found["activemq"]["sync"]["sent_per_second"] == pytest.approx(4.0)
    assert found["activemq"]["sync"]["send_p99_ms"] == pytest.approx(3.0)
    assert found["activemq"]["sync"]["cpu_us_per_message"] == pytest.approx(1.0)


def test_a_run_that_failed_is_told_and_counts_for_nothing() -> None:
    failed = {"case": "sync", "broker": "tandemmq", "round": 2, "problem": "sent 10, received 9\nand more"}

    found = ratios([run("tandemmq", 1, 30.0, 2.0), failed, run("activemq", 1, 10.0, 6.0)])["tandemmq"]

    assert found["activemq"]["sync"]["sent_per_second"] == pytest.approx(3.0)
    assert run_line(failed).endswith("– sent 10, received 9")


def test_each_peer_has_its_ratios() -> None:
    peers = [run("activemq", 1, 15.0, 2.0), run("activemq-stored", 1, 10.0, 2.0)]

    found = ratios([run("tandemmq", 1, 30.0, 2.0), run("tandemmq-compiled", 1, 60.0, 2.0), *peers])

    assert found["tandemmq"]["activemq"]["sync"]["sent_per_second"] == pytest.approx(2.0)
    assert found["tandemmq"]["activemq-stored"]["sync"]["sent_per_second"] == pytest.approx(3.0)
    assert found["tandemmq-compiled"]["activemq"]["sync"]["sent_per_second"] == pytest.approx(4.0)


def test_a_case_that_only_a_peer_ended_has_no_ratio() -> None:
    failed = {"case": "sync", "broker": "tandemmq", "round": 1, "problem": "late"}

    assert ratios([failed, run("activemq", 1, 30.0, 2.0)])["tandemmq"]["activemq"]["sync"]["sent_per_second"] is None
    assert ratios([run("tandemmq", 1, 30.0, 2.0)]) == {"tandemmq": {}}
