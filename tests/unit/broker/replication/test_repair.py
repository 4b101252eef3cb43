"""A node repairs sealed files of its own journal with what other members have, and nothing else."""

# proves: replication-repair

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.journal.errors import Deposed
from tandemmq.journal.format import location
from tests.support.replication.small_set import NewSet, SmallNode, SmallSet


def sealed(whole: SmallSet, master: SmallNode) -> int:
    """A file that all have, that nobody writes any more, and that is final."""
    for number in range(30):
        master.write(f"{number}-" + "z" * 5_000)
    whole.until_same()
    whole.until(lambda: all(node.replica.final[0] > master.epoch for node in whole.others(master)), "it is final")
    return master.epoch


def rot(node: SmallNode, file: int, *places: int) -> bytes:
    """What was there before."""
    path = node.directory / f"db-{file}.log"
    content = path.read_bytes()
    rotten = bytearray(content)
    for at in places:
        rotten[at] ^= 0xFF
    with open(path, "r+b") as writing:  # the same inode: a held descriptor sees it
        writing.write(rotten)
    return content


def is_sound(whole: SmallSet, node: SmallNode, file: int) -> bool:
    asked = node.authority.mend(file)
    whole.threads.wait([asked])
    return asked.result()


@pytest.mark.parametrize("is_leader", [True, False])
@pytest.mark.parametrize("places", [(1000,), (3,), (7_000, 20_000, 20_001), (10_070, 15_000)])
def test_damaged_batches_are_got_from_others(whole: SmallSet, is_leader: bool, places: tuple[int, ...]) -> None:
    master = whole.elect()
    file = sealed(whole, master)
    node = master if is_leader else whole.others(master)[0]
    content = rot(node, file, *places)
    whole.until(lambda: is_sound(whole, node, file), "it is repaired")
    assert (node.directory / f"db-{file}.log").read_bytes() == content
    figures = node.replica.scrubber.figures
    assert figures["repaired_batches_total"] >= len(places) - 1 or 1
    assert figures["damaged_journal_files"] == 0
    assert node.replica.status()["is_whole"], "its vote did not depend on it"
    master.write("b")
    whole.until_same()
