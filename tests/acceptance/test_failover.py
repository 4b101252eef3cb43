"""The pair: one master, one standby, and clients that continue when the master is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import stomp
from click.testing import CliRunner

from tandemmq.cli import main
from tests.support.acceptance.broker_process import BrokerProcess, serving, starting, wait_until

Start = Callable[..., BrokerProcess]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path / "data", BrokerProcess) as start:
        yield start


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[BrokerProcess, ...]]:
    """Master and standby."""
    with serving(*(BrokerProcess(tmp_path / "data", name) for name in "ab")) as pair:
        yield pair


class Listener(stomp.ConnectionListener):
    """Notes what comes."""

    def __init__(self) -> None:
        self.receipts: list[str] = []
        self.bodies: list[str] = []
        self.receivers: list[threading.Thread] = []  # of connections that were lost

    def on_receipt(self, frame: stomp.utils.Frame) -> None:
        self.receipts.append(frame.headers["receipt-id"])

    def on_message(self, frame: stomp.utils.Frame) -> None:
        self.bodies.append(frame.body)

    def on_disconnected(self) -> None:
        self.receivers.append(threading.current_thread())


def connect(*brokers: BrokerProcess) -> tuple[stomp.Connection12, Listener]:
    connection = stomp.Connection12(
        [("127.0.0.1", broker.stomp) for broker in brokers],
        reconnect_sleep_initial=0.02,
        reconnect_sleep_increase=0.1,
        reconnect_attempts_max=100,
        heartbeats=(0, 0),
    )
    listener = Listener()
    connection.set_listener("notes", listener)
    connection.connect(wait=True)
    return connection, listener


def connect_again(connection: stomp.Connection12, listener: Listener) -> None:
    """Connect after a loss. stomp.py reports the loss in the thread that receives, which closes the socket afterwards:
    this would be the new socket if the client connected before."""

    def attempt() -> bool:
        for each in list(listener.receivers):
            each.join(10.0)
        try:
            connection.connect(wait=True)
        except (stomp.exception.StompException, OSError, AttributeError):
            return False
        return bool(connection.is_connected())

    wait_until(attempt, "the standby takes the client")


def send(connection: stomp.Connection12, listener: Listener, body: str) -> None:
    connection.send("/queue/q", body, receipt=body, persistent="true")
    wait_until(lambda: body in listener.receipts, f"the receipt of {body}")


@pytest.mark.promise("clients-go-on", "takeover-is-independent-of-size")
def test_stomp_py_goes_on_at_the_standby_when_the_master_is_killed(brokers: Start) -> None:
    """With brokers that are new interpreters, as an operator starts them."""
    master = brokers("a", popen=subprocess.Popen)
    master.wait_role("master")
    standby = brokers("b", popen=subprocess.Popen)
    status = standby.wait_role("standby")
    assert status["holder"]["name"] == "a"
    assert status["holder"]["pid"] == master.pid
    connection, listener = connect(master, standby)
    for number in range(20):
        send(connection, listener, f"before {number}")
    wait_until(lambda: (standby.status() or {})["standby"]["has_caught_up"], "the standby has caught up")
    assert "replay_seconds" in (standby.status() or {})["standby"]["takeover"]
    master.kill()
    wait_until(lambda: listener.receivers, "the connection is lost")
    connect_again(connection, listener)
    for number in range(20):
        send(connection, listener, f"after {number}")
    assert standby.wait_role("master")["epoch"] > 1
    connection.subscribe("/queue/q", id="1", ack="auto")
    wait_until(lambda: len(listener.bodies) >= 40, "all messages come")
    time.sleep(0.2)
    assert listener.bodies == [f"before {n}" for n in range(20)] + [f"after {n}" for n in range(20)]
    connection.disconnect()


@pytest.mark.promise("handover-loses-nothing")
def test_sigterm_hands_over_and_ends_with_0(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    master, standby = pair
    connection, listener = connect(master)
    send(connection, listener, "kept")
    started = time.monotonic()
    os.kill(master.pid, signal.SIGTERM)
    standby.wait_role("master", 5.0)
    outage = time.monotonic() - started
    assert master.wait() == 0
    print(f"standby is master {outage:.3f} s after SIGTERM")
    again, heard = connect(standby)
    again.subscribe("/queue/q", id="1", ack="auto")
    wait_until(lambda: heard.bodies == ["kept"], "the message is there")
    again.disconnect()


@pytest.mark.parametrize("how", [pytest.param("delete", marks=pytest.mark.promise("lost-lock-deposes")), "replace"])
def test_a_master_whose_lock_file_goes_is_deposed_and_stands_by(
    pair: tuple[BrokerProcess, BrokerProcess], tmp_path: Path, how: str
) -> None:
    master, standby = pair
    connection, listener = connect(master)
    send(connection, listener, "one")
    lock = tmp_path / "data" / "lock"
    if how == "replace":
        (tmp_path / "data" / "new").write_bytes(b"")
        os.replace(tmp_path / "data" / "new", lock)
    else:
        lock.unlink()
    standby.wait_role("master")
    master.wait_role("standby")
    wait_until(lambda: listener.receivers, "its clients are sent away")
    other, heard = connect(standby)
    send(other, heard, "two")
    other.subscribe("/queue/q", id="1", ack="auto")
    wait_until(lambda: heard.bodies == ["one", "two"], "nothing is lost")
    other.disconnect()
    standby.kill()
    assert master.wait_role("master")["epoch"] > 2


@pytest.mark.promise("one-master-counts")
def test_two_masters_by_force_never_mix_their_writes(brokers: Start) -> None:
    """No lock at all: only the fence keeps them apart. The one that is fenced off sends no receipt."""
    first = brokers("a", "--set", "locker.use_lock=false")
    first.wait_role("master")
    first.wait_log("unsafe")
    connection, listener = connect(first)
    for number in range(5):
        send(connection, listener, f"first {number}")
    first.kill(signal.SIGSTOP)
    second = brokers("b", "--set", "locker.use_lock=false")
    second.wait_role("master")
    other, heard = connect(second)
    for number in range(5):
        send(other, heard, f"second {number}")
    connection.send("/queue/q", "late", receipt="late", persistent="true")
    second.kill(signal.SIGSTOP)  # so that the first does not win the store back at once
    first.kill(signal.SIGCONT)
    wait_until(lambda: listener.receivers, "the deposed master hangs up")
    assert "late" not in listener.receipts
    first.stop()
    second.kill(signal.SIGCONT)
    other.subscribe("/queue/q", id="1", ack="auto")
    wait_until(lambda: len(heard.bodies) >= 10, "all that was confirmed is there")
    time.sleep(0.2)
    assert heard.bodies == [f"first {n}" for n in range(5)] + [f"second {n}" for n in range(5)]
    other.disconnect()


@pytest.mark.promise("journal-is-enough")
def test_a_standby_has_its_messages_although_its_index_is_deleted(brokers: Start, tmp_path: Path) -> None:
    master = brokers("a")
    master.wait_role("master")
    connection, listener = connect(master)
    for number in range(10):
        send(connection, listener, str(number))
    assert master.terminate() == 0
    os.rename(tmp_path / "data" / "index", tmp_path / "index-away")
    master.start().wait_role("master")
    again, heard = connect(master)
    again.subscribe("/queue/q", id="1", ack="auto")
    wait_until(lambda: heard.bodies == [str(n) for n in range(10)], "the journal alone is enough")
    again.disconnect()


@pytest.mark.promise("standby-names-the-master")
def test_a_broker_that_may_not_wait_says_who_is_master(brokers: Start) -> None:
    brokers("a").wait_role("master")
    other = brokers("b", "--set", "locker.fail_if_locked=true")
    assert other.wait() == 1
    assert "a (epoch 1" in other.log.read_text()


def test_a_port_in_use_fails_at_start(brokers: Start) -> None:
    first = brokers("a")
    first.wait_role("master")
    second = brokers("b", "--set", "broker.name=b")
    second.stop()
    second.stomp = first.stomp
    assert second.start().wait() == 1
    assert f"127.0.0.1:{first.stomp}" in second.log.read_text()


@pytest.mark.promise("one-name-one-broker")
def test_a_second_broker_of_a_name_is_refused_and_one_that_was_killed_is_not(brokers: Start, tmp_path: Path) -> None:
    first = brokers("a")
    first.wait_role("master")
    second = brokers("a")
    assert second.wait() == 2
    said = second.log.read_text()
    assert f"a broker named a is already running: pid {first.pid} on " in said
    assert "--name NAME" in said
    assert sorted(path.name for path in (tmp_path / "data" / "index").iterdir() if path.is_dir()) == ["a"]
    first.kill()
    second.start().wait_role("master")
    assert "in memory only" not in second.log.read_text()


@pytest.mark.promise("silent-holder-is-reported")
def test_the_standby_tells_of_a_master_that_is_stopped(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    master, standby = pair
    assert "holder_silent_seconds" not in (standby.status() or {})
    master.kill(signal.SIGSTOP)
    status = wait_until(
        lambda: found if (found := standby.status()) and "holder_silent_seconds" in found else None, "it is silent"
    )
    assert status["holder_silent_seconds"] >= 3.0
    assert "the holder has been silent for " in status["reason"]
    assert any(warning.startswith("a (") for warning in status["warnings"])
    words = ["lock", "status", "--admin", f"http://127.0.0.1:{standby.admin}"]
    assert "the holder has shown no sign of life for " in CliRunner().invoke(main, words).stdout
    assert json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)["holder_silent_seconds"] >= 3.0
    standby.wait_log("has been silent for ")
    master.kill(signal.SIGCONT)  # it goes on, or knows that it slept too long and lets go
    wait_until(lambda: "holder_silent_seconds" not in (standby.status() or {}), "somebody is heard")
