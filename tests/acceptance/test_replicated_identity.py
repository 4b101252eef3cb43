"""A node of a set is its disk: real brokers that return under other names, with a copy of a disk, with an older disk.

What a set of any names elects, and how fast, is proved in virtual time (tests/model/simulator/test_sets.py). Here
``TANDEMMQ_PROVE=20 pytest --services tests/acceptance/test_replicated_identity.py -k names -s`` renames 20 times.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable

import pytest

from tests.support.acceptance.broker_process import tandemmq, wait_until
from tests.support.acceptance.load import Books
from tests.support.acceptance.replicated_fixtures import MakeSet
from tests.support.acceptance.replicated_fixtures import make as make
from tests.support.acceptance.replicated_fixtures import network as network
from tests.support.acceptance.replicated_fixtures import zookeepers as zookeepers
from tests.support.acceptance.set_of_brokers import (
    SETTLED_SECONDS_MAX,
    T_MILLISECONDS,
    MemberProcess,
    SetOfBrokers,
    replaced,
)
from tests.support.acceptance.under_load import demand_kept, under_load
from tests.support.prove import rounds

pytestmark = [
    pytest.mark.service,
    pytest.mark.thorough,
    pytest.mark.promise("quorum-keeps-confirmed", "set-has-one-master"),
]

RENAMES = rounds(1, 20)


def stores(whole: SetOfBrokers) -> dict[MemberProcess, str]:
    return {member: str(member.replication()["store"]) for member in whole.members}


def renaming(whole: SetOfBrokers, number: int) -> Callable[[Books], None]:
    """All are killed, and come back with names that nobody had, or in every other round with each other's."""

    def rename(books: Books) -> None:
        whole.settled()
        before = stores(whole)
        for member in whole.members:
            member.kill()
        former = [member.node for member in whole.members]
        names = [*former[1:], former[0]] if number % 2 else [f"host-{number}-{place}" for place in range(len(former))]
        for member, name in zip(whole.members, names, strict=True):
            member.node = name
            member.configure(whole.zookeeper_address, replicas=whole.replicas)
            member.start()
        links = wait_until(lambda: linked(whole), "a quorum can talk", SETTLED_SECONDS_MAX)
        began = time.monotonic()
        whole.wait_master()
        took = time.monotonic() - began
        print(
            f"{number}: {', '.join(names)}: a master {took:.2f} s after {links} nodes can talk, T {T_MILLISECONDS} ms"
        )
        master, _ = whole.settled()
        assert stores(whole) == before
        assert all(member.replication()["is_voter"] for member in whole.members)
        shown = tandemmq("replication", "status", "--admin", master.admin_url).stdout
        for name, was in zip(names, former, strict=True):
            assert f"{name} {was} " in " ".join(shown.split()) + " "

    return rename


def linked(whole: SetOfBrokers) -> int:
    """How many have a link to another one, if they are a quorum; else 0."""
    count = sum(bool(member.replication().get("links")) for member in whole.members)
    return count if count > len(whole.members) // 2 else 0


@pytest.mark.prove
@pytest.mark.timeout(240 + 60 * RENAMES)
def test_a_set_whose_members_all_return_under_other_names_goes_on(make: MakeSet) -> None:
    whole = make()
    whole.start()
    books, _ = under_load(whole.addresses, *(renaming(whole, number) for number in range(RENAMES)))
    print(f"{RENAMES} renames: {len(books.stored)} confirmed, {len(books.problems())} lost or undone")
    demand_kept(books)
    assert whole.problems() == []


def test_of_two_nodes_with_copies_of_one_disk_none_is_let_in(make: MakeSet) -> None:
    whole = make()
    whole.start()
    cloned = whole.settled()[1][0]
    others = whole.others(cloned)
    store = stores(whole)[cloned]
    cloned.kill()
    clone = whole.add_member("clone")
    shutil.copytree(cloned.directory, clone.directory)
    whole.members.remove(clone)

    def both_run(books: Books) -> None:
        cloned.start()
        clone.start()
        for witness in others:
            wait_until(lambda: store in str(witness.replication().get("twins")), "it is seen", SETTLED_SECONDS_MAX)  # noqa: B023
            witness.wait_log(f"store {store} is used by two nodes")
        whole.settled(others)
        for member in (cloned, clone):
            wait_until(lambda: not member.replication()["links"], "nobody lets it in", SETTLED_SECONDS_MAX)  # noqa: B023
        shown = tandemmq("replication", "status", "--admin", others[0].admin_url).stdout
        assert f"{cloned.node} at " in shown
        assert "clone at " in shown

    def one_goes(books: Books) -> None:
        clone.stop()
        cloned.kill()
        cloned.lose_promise()
        cloned.start()
        replaced(whole, cloned, store)

    try:
        books, _ = under_load(whole.addresses, both_run, one_goes)
    finally:
        clone.stop()
    demand_kept(books)
    assert whole.problems() == []


def test_a_node_whose_disk_was_restored_within_its_life_does_not_vote_until_it_has_caught_up(make: MakeSet) -> None:
    whole = make()
    whole.start()
    victim = whole.settled()[1][0]
    snapshot = victim.path / "snapshot"

    def restore(books: Books) -> None:
        victim.kill(signal.SIGSTOP)
        shutil.copytree(victim.directory, snapshot)
        victim.kill(signal.SIGCONT)
        wanted = len(books.stored) + 2_000
        wait_until(lambda: len(books.stored) > wanted, "it acknowledges more", SETTLED_SECONDS_MAX)
        victim.kill()
        victim.restore(snapshot)
        victim.start()
        victim.wait_log("this disk has less than it had acknowledged")
        whole.settled()

    books, _ = under_load(whole.addresses, restore)
    demand_kept(books)
    assert whole.problems() == []
