"""Planned handover: clients get each receipt that is due, no receipt is false, and the other broker continues."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.cli.admin import call
from tests.support.acceptance.broker_process import BrokerProcess, starting, tandemmq, wait_until
from tests.support.acceptance.stomp_wire import Frame, Wire
from tests.support.prove import rounds

Start = Callable[..., BrokerProcess]

PRODUCERS = 3
WINDOW = 40
FLOOD_BURST = 50
FLOOD_PAUSE_SECONDS = 0.02
# Maximum number of operations in progress: with so few, the store is congested at each burst.
JOBS = "store.max_async_jobs=40"
PRELOADED = 2_000
BURST = 20
PAUSE_SECONDS = 0.05
LOAD_SECONDS = 0.3
# Handovers under load, back and forth.
ROUNDS = rounds(2, 20)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path / "data", BrokerProcess) as start:
        yield start


def admin_of(broker: BrokerProcess) -> str:
    return f"http://127.0.0.1:{broker.admin}"


class Client:
    """A connection whose receipts are read until the broker hangs up, which must be between two frames."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.receipts: set[str] = set()
        self.errors: list[Frame] = []
        self.half_a_frame = b""
        self.is_over = False
        self.free = asyncio.Semaphore(WINDOW)

    async def read(self) -> None:
        try:
            while True:
                frame = await self.wire.read()
                if frame.command == "RECEIPT":
                    self.receipts.add(frame.headers["receipt-id"])
                    self.free.release()
                elif frame.command == "MESSAGE":
                    self.got(frame)
                else:
                    self.errors.append(frame)
        except asyncio.IncompleteReadError as end:
            self.half_a_frame = end.partial
        finally:
            self.is_over = True
            self.free.release()

    def got(self, frame: Frame) -> None:
        raise AssertionError("this client subscribed to nothing")

    async def say(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        self.wire.send(command, headers, body)
        with contextlib.suppress(OSError):
            await self.wire.flush()

    async def work(self) -> None:
        raise NotImplementedError

    async def live(self) -> None:
        """Send and receive until the broker closes the connection."""
        working = asyncio.create_task(self.work())
        try:
            await self.read()
        finally:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working
            self.wire.close()


class Producer(Client):
    """Sends one message after the other, WINDOW of them without a receipt."""

    def __init__(self, wire: Wire, name: str) -> None:
        super().__init__(wire)
        self.name = name
        self.sent = 0

    async def work(self) -> None:
        while not self.is_over:
            await self.free.acquire()
            self.sent += 1
            body = f"{self.name}:{self.sent}"
            headers = {"destination": "/queue/plain", "persistent": "true", "receipt": body}
            await self.say("SEND", headers, body.encode())


class Flood(Producer):
    """Sends in bursts that are more than the store takes at once, and waits for nothing: the broker stops reading."""

    async def work(self) -> None:
        while not self.is_over:
            for _ in range(FLOOD_BURST):
                self.sent += 1
                body = f"{self.name}:{self.sent}"
                headers = {"destination": "/queue/plain", "persistent": "true", "receipt": body}
                self.wire.send("SEND", headers, body.encode())
            with contextlib.suppress(OSError):
                await self.wire.flush()
            await asyncio.sleep(FLOOD_PAUSE_SECONDS)


class Transactions(Client):
    """Sends three messages in each transaction, and asks for the receipt of its COMMIT."""

    def __init__(self, wire: Wire, name: str) -> None:
        super().__init__(wire)
        self.name = name

    async def work(self) -> None:
        number = 0
        while not self.is_over:
            await self.free.acquire()
            number += 1
            tx = f"{self.name}:{number}"
            await self.say("BEGIN", {"transaction": tx})
            for part in range(3):
                headers = {"destination": "/queue/tx", "persistent": "true", "transaction": tx}
                await self.say("SEND", headers, f"{tx}:{part}".encode())
                await asyncio.sleep(0)
            await self.say("COMMIT", {"transaction": tx, "receipt": tx})


class Acknowledger(Client):
    """Acknowledges each message, with a receipt; in bursts, so that some are left for the next master."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self.came: asyncio.Queue[Frame] = asyncio.Queue()

    def got(self, frame: Frame) -> None:
        self.came.put_nowait(frame)

    async def work(self) -> None:
        headers = {"destination": "/queue/acks", "id": "1", "ack": "client-individual", "activemq.prefetchSize": "100"}
        await self.say("SUBSCRIBE", headers)
        while not self.is_over:
            for _ in range(BURST):
                frame = await self.came.get()
                await self.say("ACK", {"id": frame.headers["ack"], "receipt": frame.body.decode()})
            await asyncio.sleep(PAUSE_SECONDS)


async def drain(port: int, destination: str) -> list[str]:
    """All bodies in a queue, in order; each is acknowledged."""
    wire = await Wire.open(port)
    wire.send("SUBSCRIBE", {"destination": destination, "id": "1", "ack": "auto"})
    wire.send("SEND", {"destination": destination, "persistent": "true"}, b"the end")
    bodies: list[str] = []
    while True:
        frame = await asyncio.wait_for(wire.read(), 20)
        if frame.body == b"the end":
            break
        bodies.append(frame.body.decode())
    wire.send("DISCONNECT", {"receipt": "bye"})
    while (await asyncio.wait_for(wire.read(), 20)).command != "RECEIPT":
        pass
    wire.close()
    return bodies


async def preload(port: int, destination: str, bodies: list[str]) -> None:
    wire = await Wire.open(port)
    for body in bodies:
        wire.send("SEND", {"destination": destination, "persistent": "true"}, body.encode())
    wire.send("DISCONNECT", {"receipt": "bye"})
    while (await asyncio.wait_for(wire.read(), 20)).command != "RECEIPT":
        pass
    wire.close()


async def a_handover_under_load(master: BrokerProcess, standby: BrokerProcess, number: int, how: str) -> None:
    """Load the master, have it hand over, and compare what was promised with what the next one has."""
    preloaded = [f"{number}:{n}" for n in range(PRELOADED)]
    await preload(master.stomp, "/queue/acks", preloaded)
    producers = [Producer(await Wire.open(master.stomp), f"{number}.{n}") for n in range(PRODUCERS)]
    producers.append(Flood(await Wire.open(master.stomp), f"{number}.f"))
    transactions = Transactions(await Wire.open(master.stomp), f"{number}.t")
    acknowledger = Acknowledger(await Wire.open(master.stomp))
    idle = await Wire.open(master.stomp)  # does not hang up when the broker does
    clients: list[Client] = [*producers, transactions, acknowledger]
    living = asyncio.gather(*(client.live() for client in clients))
    await asyncio.sleep(LOAD_SECONDS)
    if how == "page":
        answer = await asyncio.to_thread(call, admin_of(master), "handover", {}, method="POST", seconds_max=60)
        assert answer["name"] == master.name
    else:
        os.kill(master.pid, signal.SIGTERM)
    await asyncio.wait_for(living, 20)
    await asyncio.to_thread(standby.wait_role, "master")
    with pytest.raises(asyncio.IncompleteReadError) as end:
        await asyncio.wait_for(idle.read(), 20)
    assert end.value.partial == b""
    idle.close()
    for client in clients:
        assert client.errors == []
        assert client.half_a_frame == b"", "a broker hangs up between two frames"

    plain = await drain(standby.stomp, "/queue/plain")
    for producer in producers:
        mine = [body for body in plain if body.startswith(f"{producer.name}:")]
        assert mine == [f"{producer.name}:{n + 1}" for n in range(len(mine))], "in order, each once"
        assert set(mine) == producer.receipts, "what is stored was confirmed, and what was confirmed is stored"
        assert mine
    whole = await drain(standby.stomp, "/queue/tx")
    assert whole == [f"{number}.t:{n + 1}:{part}" for n in range(len(whole) // 3) for part in range(3)]
    assert {body.rpartition(":")[0] for body in whole} == transactions.receipts
    assert transactions.receipts
    left = await drain(standby.stomp, "/queue/acks")
    assert sorted(left) == sorted(set(preloaded) - acknowledger.receipts)
    assert 0 < len(acknowledger.receipts) < PRELOADED


@pytest.mark.prove
async def test_a_handover_keeps_every_promise_and_makes_no_false_one(brokers: Start) -> None:
    master = brokers("a", "--set", JOBS)
    await asyncio.to_thread(master.wait_role, "master")
    standby = brokers("b", "--set", JOBS)
    await asyncio.to_thread(standby.wait_role, "standby")
    for number in range(ROUNDS):
        how = "page" if number % 2 == 0 else "SIGTERM"
        await a_handover_under_load(master, standby, number, how)
        if how == "SIGTERM":
            assert await asyncio.to_thread(master.wait) == 0
            master.start()
        await asyncio.to_thread(master.wait_role, "standby")
        master, standby = standby, master
    places = ["--admin", admin_of(master), "--admin", admin_of(standby)]
    explained = json.loads(tandemmq("failover", "explain", *places, "--last", str(ROUNDS), "--json").stdout)
    outages = [outage["seconds"] for outage in explained["outages"]]
    print(f"{ROUNDS} handovers: outages {sorted(outages)}")
    assert len(outages) == ROUNDS
    assert all("handed over: " in outage["cause"] for outage in explained["outages"])


@pytest.mark.promise("failover-is-explained")
def test_a_kill_is_explained_with_both_rings_one_of_them_dead(brokers: Start) -> None:
    master = brokers("a")
    master.wait_role("master")
    standby = brokers("b")
    standby.wait_role("standby")
    asyncio.run(preload(master.stomp, "/queue/q", ["x"]))
    lock = tandemmq("lock", "status", "--admin", admin_of(standby), "--json")
    answer = json.loads(lock.stdout)
    assert (answer["holder"]["name"], answer["holder"]["epoch"], answer["proof"]["holds"]) == ("a", 1, True)
    assert [waiter["name"] for waiter in answer["waiting"]] == ["b"]
    pid = master.pid
    died = time.time()
    master.kill()
    standby.wait_role("master")
    asyncio.run(preload(standby.stomp, "/queue/q", ["y"]))
    assert asyncio.run(drain(standby.stomp, "/queue/q")) == ["x", "y"]

    def explained() -> dict[str, Any]:
        answer = tandemmq("failover", "explain", "--admin", admin_of(standby), "--data", master.data, "--json")
        (outage,) = json.loads(answer.stdout)["outages"]
        return outage

    wait_until(lambda: explained()["seconds_until_receipt"] is not None, "the first receipt is an event")
    outage = explained()
    assert (outage["former"], outage["successor"]) == ("a", "b")
    assert outage["cause"].startswith("a ended unexpectedly")
    assert outage["events"][0]["kind"] == "fell-silent"
    assert outage["events"][0]["facts"]["pid"] == pid
    assert all(event["is_certain"] for event in outage["events"]), "one machine has one clock"
    steps = [event["kind"] for event in outage["events"] if event["broker"] == "b"]
    assert steps.index("lock-taken") < steps.index("store-open") < steps.index("listening")
    phases = [seconds for seconds in outage["phases"].values() if seconds is not None]
    assert min(phases) >= 0
    assert sum(phases) == pytest.approx(outage["seconds_until_receipt"], abs=0.001)
    print(f"killed at {died:.3f}, began {outage['began']}, {outage['seconds']} s: {outage['phases']}")
    # The broker that died tells of it itself when it is started again.
    master.start().wait_role("standby")
    again = tandemmq("failover", "explain", "--admin", admin_of(master), "--json")
    (told,) = json.loads(again.stdout)["outages"]
    assert told["phases"] == pytest.approx(outage["phases"], abs=0.01)
    # And is given its rule back.
    back = tandemmq("handover", "--admin", admin_of(standby), "--wait", "30", "--json")
    assert back.returncode == 0, back.stdout + back.stderr
    answer = json.loads(back.stdout)
    assert (answer["former"], answer["successor"], answer["admin"]) == ("b", "a", admin_of(master))
    assert answer["epoch"] > answer["former_epoch"]
