"""Messages with a selector, a group, a time or an expiration, for real clients of one broker."""

from __future__ import annotations

import asyncio
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.session import XA_RDONLY
from tandemmq.cli import main
from tandemmq.store.records.properties import encode_properties
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess, serving, wait_until
from tests.support.acceptance.openwire_wire import OpenWire, queue
from tests.support.acceptance.stomp_wire import Frame, Wire, bodies, confirm
from tests.support.tree import TESTS

SECONDS_MAX = 20.0
SETTINGS = """\
[broker]
stomp_nack = "requeue"

[[destinations]]
queue = "rejected"
[destinations.redelivery]
maximum_redeliveries = 1
initial_redelivery_delay = 0

[[destinations]]
queue = "odd.*"
[destinations.redelivery]
maximum_redeliveries = 1
initial_redelivery_delay = 0
"""
ACTIVEMQS = TESTS / "support" / "crash" / "activemq_store.zip"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("broker")
    (directory / "settings.toml").write_text(SETTINGS)
    broker = BrokerProcess(directory / "data", "a", "--config", str(directory / "settings.toml"))
    broker.openwire = free_port()
    with serving(broker):
        yield broker


async def store(wire: Wire, destination: str, body: str, **headers: str) -> None:
    wire.send("SEND", {"destination": destination, "persistent": "true", "receipt": body, **headers}, body.encode())
    assert (await heard(wire)).headers.get("receipt-id") == body


async def heard(wire: Wire) -> Frame:
    return await asyncio.wait_for(wire.read(), SECONDS_MAX)


async def subscribe(wire: Wire, destination: str, id: str = "0", **headers: str) -> None:
    wire.send("SUBSCRIBE", {"id": id, "destination": destination, "ack": "auto", "receipt": "subscribed", **headers})
    assert (await heard(wire)).command == "RECEIPT"


@pytest.mark.promise("selectors")
async def test_a_consumer_gets_what_its_selector_matches(broker: BrokerProcess) -> None:
    wire = await Wire.open(broker.stomp)
    for number in range(6):
        await store(wire, "/queue/selected", str(number), size=str(number), colour="red" if number % 2 else "blue")
    wire.send("SUBSCRIBE", {"id": "0", "destination": "/queue/selected", "selector": "colour = 'red' AND size > 2"})
    assert [(await heard(wire)).body for _ in range(2)] == [b"3", b"5"]
    wire.close()
    assert await bodies(broker.stomp, "/queue/selected", 4, SECONDS_MAX) == ["0", "1", "2", "4"]


@pytest.mark.promise("composite-and-wildcards")
async def test_each_destination_of_a_composite_gets_it_once_and_a_wildcard_each(broker: BrokerProcess) -> None:
    reader, writer = await Wire.open(broker.stomp), await Wire.open(broker.stomp)
    await subscribe(reader, "/topic/prices.>")
    await store(writer, "/topic/prices.eu,/topic/prices.us.ny,/queue/archive", "7")
    found = [await heard(reader) for _ in range(2)]
    assert sorted(frame.headers["destination"] for frame in found) == ["/topic/prices.eu", "/topic/prices.us.ny"]
    assert await bodies(broker.stomp, "/queue/archive", 1, SECONDS_MAX) == ["7"]
    reader.close()
    writer.close()


@pytest.mark.promise("message-groups")
async def test_a_group_goes_to_one_consumer_in_order(broker: BrokerProcess) -> None:
    consumers = [await Wire.open(broker.stomp) for _ in range(2)]
    for consumer in consumers:
        await subscribe(consumer, "/queue/grouped")
    writer = await Wire.open(broker.stomp)
    for number in range(8):
        await store(writer, "/queue/grouped", str(number), JMSXGroupID="ab"[number % 2])
    found = [[int((await heard(consumer)).body) for _ in range(4)] for consumer in consumers]
    assert sorted(found) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    for wire in (*consumers, writer):
        wire.close()


@pytest.mark.promise("expired-is-not-delivered")
async def test_an_expired_message_is_a_dead_letter(broker: BrokerProcess) -> None:
    wire = await Wire.open(broker.stomp)
    await store(wire, "/queue/short", "late", expires="1")
    await store(wire, "/queue/short", "in time")
    wire.close()
    assert await bodies(broker.stomp, "/queue/short", 1, SECONDS_MAX) == ["in time"]
    assert await bodies(broker.stomp, "/queue/ActiveMQ.DLQ.Queue.short", 1, SECONDS_MAX) == ["late"]


@pytest.mark.promise("redelivery-is-bounded")
async def test_a_rejected_message_comes_again_and_then_is_a_dead_letter(broker: BrokerProcess) -> None:
    wire = await Wire.open(broker.stomp)
    await store(wire, "/queue/rejected", "poison")
    wire.send("SUBSCRIBE", {"id": "0", "destination": "/queue/rejected", "ack": "client-individual"})
    for _ in range(2):
        frame = await heard(wire)
        assert frame.body == b"poison"
        wire.send("NACK", {"id": frame.headers["ack"]})
    wire.close()
    assert await bodies(broker.stomp, "/queue/ActiveMQ.DLQ.Queue.rejected", 1, SECONDS_MAX) == ["poison"]


@pytest.mark.promise("redelivery-is-bounded")
@pytest.mark.parametrize("name", [b"\xf0\x9f\x98\x80" * 16_383, bytes(65_535)], ids=["beyond U+FFFF", "NUL"])
async def test_a_name_that_java_has_no_room_for_comes_back_from_a_dead_letter(
    broker: BrokerProcess, name: bytes
) -> None:
    assert broker.openwire is not None
    odd = f"odd.{len(name)}"
    dead = f"ActiveMQ.DLQ.Queue.{odd}"
    jms = OpenWire(broker.openwire).connect()
    given = encode_properties({"dlqDeliveryFailureCause": "its client's"})[4:]
    properties = b"\0\0\0\2" + len(name).to_bytes(2, "big") + name + b"\1\1" + given
    jms.send(queue(odd), b"poison", marshalled_properties=properties)
    wire = await Wire.open(broker.stomp)
    wire.send("SUBSCRIBE", {"id": "0", "destination": f"/queue/{odd}", "ack": "client-individual"})
    for _ in range(2):
        wire.send("NACK", {"id": (await heard(wire)).headers["ack"]})
    reader = await Wire.open(broker.stomp)
    reader.send("SUBSCRIBE", {"id": "1", "destination": f"/queue/{dead}", "ack": "client-individual"})
    letter = await heard(reader)
    assert letter.headers["dlqDeliveryFailureCause"] != "its client's"
    reader.close()

    retry = ["retry", dead, "--all", "--admin", f"http://127.0.0.1:{broker.admin}"]
    await asyncio.to_thread(
        wait_until, lambda: CliRunner().invoke(main, retry).output == "1 retried\n", "it is retried"
    )
    frame = await heard(wire)
    assert frame.body == b"poison"
    assert "dlqDeliveryFailureCause" not in frame.headers
    wire.send("ACK", {"id": frame.headers["ack"], "receipt": "acknowledged"})
    await heard(wire)
    wire.close()
    jms.close()
    assert "Unencodable" not in broker.log.read_text()


@pytest.mark.promise("protocols-meet", "jms-works-unmodified")
async def test_messages_pass_between_stomp_and_openwire(broker: BrokerProcess) -> None:
    assert broker.openwire is not None
    jms = OpenWire(broker.openwire).connect()
    jms.send(queue("both"), "grüße".encode())
    assert await bodies(broker.stomp, "/queue/both", 1, SECONDS_MAX) == ["grüße"]
    await confirm(broker.stomp, "/queue/back", "answer", SECONDS_MAX)
    jms.consume(queue("back"))
    assert jms.next_content().endswith(b"answer")
    jms.close()


async def test_a_transaction_of_nothing_is_answered(broker: BrokerProcess) -> None:
    """Alone, and between messages of others. XA: it is read-only, or committed in one phase."""
    assert broker.openwire is not None
    wire = await Wire.open(broker.stomp)
    jms = OpenWire(broker.openwire).connect()
    for number in range(20):
        wire.send("BEGIN", {"transaction": "t"})
        wire.send("COMMIT", {"transaction": "t", "receipt": str(number)})
        assert (await heard(wire)).headers.get("receipt-id") == str(number)
        local = LocalTransactionId(jms.id, number)
        jms.transact(schema.TransactionType.BEGIN, local)
        jms.transact(schema.TransactionType.COMMIT_ONE_PHASE, local)
        for end in (schema.TransactionType.PREPARE, schema.TransactionType.COMMIT_ONE_PHASE):
            branch = XaTransactionId(1, b"nothing", b"%d-%d" % (number, end))
            jms.transact(schema.TransactionType.BEGIN, branch)
            jms.transact(schema.TransactionType.END, branch)
            answer = jms.transact(end, branch)
            if end is schema.TransactionType.PREPARE:
                assert answer.result == XA_RDONLY
        await store(wire, "/queue/of.nothing", f"m{number}")
    jms.close()
    wire.close()


@pytest.mark.promise("scheduled-in-time")
async def test_a_scheduled_message_comes_after_its_delay_also_after_a_kill(tmp_path: Path) -> None:
    with serving(BrokerProcess(tmp_path / "data", "a")) as (broker,):
        wire = await Wire.open(broker.stomp)
        await store(wire, "/queue/later", "later", AMQ_SCHEDULED_DELAY="1500")
        await store(wire, "/queue/later", "now")
        wire.close()
        broker.kill()
        broker.start().wait_role("master")
        assert await bodies(broker.stomp, "/queue/later", 2, SECONDS_MAX) == ["now", "later"]


@pytest.mark.promise("from-activemq", "back-to-activemq")
def test_a_store_of_activemq_is_served_and_given_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with zipfile.ZipFile(ACTIVEMQS) as packed:
        packed.extractall(tmp_path)
    with serving(BrokerProcess(data, "a")) as (broker,):
        queues = {each["name"]: each["messages"] for each in broker.wait_role("master")["queues"]}
        assert queues["Q.A"] == 5
    messages = check(str(data)).messages
    done = CliRunner().invoke(main, ["store", "handback", str(data)])
    assert done.exit_code == 0, done.output
    assert check(str(data)).messages == messages
