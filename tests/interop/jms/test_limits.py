"""Limits that a broker of ours tells its JMS clients of: sends that fail, producers that are seen to wait, consumers
that are cut off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.broker_process import wait_until
from tests.interop.jms.jvm import JmsError, Jvm
from tests.interop.jms.peers import TandemMQ

pytestmark = pytest.mark.service

BODY = "x" * 10_000
SETTINGS = """\
[[destinations]]
queue = "FAILING.>"
memory_limit = 65536
send_fail_if_no_space = true

[[destinations]]
queue = "LATE.>"
memory_limit = 65536
send_fail_if_no_space_after_timeout = 200

[[destinations]]
queue = "WAITING.>"
memory_limit = 65536

[[destinations]]
queue = "SLOW.>"
[destinations.slow_consumer_strategy]
max_slow_duration = 1000
"""


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TandemMQ]:
    peer = TandemMQ(tmp_path_factory.mktemp("limited") / "data", settings=SETTINGS)
    peer.wait()
    yield peer
    peer.close()


@pytest.mark.parametrize(("kind", "told"), [("FAILING", "memory_limit is 65536"), ("LATE", "no room since 20")])
def test_a_send_without_room_fails_by_the_name_of_the_limit(
    jvm: Jvm, limited: TandemMQ, name: str, kind: str, told: str
) -> None:
    connection = jvm.connect(limited.url("jms.alwaysSyncSend=true"))
    session = connection.session()
    producer = session.producer(f"queue://{kind}.{name}")
    with pytest.raises(JmsError) as raised:
        producer.send(*[BODY] * 20, persistent=False)
    assert raised.value.kind == "ResourceAllocationException"
    assert told in raised.value.text
    consumer = session.consumer(f"queue://{kind}.{name}")
    assert set(consumer.rest()) == {BODY}
    producer.send("there is room again", persistent=False)
    assert consumer.receive().body == "there is room again"
    connection.close()


@pytest.mark.parametrize("options", ["jms.useAsyncSend=true&jms.producerWindowSize=20000", "jms.useAsyncSend=true"])
def test_who_waits_stands_in_status_and_nothing_is_lost_at_its_close(
    jvm: Jvm, limited: TandemMQ, name: str, options: str
) -> None:
    connection = jvm.connect(limited.url(options))
    producer = connection.session().producer(f"queue://WAITING.{name}")
    sending = producer.send_later(*[BODY] * 20, persistent=False)

    def waiting() -> list[dict[str, str]]:
        status = limited.process.status() or {}
        return [each for each in status["blocked_producers"] if each["destination"] == f"queue://WAITING.{name}"]

    wait_until(lambda: bool(waiting()), "a producer is seen to wait")
    (told,) = waiting()
    assert (told["limit"], told["of"]) == ("memory_limit", f"queue://WAITING.{name}")
    status = limited.process.status()
    assert status is not None
    assert any(f"queue://WAITING.{name}" in warning for warning in status["warnings"])
    other = jvm.connect(limited.url())
    consumer = other.session().consumer(f"queue://WAITING.{name}")
    if "Window" not in options:
        assert len(sending.result()) == 20  # the broker has read more than it has room for
        connection.close()
    assert consumer.bodies(20) == [BODY] * 20
    if "Window" in options:
        assert len(sending.result()) == 20
        connection.close()
    wait_until(lambda: not waiting(), "nobody waits any more")
    other.close()


def test_a_slow_consumer_is_closed_and_its_messages_go_to_another(jvm: Jvm, limited: TandemMQ, name: str) -> None:
    connection = jvm.connect(limited.url("jms.prefetchPolicy.queuePrefetch=2"))
    slow = connection.session("CLIENT").consumer(f"queue://SLOW.{name}")
    connection.session().send(f"queue://SLOW.{name}", *"abcd")
    assert slow.receive().body == "a"

    def aborted() -> bool:
        status = limited.process.status()
        return status is not None and status["counts"]["slow_consumers_aborted_total"] == 1

    wait_until(aborted, "it was cut off")
    other = connection.session().consumer(f"queue://SLOW.{name}")
    assert other.bodies(4) == list("abcd")
    connection.close()
