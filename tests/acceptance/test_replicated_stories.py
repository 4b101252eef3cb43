"""A set of real brokers in situations that broke its design, or similar sets: one test for each situation.

For situations without processes see tests/unit/broker/replication.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.acceptance import stomp_wire
from tests.support.acceptance.broker_process import BrokerProcess, wait_until
from tests.support.acceptance.load import Books
from tests.support.acceptance.replicated_fixtures import MakeSet
from tests.support.acceptance.replicated_fixtures import make as make
from tests.support.acceptance.replicated_fixtures import network as network
from tests.support.acceptance.replicated_fixtures import zookeepers as zookeepers
from tests.support.acceptance.set_of_brokers import T_MILLISECONDS, MemberProcess, SetOfBrokers
from tests.support.acceptance.set_rounds import fill_up
from tests.support.acceptance.stomp_wire import LOST, Wire, connect_any
from tests.support.acceptance.under_load import demand_kept, under_load
from tests.support.acceptance.zombie_rounds import promotions_of
from tests.support.tree import ROOT

pytestmark = [
    pytest.mark.service,
    pytest.mark.thorough,
    pytest.mark.promise("quorum-keeps-confirmed", "set-has-one-master"),
]

QUEUE = "/queue/q"
MIB = 1 << 20
VOLUME_BYTES = 12 * MIB
T_SECONDS = T_MILLISECONDS / 1_000
SECONDS_MAX, QUIET_SECONDS = 60.0, 1.0


def send(whole: SetOfBrokers, *bodies: str) -> list[str]:
    """Confirmed on return, by the master of that moment. Those that were sent again, as a connection ended before their
    receipt: they may be stored twice."""
    again: list[str] = []

    async def sending() -> None:
        left = list(bodies)
        while left:
            wire = await connect_any(whole.addresses)
            try:
                while left:
                    await stomp_wire.send(wire, QUEUE, left[0])
                    async with asyncio.timeout(20):
                        assert (await wire.read()).command == "RECEIPT"
                    left.pop(0)
            except LOST:
                again.extend(left[:1])
            wire.close()

    asyncio.run(sending())
    return again


def taken(whole: SetOfBrokers, count: int) -> list[str]:
    """Receive at least ``count`` messages, if they come in time, and then until none comes for a while; their
    acknowledgements are confirmed. If the master loses its lease on a busy machine, another follows: a message that was
    acknowledged without a receipt may come again, once."""

    async def taking() -> list[str]:
        found: dict[str, str] = {}
        unconfirmed: set[str] = set()
        may_come_again: set[str] = set()
        while True:
            wire = await connect_any(whole.addresses)
            headers = {"id": "0", "destination": QUEUE, "ack": "client-individual", "activemq.prefetchSize": "1"}
            wire.send("SUBSCRIBE", headers)
            try:
                while True:
                    is_expected = unconfirmed or len(found) < count
                    frame = await asyncio.wait_for(wire.read(), SECONDS_MAX if is_expected else QUIET_SECONDS)
                    if frame.command == "RECEIPT":
                        unconfirmed.remove(frame.headers["receipt-id"])
                        continue
                    message = frame.headers["message-id"]
                    assert message not in found or message in may_come_again, f"{message} came twice"
                    may_come_again.discard(message)
                    found.setdefault(message, frame.body.decode())
                    wire.send("ACK", {"id": frame.headers["ack"], "receipt": message})
                    unconfirmed.add(message)
            except TimeoutError:
                assert not unconfirmed, "an acknowledgement is not confirmed"
                return list(found.values())
            except LOST:
                may_come_again |= unconfirmed
                unconfirmed.clear()
            finally:
                wire.close()

    return asyncio.run(taking())


# ---- from one broker to a set, and how many


def test_a_single_broker_becomes_a_set(make: MakeSet) -> None:
    """With its journal, which all nodes have before one serves; without it, the empty nodes found no set. On a busy
    machine, another node may have followed the first master."""
    whole = make()
    heir, *empty = whole.members
    single = BrokerProcess(heir.directory, "orders").start()
    try:
        single.wait_role("master")
        asyncio.run(_fill(single))
        assert single.terminate() == 0
    finally:
        single.stop()
    for member in empty:
        member.start()
    time.sleep(3 * T_SECONDS)
    assert whole.master() is None, "two of three found no set"
    heir.start()
    whole.settled()
    assert promotions_of(heir), "the node with the journal was the first master"
    heir.kill()
    whole.wait_master(empty)
    assert taken(whole, 100) == [f"old-{number}" for number in range(100)]
    heir.start()
    whole.settled()
    assert whole.problems() == []


async def _fill(broker: BrokerProcess) -> None:
    wire = await Wire.open(broker.stomp)
    for number in range(100):
        await stomp_wire.send(wire, QUEUE, f"old-{number}")
        assert (await wire.read()).command == "RECEIPT"
    wire.close()


# ---- disks


@pytest.fixture
def volume(tmp_path: Path, require_program: Callable[[object, str], None]) -> Iterator[Path]:
    """A directory with a capacity of VOLUME_BYTES."""
    directory = tmp_path / "volume"
    directory.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "tmpfs", str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    require_program(made.returncode == 0, f"tmpfs cannot be mounted here: {made.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.parametrize("of_the_master", [False, True], ids=["follower", "master"])
def test_a_full_disk_stops_one_node_only(make: MakeSet, volume: Path, of_the_master: bool) -> None:
    whole = make(directories={"n0": volume / "data"})
    small = whole.members[0]
    small.configure(whole.zookeeper_address, replicas=3, weight=10 if of_the_master else 0)
    whole.start()
    filler: list[Path] = []

    def fill(books: Books) -> None:
        filler.append(fill_up(volume))
        wanted = len(books.stored) + 500
        wait_until(lambda: len(books.stored) > wanted, "a quorum goes on", SECONDS_MAX)

    def free(books: Books) -> None:
        filler[0].unlink()
        whole.settled()

    books, _ = under_load(whole.addresses, fill, free)
    demand_kept(books)
    assert whole.problems() == []


def test_full_disks_of_a_quorum_hold_producers_and_it_goes_on_when_there_is_room(make: MakeSet, volume: Path) -> None:
    """Messages that are only on the master are not confirmed; a full node reports it, and needs no help afterwards."""
    whole = make(directories={"n0": volume / "n0", "n1": volume / "n1"})
    *small, large = whole.members
    large.configure(whole.zookeeper_address, replicas=3, weight=10)
    assert whole.start() is large
    filler: list[Path] = []

    def fill(books: Books) -> None:
        filler.append(fill_up(volume))
        wait_until(lambda: all(is_full(member) for member in small), "both say that their disks are full", SECONDS_MAX)
        stored = -1

        def is_still() -> bool:
            nonlocal stored
            before, stored = stored, len(books.stored)
            time.sleep(2 * T_SECONDS)
            return before == stored

        wait_until(is_still, "nothing is confirmed", SECONDS_MAX)
        filler[0].unlink()
        whole.settled()

    books, _ = under_load(whole.addresses, fill)
    demand_kept(books)
    assert whole.problems() == []


def is_full(member: MemberProcess) -> bool:
    return "No space left on device" in member.log.read_text()


# ---- how nodes find each other


def test_an_expired_session_changes_nothing(make: MakeSet) -> None:
    """ActiveMQ's replicated store never came back after its sessions had expired (AMQ-5082)."""
    whole = make()
    master = whole.start()
    server = whole.zookeepers[0]
    for _ in range(3):
        with server.paused():
            time.sleep(6 * T_SECONDS)  # longer than any session
            send(whole, "without")
        wait_until(
            lambda: all(not member.replication()["zookeeper"] for member in whole.members),
            "all are in the directory again",
            SECONDS_MAX,
        )
        send(whole, "with")
        assert whole.settled()[0] is master, "nobody was elected"
    assert taken(whole, 6) == ["without", "with"] * 3


# ---- other writers


def test_nobody_writes_into_a_members_directory_beside_the_set(make: MakeSet) -> None:
    """A broker without the set would begin an epoch that no quorum promised."""
    whole = make()
    whole.start()
    send(whole, "a")
    whole.quiet()
    member = whole.members[0]
    member.kill()
    before = member.content()
    options = ("--data", str(member.directory), "--stomp", "off", "--openwire", "off")
    done = forked.run([sys.executable, "-m", "tandemmq", "run", *options], cwd=ROOT, timeout=20)
    assert done.returncode != 0
    assert "set" in done.stderr + done.stdout
    assert member.content() == before
    member.start()
    whole.settled()
