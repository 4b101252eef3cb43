"""Limits of a broker of ours, as JMS clients meet them: sends that fail, producers that wait, slow consumers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tandemmq.bench.peers.ports import free_port
from tests.interop.jms.conftest import Connect
from tests.support.acceptance.broker_process import BrokerProcess, wait_until
from tests.support.interop.jms.jvm import JmsError, JmsSession, Jvm
from tests.support.interop.jms.peers import TandemMQ

pytestmark = [pytest.mark.service, pytest.mark.promise("limits-after-login", "bombs-stay-small")]


BODY = "x" * 10_000
FRAME_BYTES_MAX = 1 << 20
SETTINGS = """\
[broker]
memory_limit = "16mb"
max_scheduler_repeat_allowed = 2000

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
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TandemMQ]:
    peer = TandemMQ(tmp_path_factory.mktemp("limited") / "data", settings=SETTINGS)
    peer.wait()
    yield peer
    peer.close()


@pytest.mark.parametrize(("kind", "told"), [("FAILING", "memory_limit is 65536"), ("LATE", "no room since 20")])
def test_a_send_without_room_fails_by_the_name_of_the_limit(
    broker: TandemMQ, connect: Connect, name: str, kind: str, told: str
) -> None:
    connection = connect("jms.alwaysSyncSend=true")
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


@pytest.mark.parametrize("options", ["jms.useAsyncSend=true&jms.producerWindowSize=20000", "jms.useAsyncSend=true"])
def test_who_waits_stands_in_status_and_nothing_is_lost_at_its_close(
    broker: TandemMQ, connect: Connect, name: str, options: str
) -> None:
    connection = connect(options)
    producer = connection.session().producer(f"queue://WAITING.{name}")
    sending = producer.send_later(*[BODY] * 20, persistent=False)

    def waiting() -> list[dict[str, str]]:
        status = broker.process.status() or {}
        return [each for each in status["blocked_producers"] if each["destination"] == f"queue://WAITING.{name}"]

    wait_until(lambda: bool(waiting()), "a producer is seen to wait")
    (told,) = waiting()
    assert (told["limit"], told["of"]) == ("memory_limit", f"queue://WAITING.{name}")
    status = broker.process.status()
    assert status is not None
    assert any(f"queue://WAITING.{name}" in warning for warning in status["warnings"])
    other = connect()
    consumer = other.session().consumer(f"queue://WAITING.{name}")
    if "Window" not in options:
        assert len(sending.result()) == 20  # the broker has read more than it has room for
        connection.close()
    assert consumer.bodies(20) == [BODY] * 20
    if "Window" in options:
        assert len(sending.result()) == 20
        connection.close()
    wait_until(lambda: not waiting(), "nobody waits any more")


def test_a_slow_consumer_is_closed_and_its_messages_go_to_another(
    broker: TandemMQ, connect: Connect, name: str
) -> None:
    connection = connect("jms.prefetchPolicy.queuePrefetch=2")
    slow = connection.session("CLIENT").consumer(f"queue://SLOW.{name}")
    connection.session().send(f"queue://SLOW.{name}", *"abcd")
    assert slow.receive().body == "a"

    def aborted() -> bool:
        status = broker.process.status()
        return status is not None and status["counts"]["slow_consumers_aborted_total"] == 1

    wait_until(aborted, "it was cut off")
    other = connection.session().consumer(f"queue://SLOW.{name}")
    assert other.bodies(4) == list("abcd")


def test_a_message_that_can_never_fit_is_refused_at_once_and_logged(
    broker: TandemMQ, connect: Connect, queue: str
) -> None:
    connection = connect("jms.alwaysSyncSend=true")
    producer = connection.session().producer(queue)
    with pytest.raises(JmsError) as raised:
        producer.send("x" * (17 << 20), persistent=False)
    assert raised.value.kind == "ResourceAllocationException"
    assert "is larger than the memory" in raised.value.text
    assert "later" not in raised.value.text
    broker.process.wait_log("is larger than the memory")
    producer.send("what fits", persistent=False)


@pytest.fixture(scope="module")
def small_frames(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that takes no long frame."""
    directory, port = tmp_path_factory.mktemp("small"), free_port()
    uri = f"openwire://127.0.0.1:{port}?wireFormat.maxFrameSize={FRAME_BYTES_MAX}"
    settings = directory / "tandemmq.toml"
    settings.write_text(f'[[connectors]]\nuri = "{uri}"\n')
    process = BrokerProcess(directory / "data", "a", "--config", str(settings))
    process.leaves_stomp_to_settings = True
    try:
        process.start().wait_role("master")
        yield f"tcp://127.0.0.1:{port}"
    finally:
        process.stop()


@pytest.mark.parametrize("url", ["{}?jms.alwaysSyncSend=true", "failover:({})?jms.alwaysSyncSend=true"])
def test_a_message_over_the_limit_of_frames_is_refused_alone(jvm: Jvm, small_frames: str, queue: str, url: str) -> None:
    connection = jvm.connect(url.format(small_frames))
    producer = connection.session().producer(queue)
    with pytest.raises(JmsError) as raised:
        producer.send("x" * (2 * FRAME_BYTES_MAX))
    assert raised.value.kind == "ResourceAllocationException"
    assert str(FRAME_BYTES_MAX) in raised.value.text
    producer.send("x" * (FRAME_BYTES_MAX - 1_000), "short")
    assert connection.exceptions(count=0) == []
    connection.close()


def test_a_transaction_with_a_message_over_the_limit_of_frames_is_rolled_back(
    jvm: Jvm, small_frames: str, queue: str
) -> None:
    connection = jvm.connect(small_frames)
    session = connection.session("TRANSACTED")
    session.send(queue, "before", "x" * (2 * FRAME_BYTES_MAX), "behind")
    with pytest.raises(JmsError, match=str(FRAME_BYTES_MAX)) as raised:
        session.commit()
    assert raised.value.kind == "TransactionRolledBackException"
    assert connection.session().consumer(queue).take() is None
    connection.close()


def test_a_message_that_is_too_long_for_its_consumer_is_a_dead_letter(jvm: Jvm, small_frames: str, name: str) -> None:
    connection = jvm.connect(small_frames)
    session = connection.session()
    session.send(f"queue://{name}", "x" * 100_000, "short")
    narrow = jvm.connect(f"failover:({small_frames}?wireFormat.maxFrameSize=50000)")
    assert narrow.session().consumer(f"queue://{name}").receive().body == "short"
    letter = session.consumer(f"queue://ActiveMQ.DLQ.Queue.{name}").receive()
    assert "at most 50000" in letter.properties["dlqDeliveryFailureCause"]
    narrow.close()
    connection.close()


@pytest.mark.parametrize(("repeat", "is_taken"), [(2_000, True), (2_001, False)])
def test_the_bound_of_repetitions_is_a_setting(
    broker: TandemMQ, session: JmsSession, queue: str, repeat: int, is_taken: bool
) -> None:
    repeated = {
        "AMQ_SCHEDULED_DELAY": {"long": 3_600_000},
        "AMQ_SCHEDULED_PERIOD": {"long": 1_000},
        "AMQ_SCHEDULED_REPEAT": repeat,
    }
    if is_taken:
        session.send(queue, "x", properties=repeated)
    else:
        with pytest.raises(JmsError) as raised:
            session.send(queue, "x", properties=repeated)
        assert raised.value.kind == "MessageFormatException"
        assert "2000" in raised.value.text
