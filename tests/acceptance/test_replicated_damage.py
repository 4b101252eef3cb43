"""Nodes of a set whose disks changed stored bytes: repaired from the other copies, before any delivery."""

from __future__ import annotations

import shutil

import pytest

from tests.acceptance.test_replicated_stories import send, taken
from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.replicated_fixtures import MakeSet
from tests.support.acceptance.replicated_fixtures import make as make
from tests.support.acceptance.replicated_fixtures import network as network
from tests.support.acceptance.replicated_fixtures import zookeepers as zookeepers
from tests.support.acceptance.set_of_brokers import MemberProcess, SetOfBrokers

pytestmark = [pytest.mark.service, pytest.mark.thorough, pytest.mark.promise("quorum-keeps-confirmed")]

# Where a byte is changed.
PLACE = 500_000
BODIES = [f"{number} ".ljust(9_000, "x") for number in range(700)]


def rot(member: MemberProcess, file: int, at: int = PLACE) -> bytes:
    """Change a byte of a file of this node; what was there before."""
    with open(member.directory / f"db-{file}.log", "r+b") as rotten:
        before = rotten.read()
        rotten.seek(at)
        rotten.write(bytes([before[at] ^ 1]))
    return before


def filled(whole: SetOfBrokers) -> tuple[list[int], list[str]]:
    """Return the numbers of sealed files of which each node has the byte at PLACE, and the messages."""
    for member in whole.members:
        member.start()
    whole.settled()
    again = send(whole, *BODIES)
    whole.settled()
    contents = [member.content() for member in whole.members]
    # A file that ended when another node was elected can be short.
    files = [file for file in sorted(contents[0]) if all(len(each.get(file, b"")) > PLACE for each in contents)][1:-1]
    assert len(files) >= 3
    return files, sorted([*BODIES, *again], key=BODIES.index)


def figure(member: MemberProcess, name: str) -> int:
    return int(((member.status() or {}).get("counts") or {}).get(name, 0))


@pytest.mark.parametrize("case", ["the scrubber finds it", "the promotion reads it", "the file is gone"])
def test_a_different_file_is_damaged_on_each_node(make: MakeSet, case: str) -> None:
    """All are killed at once. Each batch is sound on two nodes; no node has a sound journal."""
    whole = make()
    files, stored = filled(whole)
    for member in whole.members:
        member.kill()
    before = {member: rot(member, file) for member, file in zip(whole.members, files, strict=False)}
    for member, file in zip(whole.members, files, strict=False):
        if case == "the promotion reads it":
            shutil.rmtree(member.directory / "index")
        if case == "the file is gone":
            (member.directory / f"db-{file}.log").unlink()
    for member in whole.members:
        member.start()
    master, _ = whole.settled()
    for member, file in zip(whole.members, files, strict=False):
        path = member.directory / f"db-{file}.log"
        good = before[member].rstrip(b"\0")
        wait_until(lambda path=path, good=good: path.read_bytes().rstrip(b"\0") == good, f"{member.node} has it")  # type: ignore[misc]
        if case != "the file is gone" or member is master:
            wait_until(lambda member=member: figure(member, "repaired_batches_total"), "it is counted")  # type: ignore[misc]
        assert figure(member, "damaged_journal_files") == 0
    assert taken(whole, len(BODIES)) in (stored, BODIES)
    assert whole.problems() == []


def test_a_master_repairs_what_it_reads_and_delivers_in_order(make: MakeSet) -> None:
    whole = make()
    files, stored = filled(whole)
    first, others = whole.settled()
    first.kill()
    first.start()  # who is master now has none of the messages in memory
    wait_until(lambda: whole.settled()[0] is not first, "another one leads")
    master, others = whole.settled()
    for file in files[-3:]:
        rot(master, file)
    rot(others[0], files[-3], 200_000)
    assert taken(whole, len(BODIES)) in (stored, BODIES)
    assert figure(master, "damaged_messages_total") == 0
    assert figure(master, "repaired_batches_total") >= 1
    assert whole.settled()[0] is master
    assert whole.problems() == []
