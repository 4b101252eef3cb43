"""Causes of removals, from the removals alone. Needs no Spark."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra local")

from tandemmq.bench.peers.server import HOST
from tandemmq.client import Client
from tandemmq.pipeline.arrow import record_batches
from tandemmq.pipeline.rows import ack_kind, rows
from tandemmq.pipeline.stores import journal_files
from tandemmq.store.records.acknowledgements import AckType, MessageAck, ack_of_branch, encode_ack
from tandemmq.store.records.transactions import XaTransactionId
from tests.support.pipeline.pipeline_journals import QUEUE
from tests.support.services.pairs import TandemMQ
from tests.support.tree import FRAMES_FILE

CONSUMER = "ID:host-1:1:1:1"
OF_ACTIVEMQ = {name: bytes.fromhex(each) for name, each in json.loads(FRAMES_FILE.read_text()).items()}


def frame(kind: AckType, consumer: str | None) -> bytes:
    return encode_ack(MessageAck(QUEUE, "ID:m:1:1:1:1", consumer, None, kind, "ID:m:1:1:1:1"))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (None, None),
        (b"", "unmatched"),  # ActiveMQ writes nothing for what a selector passed over
        (b"\0\0", None),
        (frame(AckType.STANDARD, CONSUMER), "standard"),
        (frame(AckType.STANDARD, None), "removed"),  # by the broker: expired, purged, moved
        (frame(AckType.INDIVIDUAL, CONSUMER), "individual"),
        (frame(AckType.POISON, CONSUMER), "poison"),
        (frame(AckType.EXPIRED, None), "expired"),
        (ack_of_branch(QUEUE, "ID:m:1:1:1:1", XaTransactionId(1, b"g", b"b")), "standard"),
        (ack_of_branch(QUEUE, "ID:m:1:1:1:1", XaTransactionId(1, b"g", b"b"), is_unmatched=True), "unmatched"),
        # of a store that an old ActiveMQ began
        *((OF_ACTIVEMQ[f"MessageAck-standard v{version}"], "standard") for version in (1, 6, 11)),
    ],
)
def test_an_acknowledgement_says_who_removed_the_message(data: bytes | None, kind: str | None) -> None:
    assert ack_kind(data, None) == kind


def test_a_broker_says_why_a_message_went(tmp_path: Path) -> None:
    """One message is acknowledged, one refused, one expires; one of two durable subscriptions skips another one."""

    async def work(port: int) -> None:
        async with Client(f"failover:(stomp://{HOST}:{port})", client_id="c") as client:
            durable = {"activemq.subscriptionName": "s", "selector": "wanted = 'yes'"}
            topic = await client.subscribe("/topic/prices", headers=durable)
            await client.subscribe("/topic/prices", headers={"activemq.subscriptionName": "all"})
            for wanted in ("no", "yes"):
                await client.send_confirmed("/topic/prices", b"x", {"wanted": wanted})
            message = await topic.receive(10)
            assert message is not None
            await client.acknowledge(message, is_confirmed=True)
            letters = await client.subscribe("/queue/ActiveMQ.DLQ.Queue.orders")
            await client.send_confirmed("/queue/orders", b"x", {"expires": str(int(time.time() * 1000) + 1)})
            assert await letters.receive(10) is not None
            queue = await client.subscribe("/queue/orders")
            for act in (client.acknowledge, client.refuse):
                await client.send_confirmed("/queue/orders", b"x")
                message = await queue.receive(10)
                assert message is not None
                assert await act(message, is_confirmed=True)

    with TandemMQ(tmp_path / "broker", data=tmp_path / "data") as server:
        asyncio.run(work(server.port))
        server.stop()
    files = journal_files([str(tmp_path / "data")], is_tail_wanted=True)
    found = [row for file in files for row in rows(file, "acks")]
    assert sorted((row[4], str(row[-1])) for row in found) == [
        ("orders", "None"), ("orders", "expired"), ("orders", "poison"),
        ("prices", "None"), ("prices", "None"), ("prices", "None"), ("prices", "unmatched"),
    ]  # fmt: skip
    many = [row for file in files for batch in record_batches(file, "acks") for row in batch.to_pylist()]
    assert [row["ack_kind"] for row in many] == [row[-1] for row in found]
