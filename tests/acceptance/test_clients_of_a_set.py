"""stomp.py over a replicated set: the master is killed, and what was confirmed stays so, in each acknowledge mode."""

from __future__ import annotations

import pytest
import stomp

from tests.acceptance.test_failover import Listener, connect, connect_again, send
from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.set_of_brokers import MemberProcess, SetOfBrokers
from tests.support.replication.process_fixtures import three as three
from tests.support.replication.process_fixtures import whole as whole

pytestmark = [pytest.mark.service, pytest.mark.timeout(600), pytest.mark.promise("quorum-keeps-confirmed")]


class Consumer(Listener):
    """Notes what came, with what an ACK names."""

    def __init__(self) -> None:
        super().__init__()
        self.acks: list[tuple[str, str]] = []

    def on_message(self, frame: stomp.utils.Frame) -> None:
        super().on_message(frame)
        self.acks.append((frame.body, frame.headers.get("ack", "")))


def consume(whole: SetOfBrokers, queue: str, mode: str) -> tuple[stomp.Connection12, Consumer]:
    connection, _ = connect(*whole.members)
    consumer = Consumer()
    connection.set_listener("notes", consumer)
    connection.subscribe(queue, id="1", ack=mode)
    return connection, consumer


def kill_master(whole: SetOfBrokers) -> MemberProcess:
    """Returns when another one is master."""
    dead = whole.wait_master()
    dead.kill()
    whole.wait_master(whole.others(dead))
    return dead


@pytest.mark.parametrize("mode", ["client", "client-individual"])
def test_what_was_acknowledged_does_not_come_again(three: SetOfBrokers, mode: str) -> None:
    queue = f"/queue/SET.{mode}"
    producer, noted = connect(*three.members)
    for number in range(10):
        producer.send(queue, str(number), receipt=str(number), persistent="true")
    wait_until(lambda: len(noted.receipts) == 10, "all are confirmed")
    connection, consumer = consume(three, queue, mode)
    wait_until(lambda: len(consumer.acks) == 10, "all come")
    # `client` acknowledges all up to there, `client-individual` that one alone.
    connection.ack(consumer.acks[4][1], receipt="acknowledged")
    wait_until(lambda: "acknowledged" in consumer.receipts, "that is confirmed")
    kill_master(three)
    wait_until(lambda: consumer.losses, "the connection is lost")
    connect_again(connection)
    before = len(consumer.bodies)
    connection.subscribe(queue, id="1", ack="auto")
    left = [str(number) for number in (range(5, 10) if mode == "client" else (0, 1, 2, 3, 5, 6, 7, 8, 9))]
    wait_until(lambda: len(consumer.bodies) - before >= len(left), "the rest comes")
    assert consumer.bodies[before:] == left
    connection.disconnect()


def test_what_is_sent_on_both_sides_of_a_kill_comes_once_and_in_order(three: SetOfBrokers) -> None:
    connection, listener = connect(*three.members)
    for number in range(20):
        send(connection, listener, f"before {number}")
    kill_master(three)
    wait_until(lambda: listener.losses, "the connection is lost")
    connect_again(connection)
    for number in range(20):
        send(connection, listener, f"after {number}")
    connection.subscribe("/queue/q", id="1", ack="auto")
    wait_until(lambda: len(listener.bodies) >= 40, "all messages come")
    assert listener.bodies == [f"before {n}" for n in range(20)] + [f"after {n}" for n in range(20)]
    connection.disconnect()


def test_a_transaction_is_whole_or_not_there(three: SetOfBrokers) -> None:
    queue = "/queue/SET.TX"
    connection, listener = connect(*three.members)
    for name in ("committed", "open"):
        connection.begin(transaction=name)
        for number in range(3):
            connection.send(queue, f"{name} {number}", transaction=name, persistent="true")
    connection.commit("committed", receipt="commit")
    wait_until(lambda: "commit" in listener.receipts, "the commit is confirmed")
    kill_master(three)
    wait_until(lambda: listener.losses, "the connection is lost")
    connect_again(connection)
    send(connection, listener, "elsewhere")
    connection.send(queue, "last", receipt="last", persistent="true")
    wait_until(lambda: "last" in listener.receipts, "the last is confirmed")
    connection.subscribe(queue, id="1", ack="auto")
    wait_until(lambda: "last" in listener.bodies, "all come")
    assert listener.bodies == [*(f"committed {n}" for n in range(3)), "last"]
    connection.disconnect()
