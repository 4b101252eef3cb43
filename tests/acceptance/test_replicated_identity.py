"""A disk identifies a node of a set: real brokers return under other names, with a copy of a disk, with an older disk.

``TANDEMMQ_PROVE=20 pytest --services tests/acceptance/test_replicated_identity.py -k renamed -s`` renames 20 times, as
`make prove` does, and prints the times without a master. tests/model/simulator/test_sets.py proves the maximum time in
virtual time.
"""

from __future__ import annotations

import random
from functools import partial

import pytest

from tests.support.acceptance.broker_process import tandemmq
from tests.support.acceptance.load import Books
from tests.support.acceptance.replicated_fixtures import MakeSet
from tests.support.acceptance.replicated_fixtures import make as make
from tests.support.acceptance.replicated_fixtures import network as network
from tests.support.acceptance.replicated_fixtures import zookeepers as zookeepers
from tests.support.acceptance.set_of_brokers import SetOfBrokers
from tests.support.acceptance.set_rounds import ANYWHERE
from tests.support.acceptance.under_load import demand_kept, under_load
from tests.support.prove import SEED, rounds

pytestmark = [
    pytest.mark.service,
    pytest.mark.thorough,
    pytest.mark.prove,
    pytest.mark.timeout(1_800),
    pytest.mark.promise("quorum-keeps-confirmed", "set-has-one-master"),
]

RENAMES = rounds(1, 20)


@pytest.mark.parametrize(
    ("name", "count"),
    [("all renamed", RENAMES), ("disk cloned", 1), ("snapshot restored", 1)],
    ids=lambda each: str(each),
)
def test_a_node_is_its_disk(make: MakeSet, name: str, count: int) -> None:
    whole, dice = make(), random.Random(SEED)
    whole.start()
    books, _ = under_load(whole.addresses, *[partial(play, whole, name, dice)] * count)
    print(f"{count} x {name}: {len(books.stored)} confirmed, {len(books.problems())} lost or undone")
    demand_kept(books)
    assert whole.problems() == []


def play(whole: SetOfBrokers, name: str, dice: random.Random, books: Books) -> None:
    ANYWHERE[name][0](whole, dice)
    master, _ = whole.settled()
    if name == "all renamed":
        shown = tandemmq("replication", "status", "--admin", master.admin_url).stdout.split("\n")
        for member in whole.members:
            assert any(line.split()[:2] == [member.node, member.replication()["was"]] for line in shown), shown
            assert len([*(member.directory / "index").glob("*.events")]) == 1, "its events go on in one file"
