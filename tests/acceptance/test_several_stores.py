"""Several stores in real brokers: transactions over two of them across kill -9, and the broker's reports about them."""

from __future__ import annotations

import asyncio
import json
import random
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandemmq.cli.store.maintenance import check
from tandemmq.store.several.layout import stores_in
from tandemmq.store.tools.check_several import check_all
from tests.support.acceptance.broker_process import BrokerProcess, wait_until
from tests.support.acceptance.load import Books, drain
from tests.support.acceptance.stomp_wire import LOST, Wire, connect_any
from tests.support.prove import IS_THOROUGH, SEED, rounds

ROUNDS = rounds(2 if IS_THOROUGH else 1, 120)
SETTINGS = """
[store]
journal_max_file_length = "1mb"
checkpoint_records = 500
checkpoint_interval = "200ms"

[[store.filtered_persistence_adapters]]
queue = "fast.>"
journal_max_file_length = "512kb"

[[store.filtered_persistence_adapters]]
queue = "slow.>"

[[store.filtered_persistence_adapters]]
per_destination = true
"""
FAST, SLOW = "/queue/fast.one", "/queue/slow.one"


def brokers(tmp_path: Path) -> tuple[BrokerProcess, BrokerProcess]:
    config = tmp_path / "tandemmq.toml"
    config.write_text(SETTINGS)
    data = tmp_path / "data"
    return BrokerProcess(data, "a", "--config", str(config)), BrokerProcess(data, "b", "--config", str(config))


async def send_numbered(ports: list[int], stop: asyncio.Event) -> int:
    """Send numbered messages to the fast queue, each until it has a receipt; returns how many."""
    number = 1
    while True:
        wire = await connect_any(ports)
        try:
            while not stop.is_set():
                body = str(number).encode()
                headers = {"destination": FAST, "persistent": "true", "tandemmq-send-id": f"p\\c{number}"}
                wire.send("SEND", {**headers, "receipt": "r", "content-length": str(len(body))}, body)
                await wire.flush()
                frame = await asyncio.wait_for(wire.read(), 20)
                assert frame.command == "RECEIPT", frame
                number += 1
            wire.close()
            return number - 1
        except LOST:
            wire.close()


async def move(ports: list[int], stop: asyncio.Event) -> int:
    """Take messages from the fast queue and send them to the slow one, each in one transaction. Returns how many
    COMMITs were confirmed."""
    confirmed = 0
    while not stop.is_set():
        wire = await connect_any(ports)
        try:
            wire.send("SUBSCRIBE", {"id": "0", "destination": FAST, "ack": "client-individual"})
            number = 0
            while not stop.is_set():
                try:
                    frame = await asyncio.wait_for(wire.read(), 0.2)
                except TimeoutError:
                    continue
                if frame.command == "RECEIPT":
                    confirmed += 1
                    continue
                assert frame.command == "MESSAGE", frame
                number += 1
                name = f"t{number}"
                wire.send("BEGIN", {"transaction": name})
                headers = {"destination": SLOW, "persistent": "true", "transaction": name}
                wire.send("SEND", {**headers, "content-length": str(len(frame.body))}, frame.body)
                wire.send("ACK", {"id": frame.headers["ack"], "transaction": name})
                wire.send("COMMIT", {"transaction": name, "receipt": name})
                await wire.flush()
        except LOST:
            pass
        wire.close()
    return confirmed


@pytest.mark.promise("several-stores-are-atomic")
@pytest.mark.prove
@pytest.mark.timeout(120 + 15 * ROUNDS)
async def test_kills_under_load_with_transactions_over_two_stores(tmp_path: Path) -> None:
    """Every message arrives in the other store exactly once, whatever is killed."""
    print(f"seed {SEED}, {ROUNDS} rounds (TANDEMMQ_SEED, TANDEMMQ_PROVE)")
    dice = random.Random(SEED)
    a, b = brokers(tmp_path)
    ports = [a.stomp, b.stomp]
    stop_sending, stop_moving = asyncio.Event(), asyncio.Event()
    data = str(tmp_path / "data")
    books = Books()
    try:
        master, standby = a, b
        await asyncio.to_thread(master.start().wait_role, "master")
        await asyncio.to_thread(standby.start().wait_role, "standby")
        sending = asyncio.create_task(send_numbered(ports, stop_sending))
        moving = [asyncio.create_task(move(ports, stop_moving)) for _ in range(2)]
        for _ in range(ROUNDS):
            await asyncio.sleep(dice.uniform(0.3, 1.0))
            await asyncio.to_thread(master.kill)
            await asyncio.to_thread(standby.wait_role, "master")
            master.start()
            master, standby = standby, master
        await asyncio.sleep(0.5)
        stop_sending.set()
        sent = await asyncio.wait_for(sending, 30)

        def is_moved() -> bool:
            status = master.status()
            queues = {} if status is None else {queue["name"]: queue["messages"] for queue in status["queues"]}
            return queues.get("fast.one") == 0

        await asyncio.to_thread(wait_until, is_moved, "the fast queue is empty")
        stop_moving.set()
        confirmed = sum(await asyncio.wait_for(asyncio.gather(*moving), 30))
        await asyncio.wait_for(drain(books, ports, SLOW), 60)
        await asyncio.to_thread(standby.wait_role, "standby")  # it may have begun a moment ago: too early for a signal
        for broker in (standby, master):
            assert await asyncio.to_thread(broker.terminate) == 0
    finally:
        a.stop()
        b.stop()
    report = check_all(data)
    print(f"{sent} sent, {confirmed} moves confirmed, {len(books.received)} arrived")
    assert report.is_clean, report.problems
    assert books.received == {str(number): 1 for number in range(1, sent + 1)}
    assert sent > 20 * ROUNDS
    assert {"queue#3a#2f#2ffast.#3e", "queue#3a#2f#2fslow.#3e", "txStore"} <= set(stores_in(data))


async def _send(wire: Wire, queue: str, count: int) -> None:
    for number in range(count):
        wire.send("SEND", {"destination": queue, "persistent": "true", "receipt": str(number)}, b"x" * 3000)
    await wire.flush()
    for _ in range(count):
        assert (await asyncio.wait_for(wire.read(), 10)).command == "RECEIPT"


def _get(broker: BrokerProcess, path: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin}{path}", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


async def test_status_and_why_name_the_stores(tmp_path: Path) -> None:
    broker, _ = brokers(tmp_path)
    try:
        await asyncio.to_thread(broker.start().wait_role, "master")
        wire = await connect_any([broker.stomp])
        for queue in (FAST, SLOW, "/queue/third"):
            await _send(wire, queue, 3)
        status = await asyncio.to_thread(broker.status)
        assert status is not None
        names = {store["name"]: store["journal_records_total"] for store in status["stores"]}
        for name in ("queue#3a#2f#2ffast.#3e", "queue#3a#2f#2fthird"):
            assert 3 < names[name] < 9, "three messages, and a clock mark now and then"
        assert status["counts"]["journal_records_total"] >= 9
        code, answer = await asyncio.to_thread(_get, broker, "/store/why")
        assert code == 400
        assert "queue#3a#2f#2fslow.#3e" in str(answer["error"])
        name = urllib.parse.quote("queue#3a#2f#2fslow.#3e")
        code, answer = await asyncio.to_thread(_get, broker, f"/store/why?store={name}")
        assert code == 200
        assert "slow.one" in json.dumps(answer)
        assert "fast.one" not in json.dumps(answer)
        wire.close()
        assert await asyncio.to_thread(broker.terminate) == 0
    finally:
        broker.stop()
    checked = CliRunner().invoke(check, [str(tmp_path / "data"), "--json"])
    assert checked.exit_code == 0, checked.output
    assert json.loads(checked.output)["messages"] == 9
