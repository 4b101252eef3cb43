"""The blocking client against real brokers."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.peers.server import HOST, Server, free_port
from broker.client import BrokerError, Client, NoBroker

FEW = "maxReconnectAttempts=2&initialReconnectDelay=10"


def url_of(*servers: Server, options: str = "maxReconnectAttempts=1000&maxReconnectDelay=20") -> str:
    return f"failover:({','.join(f'stomp://{HOST}:{server.port}' for server in servers)})?{options}"


def drain(client: Client, seconds: float = 1.0) -> list[bytes]:
    bodies = []
    while (message := client.receive(seconds)) is not None:
        bodies.append(message.body)
        client.acknowledge(message)
    return bodies


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that accepts and then closes, as a broker that is going down."""
    with socket.create_server((HOST, 0)) as listener:
        listener.settimeout(0.1)
        is_over = threading.Event()

        def turn_away() -> None:
            while not is_over.is_set():
                try:
                    listener.accept()[0].close()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=turn_away)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            is_over.set()
            thread.join()


def test_what_is_sent_is_received_with_its_headers_in_order(broker: Server) -> None:
    bodies = [b"one", "zwölf".encode(), b"with\0nul", b"", b"\xff\xfe"]
    with Client(url_of(broker)) as client:
        for body in bodies:
            client.send("/queue/client.order", body, {"colour": "a:b\\c\nd"})
        client.flush()
        assert client.unconfirmed == 0

        client.subscribe("/queue/client.order")
        received = []
        while len(received) < len(bodies):
            message = client.receive(5)
            assert message is not None
            assert message.headers["colour"] == "a:b\\c\nd"
            assert client.acknowledge(message)
            received.append(message.body)

    assert received == bodies


def test_what_was_not_acknowledged_comes_again(broker: Server) -> None:
    with Client(url_of(broker)) as client:
        client.send("/queue/client.again", b"kept")
        client.send("/queue/client.again", b"done")
        client.flush()
    with Client(url_of(broker)) as client:
        client.subscribe("/queue/client.again")
        first, second = client.receive(5), client.receive(5)
        assert first is not None
        assert second is not None
        client.acknowledge(second)

    with Client(url_of(broker)) as client:
        client.subscribe("/queue/client.again")
        assert drain(client) == [b"kept"]


def test_a_wait_for_a_message_ends_in_time(broker: Server) -> None:
    with Client(url_of(broker)) as client:
        client.subscribe("/queue/client.nothing")

        assert client.receive(0.05) is None


def test_nobody_there_is_said_once_the_attempts_are_used_up() -> None:
    said: list[str] = []
    url = f"failover:(stomp://{HOST}:{free_port()})?{FEW}"
    with Client(url, notice=said.append) as client, pytest.raises(NoBroker, match="refused"):
        client.send("/queue/a", b"x")

    assert len(said) == 1
    assert "trying again" in said[0]


def test_a_port_that_closes_at_once_is_no_broker() -> None:
    with silent_port() as port, Client(f"stomp://{HOST}:{port}") as client, pytest.raises(NoBroker):
        client.connect()


def test_the_timeout_of_the_url_ends_a_wait_without_a_limit_of_attempts() -> None:
    with Client(f"failover:(stomp://{HOST}:{free_port()})?timeout=100") as client, pytest.raises(NoBroker):
        client.send("/queue/a", b"x")


def test_the_next_address_is_tried_when_one_does_not_answer(broker: Server) -> None:
    with silent_port() as port:
        url = f"failover:(stomp://{HOST}:{free_port()},stomp://{HOST}:{port},stomp://{HOST}:{broker.port})?randomize=false"
        with Client(url) as client:
            assert client.connect().port == broker.port


def test_a_refusal_reaches_the_caller_and_is_not_repeated(broker: Server) -> None:
    with Client(url_of(broker)) as client:
        client.subscribe("/queue/client.refused", headers={"selector": "colour = = 'red'"})
        with pytest.raises(BrokerError):
            client.receive(5)


def test_auto_acknowledgement_is_not_offered(broker: Server) -> None:
    with Client(url_of(broker)) as client, pytest.raises(ValueError, match="client-individual"):
        client.subscribe("/queue/a", "auto")


def test_killing_the_master_loses_nothing_that_was_sent(pair: tuple[Server, Server]) -> None:
    master, standby = pair
    said: list[str] = []
    bodies = [b"%d" % number for number in range(600)]
    with Client(url_of(master, standby), window=50, notice=said.append) as client:
        for number, body in enumerate(bodies):
            if number == 300:
                os.kill(master.pid, signal.SIGKILL)
            client.send("/queue/client.failover", body)
        client.flush()

        client.subscribe("/queue/client.failover")
        received = drain(client)

    assert received == bodies, "none is missing, and what was stored before its receipt was lost is not there twice"
    assert any(text.startswith("connection to") for text in said)
    assert any(f"reconnected to stomp://{HOST}:{standby.port}" in text for text in said)
