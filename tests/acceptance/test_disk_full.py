"""A full disk under a real broker: producers are refused with the reason, consumers drain, and producers resume
automatically.

On a small file system of its own, filled by messages or by somebody else.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess, wait_until
from tests.support.acceptance.load import Books, consume, drain, produce
from tests.support.acceptance.set_of_brokers import MemberProcess
from tests.support.acceptance.stomp_wire import LOST, Wire, connect_any
from tests.support.prove import IS_PROOF, SEED

MIB = 1 << 20
VOLUME_BYTES = 10 * MIB
JOURNAL_OF_EXT4_BYTES = 4 * MIB
BODY_BYTES = 20_000
SETTINGS = {
    "store.journal_max_file_length": "1mb",
    "store.checkpoint_interval": "200ms",
    "store.cleanup_interval": "1ms",
}
# Producers that are refused at once instead of waiting for room (broker.engine.flow_control).
FAIL_AT_ONCE = """
[[destinations]]
queue = ">"
send_fail_if_no_space = true
"""
ROUNDS = 50 if IS_PROOF else 1  # number of times that another process fills the disk
QUEUE = "/queue/q"
# Nothing for so long: the queue is drained.
QUIET_SECONDS = 0.5


@pytest.fixture(params=("tmpfs", "ext4") if IS_PROOF else ("tmpfs",))
def volume(
    tmp_path: Path, request: pytest.FixtureRequest, require_program: Callable[[object, str], None]
) -> Iterator[Path]:
    """A directory with a capacity of VOLUME_BYTES."""
    directory = tmp_path / "volume"
    directory.mkdir()
    if request.param == "tmpfs":
        how = ["-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "tmpfs"]
    else:
        require_program(shutil.which("mkfs.ext4"), "mkfs.ext4 is not in the path")
        image = tmp_path / "image"
        image.touch()
        os.truncate(image, VOLUME_BYTES + JOURNAL_OF_EXT4_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
        how = ["-o", "loop", str(image)]
    made = subprocess.run(["mount", *how, str(directory)], capture_output=True, text=True, check=False)
    require_program(made.returncode == 0, f"{request.param} cannot be mounted here: {made.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.fixture
def broker(volume: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    options = [option for key, value in SETTINGS.items() for option in ("--set", f"{key}={value}")]
    config = tmp_path / "tandemmq.toml"
    config.write_text(FAIL_AT_ONCE)
    made = BrokerProcess(volume / "data", "a", "--config", str(config), *options)
    made.log = tmp_path / "log"  # not on the volume
    try:
        yield made
    finally:
        made.stop()


def full_reason(broker: BrokerProcess) -> str | None:
    status = broker.status()
    if status is None or status["role"] != "master":
        return None
    return next((warning for warning in status["warnings"] if warning.startswith("disk full")), None)


def has_space(broker: BrokerProcess) -> bool:
    status = broker.status()
    return status is not None and status["role"] == "master" and full_reason(broker) is None


def body_of(name: str) -> bytes:
    return name.ljust(BODY_BYTES, ".").encode()


def send(wire: Wire, name: str, **headers: str) -> None:
    body = body_of(name)
    wire.send(
        "SEND",
        {"destination": QUEUE, "persistent": "true", "receipt": name, "content-length": str(len(body)), **headers},
        body,
    )


async def fill(books: Books, wire: Wire, name: str) -> str:
    """Send until a message is refused. Return the text of the refusal. All sends are answered on return."""
    refusals: list[str] = []
    waiting = 0
    for number in itertools.count(1):
        body = f"{name}-{number}"
        books.sent.add(body)
        send(wire, body)
        waiting += 1
        while waiting and (waiting >= 5 or refusals):
            frame = await asyncio.wait_for(wire.read(), 10)
            waiting -= 1
            if frame.command == "RECEIPT":
                books.stored.add(frame.headers["receipt-id"])
            else:
                assert frame.command == "ERROR", frame
                assert frame.headers["receipt-id"] not in books.stored
                refusals.append(frame.headers["message"])
        if refusals:
            return refusals[0]
    raise AssertionError("a disk is full some day")


async def produce_for_long(books: Books, ports: list[int], name: str, stop: asyncio.Event) -> None:
    """Send until the test ends, through all faults; refused or unconfirmed messages are sent again later."""
    numbers = itertools.count(1)
    waiting: dict[str, None] = {}
    while waiting or not stop.is_set():
        wire = await connect_any(ports)
        try:
            for body in waiting:
                send(wire, body)
            while waiting or not stop.is_set():
                while len(waiting) < 5 and not stop.is_set():
                    body = f"{name}-{next(numbers)}"
                    waiting[body] = None
                    books.sent.add(body)
                    send(wire, body)
                frame = await asyncio.wait_for(wire.read(), 20)
                body = frame.headers["receipt-id"]
                if frame.command == "RECEIPT":
                    waiting.pop(body, None)
                    books.stored.add(body)
                else:
                    assert frame.headers["message"].startswith("disk full"), frame
                    await asyncio.sleep(0.05)
                    send(wire, body)
        except LOST:
            books.reconnects += 1
        wire.close()


def verify(broker: BrokerProcess, books: Books) -> None:
    """The books balance, and the store is in order after a clean stop."""
    books.received = Counter({body.rstrip("."): times for body, times in books.received.items()})
    assert books.problems() == []
    assert books.stored - set(books.received) == set()
    assert broker.terminate() == 0
    report = check(broker.data)
    assert report.problems == [], report.problems


@pytest.mark.promise("full-disk-stops-producers")
async def test_producers_are_refused_consumers_drain_and_all_resumes(broker: BrokerProcess) -> None:
    broker.start().wait_role("master")
    books = Books()
    producer = await connect_any([broker.stomp])
    answer = await fill(books, producer, "first")
    assert answer.startswith("disk full: ")
    assert broker.data in answer
    assert "producers are refused until 3.0 MiB is free (the reserve is 2.0 MiB), since 20" in answer
    assert len(books.stored) * BODY_BYTES > VOLUME_BYTES // 3

    status = broker.status()
    assert status is not None
    assert (full_reason(broker) or "").startswith("disk full: ")
    assert status["problems"] == []
    assert status["counts"]["sends_refused_store_full_total"] >= 1

    # A transaction is doomed with the reason; what is not stored goes on; the connection is the same.
    producer.send("BEGIN", {"transaction": "t"})
    send(producer, "in-transaction", transaction="t")
    assert "can only be aborted: disk full" in (await producer.read()).headers["message"]
    producer.send("COMMIT", {"transaction": "t", "receipt": "committed"})
    assert "rolled back: disk full" in (await producer.read()).headers["message"]
    producer.send("SEND", {"destination": "/queue/other", "receipt": "volatile"}, b"x")
    assert (await producer.read()).headers["receipt-id"] == "volatile"
    # A dead letter moves, and a transaction that only acknowledges is committed.
    consumer = await connect_any([broker.stomp])
    headers = {"id": "0", "destination": QUEUE, "ack": "client-individual", "activemq.prefetchSize": "2"}
    consumer.send("SUBSCRIBE", headers)
    refused = await consumer.read()
    taken = await consumer.read()
    consumer.send("NACK", {"id": refused.headers["ack"], "receipt": "buried"})
    consumer.send("BEGIN", {"transaction": "u"})
    consumer.send("ACK", {"id": taken.headers["ack"], "transaction": "u"})
    consumer.send("COMMIT", {"transaction": "u", "receipt": "taken"})
    receipts: list[str] = []
    while len(receipts) < 2:
        frame = await asyncio.wait_for(consumer.read(), 10)
        if frame.command == "RECEIPT":
            receipts.append(frame.headers["receipt-id"])
    assert receipts == ["buried", "taken"]
    consumer.close()
    books.received[taken.body.decode()] += 1
    assert full_reason(broker) is not None

    await drain(books, [broker.stomp], QUEUE, QUIET_SECONDS)
    await drain(books, [broker.stomp], "/queue/ActiveMQ.DLQ.Queue.q", QUIET_SECONDS)
    await asyncio.to_thread(wait_until, lambda: has_space(broker), "producers go on")
    assert set(books.received.values()) == {1}, "none came twice"
    send(producer, "again", receipt="again")
    assert (await asyncio.wait_for(producer.read(), 10)).headers["receipt-id"] == "again"
    books.stored.add("again")
    answer = await fill(books, producer, "second")
    assert answer.startswith("disk full: ")
    await drain(books, [broker.stomp], QUEUE, QUIET_SECONDS)
    producer.close()
    assert broker.process is not None
    assert "demoted" not in broker.log.read_text()
    verify(broker, books)


async def test_a_broker_killed_on_a_full_disk_starts_there_again(broker: BrokerProcess, volume: Path) -> None:
    broker.start().wait_role("master")
    books = Books()
    producer = await connect_any([broker.stomp])
    await fill(books, producer, "first")
    broker.kill()
    producer.close()
    broker.start().wait_role("master")
    producer = await connect_any([broker.stomp])
    await fill(books, producer, "second")
    producer.close()

    # Without space for the first file of its term, the broker reports this, waits for space, and harms nothing.
    broker.kill()
    for left_over in Path(broker.data).glob(".next-*"):
        left_over.unlink()  # else it gives back the room of a whole file
    ballast = volume / "ballast"
    fill_up(ballast)
    broker.start().wait_role("demoted")
    assert "No space left on device" in broker.log.read_text()
    ballast.unlink()
    broker.wait_role("master", 30)

    await drain(books, [broker.stomp], QUEUE, QUIET_SECONDS)
    await asyncio.to_thread(wait_until, lambda: has_space(broker), "producers go on")
    producer = await connect_any([broker.stomp])
    await fill(books, producer, "last")
    producer.close()
    await drain(books, [broker.stomp], QUEUE, QUIET_SECONDS)
    assert set(books.received.values()) == {1}
    verify(broker, books)


@pytest.mark.prove
@pytest.mark.timeout(900 if IS_PROOF else 120)
async def test_somebody_else_fills_the_disk_to_the_last_byte(broker: BrokerProcess, volume: Path) -> None:
    """Producers and consumers at work: the broker refuses, or gives up its role; afterwards everything is there."""
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    dice = random.Random(SEED)
    broker.start().wait_role("master")
    books = Books()
    stop = asyncio.Event()
    ports = [broker.stomp]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(produce_for_long(books, ports, "p", stop))
        consuming = asyncio.Event()
        tasks.create_task(consume(books, ports, QUEUE, consuming))
        for _ in range(ROUNDS):
            await asyncio.sleep(dice.uniform(0.0, 1.0))
            ballast = volume / "ballast"
            await asyncio.to_thread(fill_up, ballast)
            await asyncio.sleep(dice.uniform(0.3, 1.5))
            ballast.unlink()
            await asyncio.to_thread(wait_until, lambda: has_space(broker), "it is master, with room", 30)
            before = len(books.stored)
            await asyncio.to_thread(wait_until, lambda before=before: len(books.stored) > before, "producers go on", 30)  # type: ignore[misc]
        stop.set()
        consuming.set()
    await drain(books, ports, QUEUE, QUIET_SECONDS)
    verify(broker, books)


async def test_a_write_that_finds_no_room_costs_the_role_and_nothing_else(broker: BrokerProcess, volume: Path) -> None:
    """The first file of a term grows as it is written. Without a byte for it, acknowledgements fail: no receipt."""
    broker.start().wait_role("master")
    books = Books()
    stop = asyncio.Event()
    producing = asyncio.create_task(produce(books, [broker.stomp], QUEUE, "p", 200, stop))
    await asyncio.to_thread(wait_until, lambda: len(books.stored) >= 2_000, "there is something to acknowledge")
    stop.set()
    await producing
    assert broker.terminate() == 0
    epoch = broker.start().wait_role("master")["epoch"]

    ballast = volume / "ballast"
    fill_up(ballast)
    done = asyncio.Event()
    consuming = asyncio.create_task(consume(books, [broker.stomp], QUEUE, done))
    await asyncio.to_thread(wait_until, lambda: (broker.status() or {}).get("role") != "master", "it gave up its role")
    await asyncio.to_thread(broker.wait_log, "No space left on device")
    assert len(books.acknowledged) < len(books.stored)
    ballast.unlink()
    assert broker.wait_role("master", 30)["epoch"] > epoch
    done.set()
    await consuming
    await drain(books, [broker.stomp], QUEUE, QUIET_SECONDS)
    verify(broker, books)


def test_a_broker_that_starts_on_a_full_volume_waits_for_room(broker: BrokerProcess, volume: Path) -> None:
    """With nothing there, with a few bytes, and with its directory alone."""
    ballast = volume / "ballast"
    fill_up(ballast)
    broker.start().wait_role("demoted")
    os.truncate(ballast, ballast.stat().st_size - 16_384)
    status = broker.wait_role("demoted")
    assert "the volume is full" in status["reason"]
    ballast.unlink()
    broker.wait_role("master", 30)


def fill_up(path: Path) -> None:
    """Take every byte there is, and every one that comes free in the next moment."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for _ in range(20):
            try:
                while os.write(fd, bytes(1 << 16)):
                    pass
            except OSError:
                try:
                    while os.write(fd, bytes(4096)):
                        pass
                except OSError:
                    pass
    finally:
        os.close(fd)


def allow_files(volume: Path, count: int) -> None:
    """With directories and the volume itself. This is not true for ext4, where a directory takes a block."""
    subprocess.run(["mount", "-o", f"remount,nr_inodes={count}", str(volume)], capture_output=True, check=False)


def test_a_node_of_a_set_that_starts_on_a_full_volume_waits_for_room(volume: Path, tmp_path: Path) -> None:
    """The node waits as a single broker does, first with an empty directory. There is no ZooKeeper: it does not become
    master, but takes part."""
    ballast = volume / "ballast"
    node = MemberProcess(tmp_path, "n1", None, volume / "data")
    node.configure(f"127.0.0.1:{free_port()}")
    try:
        fill_up(ballast)
        allow_files(volume, 2)  # not one more, nor a directory
        status = node.start().wait_role("demoted")
        assert "No space left" in status["reason"]
        assert not (volume / "data").exists()
        allow_files(volume, 1000)
        assert "the volume is full" in status["reason"]
        assert "replication" not in status
        node.wait_log("demoted): the volume is full")
        assert "waits for its volume" in node.replication()["error"]
        ballast.unlink()
        wait_until(lambda: node.replication().get("node") == "n1", "it takes part")
        assert node.terminate() == 0
    finally:
        node.stop()
