"""A set of real brokers, in which some disks sync slowly, or some clocks are wrong.

For the disks of a single broker see tests/acceptance/test_faults.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.load import Books
from tests.support.acceptance.replicated_fixtures import MakeSet
from tests.support.acceptance.replicated_fixtures import make as make
from tests.support.acceptance.replicated_fixtures import network as network
from tests.support.acceptance.replicated_fixtures import zookeepers as zookeepers
from tests.support.acceptance.set_of_brokers import SetOfBrokers
from tests.support.acceptance.stomp_wire import LOST, connect_any
from tests.support.acceptance.under_load import demand_kept, under_load, wait_for_receipts
from tests.support.acceptance.zombie_shim import Area, Shim, Verb
from tests.support.acceptance.zombie_shim import library as library

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]

#: A sync takes so long: eight times T.
SYNC_SECONDS = 4.0
SECONDS_MAX = 120.0
#: A time is reported in whole milliseconds.
CLOCK_SECONDS = 0.002
BEHIND_SECONDS = 3.0
QUEUE = "/queue/scheduled"
#: A sync of all files holds the journal, too: the other one is for `make prove`.
AREAS = pytest.mark.parametrize(
    "area",
    [
        pytest.param(Area.JOURNAL, id="its journal", marks=[pytest.mark.prove, pytest.mark.proof_only]),
        pytest.param(Area.VOLUME, id="all its files"),
    ],
)


@pytest.fixture
def shims(library: Path) -> Iterator[dict[str, Shim]]:
    """Of each node, once ``equip`` has made them."""
    made: dict[str, Shim] = {}
    yield made
    for shim in made.values():
        shim.close()


@pytest.fixture
def three(make: MakeSet, library: Path, shims: dict[str, Shim]) -> SetOfBrokers:
    """Run a set; each node has its shim."""
    whole = make()
    for member in whole.members:
        shims[member.node] = Shim(library, member.path / "shim", member.directory)
        member.environment = shims[member.node].environment
    whole.start()
    return whole


def hang(shims: list[Shim], area: Area) -> float:
    """Each is held in a sync on return: since when."""
    before = [shim.held for shim in shims]
    for shim in shims:
        shim.hold(Verb.SYNC, area)
    wait_until(lambda: all(shim.held > held for shim, held in zip(shims, before, strict=True)), "they sync")
    return time.monotonic()


def let_go_after(shims: list[Shim], since: float) -> None:
    time.sleep(max(0.0, since + SYNC_SECONDS - time.monotonic()))
    for shim in shims:
        shim.let_go()


@pytest.mark.parametrize("slow", ["both followers", "the master"])
@AREAS
def test_a_sync_of_four_seconds_deposes_nobody(
    three: SetOfBrokers, shims: dict[str, Shim], slow: str, area: Area
) -> None:
    """Receipts wait for it: no quorum is faster."""
    master, followers = three.settled()
    epoch = master.replication()["epoch"]
    nodes = {"both followers": followers, "the master": [master]}[slow]
    held = [shims[member.node] for member in nodes]

    def take_long(books: Books) -> None:
        since = hang(held, area)
        let_go_after(held, since)
        three.settled()

    books, outages = under_load(three.addresses, take_long)
    demand_kept(books)
    now, _ = three.settled()
    assert (now, now.replication()["epoch"]) == (master, epoch), "nobody was elected"
    assert three.problems() == []
    print(f"{slow}, {area.name}: {len(books.stored)} confirmed, {outages[0]:.2f} s without a receipt")


@AREAS
def test_an_election_beside_a_sync_of_four_seconds_ends_well(
    three: SetOfBrokers, shims: dict[str, Shim], area: Area
) -> None:
    """The messages confirmed meanwhile are on the other two nodes; one of them ends, and the slow one is needed."""
    master, followers = three.settled()
    slow, other = followers
    held = [shims[slow.node]]

    def take_long_and_lose_the_master(books: Books) -> None:
        since = hang(held, area)
        wait_for_receipts(books, 500)
        master.kill()
        let_go_after(held, since)
        assert three.wait_master([slow, other]) is other, "it alone has everything"
        wait_for_receipts(books)
        master.start()
        three.settled()

    books, _ = under_load(three.addresses, take_long_and_lose_the_master)
    demand_kept(books)
    assert three.problems() == []


def test_scheduled_messages_come_once_and_not_before_they_are_due(three: SetOfBrokers, shims: dict[str, Shim]) -> None:
    """The master is killed while some are due and some are not; the next one, whose clock is behind, is stopped."""
    first, followers = three.settled()
    for member in followers:
        shims[member.node].step_wall_clock(-BEHIND_SECONDS)
    due: dict[str, float] = {}
    expected = Counter({f"once-{number}": 1 for number in range(30)} | {"often": 6})
    # By message id: what it says and when it came first; and what was acknowledged for good.
    came: dict[str, tuple[str, float]] = {}
    confirmed: set[str] = set()

    async def schedule() -> None:
        wire = await connect_any(three.addresses)
        for body in expected:
            delay = 1_000 if body == "often" else 1_000 + 250 * int(body.partition("-")[2])
            repeats = {"AMQ_SCHEDULED_PERIOD": "700", "AMQ_SCHEDULED_REPEAT": "5"} if body == "often" else {}
            headers = {"destination": QUEUE, "persistent": "true", "receipt": body, "AMQ_SCHEDULED_DELAY": str(delay)}
            due[body] = time.time() + delay / 1_000
            wire.send("SEND", headers | repeats, body.encode())
            assert (await asyncio.wait_for(wire.read(), SECONDS_MAX)).command == "RECEIPT"
        wire.close()

    async def take() -> None:
        while True:
            wire = await connect_any(three.addresses, SECONDS_MAX)
            wire.send("SUBSCRIBE", {"id": "0", "destination": QUEUE, "ack": "client-individual"})
            with contextlib.suppress(*LOST):
                while True:
                    frame = await wire.read()
                    if frame.command == "RECEIPT":
                        confirmed.add(frame.headers["receipt-id"])
                        continue
                    id = frame.headers["message-id"]
                    assert id not in confirmed, f"{id} comes again"
                    came.setdefault(id, (frame.body.decode(), time.time()))
                    wire.send("ACK", {"id": frame.headers["ack"], "receipt": id.replace(":", "\\c")})
            wire.close()

    async def story() -> None:
        await schedule()
        taking = asyncio.create_task(take())

        async def until(count: int) -> None:
            async with asyncio.timeout(SECONDS_MAX):
                while len(came) < count:
                    if taking.done():
                        taking.result()
                    await asyncio.sleep(0.02)

        await until(8)
        await asyncio.to_thread(first.kill)
        second = await asyncio.to_thread(three.wait_master, followers)
        first.start()
        await until(16)
        await asyncio.to_thread(three.settled)
        assert await asyncio.to_thread(second.terminate) == 0
        await until(expected.total())
        await asyncio.sleep(1.5)  # what comes twice would come now
        taking.cancel()

    asyncio.run(story())
    assert Counter(body for body, _ in came.values()) == expected
    for body, at in came.values():
        assert at > due[body] - CLOCK_SECONDS, f"{body} came {due[body] - at:.3f} s too early"
