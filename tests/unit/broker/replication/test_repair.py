"""A node repairs sealed files of its own journal with what other members have, and nothing else."""

# proves: replication-repair

from __future__ import annotations

import os
import shutil
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from tandemmq.broker.replication.messages import Fetch, Message, Piece
from tandemmq.broker.replication.peers import Known
from tandemmq.broker.replication.quorum import Lineage
from tandemmq.broker.replication.repair import KNOWS_FETCH, MemberCopies, OwnCopy
from tandemmq.journal.scan import FileSource, scan
from tandemmq.store.maintenance.scrubber import Damaged
from tests.support.replication.losing_disk import LosingDisk
from tests.support.replication.noted_link import NotedLink
from tests.support.replication.small_set import NewSet, SmallNode, SmallSet


def begun(whole: SmallSet) -> tuple[SmallNode, int]:
    """Return a master, and a file that all nodes have, that is final and that no node writes."""
    master = whole.elect()
    for number in range(30):
        master.write(f"{number}-" + "z" * 5_000)
    whole.until_same()
    whole.until(lambda: all(node.replica.final[0] > master.epoch for node in whole.others(master)), "it is final")
    for node in whole.nodes:
        whole.until(lambda node=node: knows_all(node), "what the others say of themselves")  # type: ignore[misc]
    return master, master.epoch


def knows_all(node: SmallNode) -> bool:
    return all(KNOWS_FETCH in (each["said"] or ()) for each in node.replica.overview()["members"])


def rot(node: SmallNode, file: int, *places: int) -> bytes:
    """Change these bytes of the file that is there; what was there before."""
    with open(node.files.path(file), "r+b") as rotten:
        content = rotten.read()
        for at in places:
            rotten.seek(at)
            rotten.write(bytes([content[at] ^ 0xFF]))
    return content


def is_sound(whole: SmallSet, node: SmallNode, file: int) -> bool:
    asked = node.authority.mend(file)
    whole.threads.wait([asked])
    return asked.result()


def content(node: SmallNode, file: int) -> bytes:
    with open(node.files.path(file), "rb") as reading:
        return reading.read()


def copy_of(node: SmallNode) -> OwnCopy:
    (own,) = node.replica.scrubber.journals()
    assert isinstance(own, OwnCopy)
    return own


@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
@pytest.mark.parametrize(
    ("places", "batches"), [((1_000,), 1), ((3,), 1), ((7_000, 20_000, 20_001), 2), ((10_200, 15_400), 2)]
)
def test_damaged_batches_are_got_from_another(
    whole: SmallSet, is_leader: bool, places: tuple[int, ...], batches: int
) -> None:
    """The rule includes damage in the header of the file and in the length of a batch. The vote does not depend on
    it."""
    master, file = begun(whole)
    node = master if is_leader else whole.others(master)[0]
    before = rot(node, file, *places)
    whole.until(lambda: is_sound(whole, node, file), "it is repaired")
    assert content(node, file) == before
    figures = node.replica.scrubber.figures
    assert (figures["repaired_batches_total"], figures["damaged_journal_files"]) == (batches, 0)
    assert node.replica.status()["is_whole"]
    master.write("b")
    whole.until_same()


def test_a_file_that_is_missing_and_needed_is_restored_whole_or_not_at_all(whole: SmallSet) -> None:
    master, file = begun(whole)
    before = content(master, file)
    os.unlink(master.files.path(file))
    first, second = whole.others(master)
    rot(first, file, 40_000)
    rot(second, file, 40_000)
    assert not is_sound(whole, master, file)
    assert not master.files.exists(file)
    with open(first.files.path(file), "r+b") as good:
        good.write(before)
    whole.until(lambda: is_sound(whole, master, file), "it is restored")
    assert content(master, file).rstrip(b"\0") == before.rstrip(b"\0")
    assert not list(master.directory.glob("*.restored"))
    assert master.replica.scrubber.figures["repaired_batches_total"] > 5


def test_a_damaged_file_that_the_master_gave_up_is_removed(whole: SmallSet) -> None:
    """No node can repair or needs the file: the follower has everything that the master has."""
    master, file = begun(whole)
    node, other = whole.others(master)
    rot(node, file, 4_000)
    os.unlink(other.files.path(file))
    assert is_sound(whole, node, file), "the master has it"
    rot(node, file, 4_000)
    os.unlink(master.files.path(file))
    assert not is_sound(whole, node, file)
    whole.until(lambda: not node.files.exists(file), "it is removed when it follows anew")
    master.write("b")
    whole.until_same()


def test_the_scrubber_finds_it_on_every_node_by_itself(make: NewSet) -> None:
    whole = make(3)
    _, file = begun(whole)
    before = [rot(node, file, 2_000 + 7_000 * number) for number, node in enumerate(whole.nodes)]
    for node in whole.nodes:
        whole.until(lambda node=node: node.replica.scrubber.figures["repaired_batches_total"], "it was found")  # type: ignore[misc]
    assert [content(node, file) for node in whole.nodes] == before


def test_a_batch_without_a_sound_copy_is_repaired_when_a_node_has_one(whole: SmallSet) -> None:
    master, file = begun(whole)
    first, second = whole.others(master)
    before = [rot(node, file, 9_000) for node in (first, second, master)]
    assert not is_sound(whole, master, file)
    assert master.replica.scrubber.figures["damaged_journal_files"] == 1
    with open(second.files.path(file), "r+b") as restored:
        restored.write(before[1])
    whole.until(lambda: is_sound(whole, master, file), "it is repaired")
    whole.until(lambda: is_sound(whole, first, file), "so is the other")
    assert content(first, file) == content(master, file) == before[0]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_repair_that_counts_survives_the_loss_of_power(make: NewSet, is_there: bool) -> None:
    whole = make(3, disk=LosingDisk)
    master, file = begun(whole)
    before = rot(master, file, 4_000)
    if not is_there:
        os.unlink(master.files.path(file))
    whole.until(lambda: is_sound(whole, master, file), "it is repaired")
    assert master.replica.scrubber.figures["repaired_batches_total"]
    master.lose_power(lambda number: True)
    assert content(master, file).rstrip(b"\0") == before.rstrip(b"\0")


# ---- members that may get data, and which data


NOBODY: Any = (SimpleNamespace(ours={}), Known(lambda: 0.0))


class Member:
    """Member as MemberCopies sees it."""

    def __init__(self, node: SmallNode) -> None:
        self.node, self.state = node, node.replica.state
        self.link = NotedLink()
        self.copies = MemberCopies(self.state, *NOBODY)

    def answer(self, file: int, offset: int, lineage: Lineage, set_id: str = "") -> list[Piece]:
        del self.link.sent[:]
        self.copies.answer(self.link, Fetch(7, set_id or str(self.state.set), lineage, file, offset))
        return [each for each in self.link.sent if isinstance(each, Piece)]


def test_a_member_gives_whole_sound_batches_of_the_common_history(whole: SmallSet) -> None:
    master, file = begun(whole)
    member = Member(whole.others(master)[0])
    lineage = member.state.lineage
    first, second = list(scan(master.files, file))[:2]
    good = content(master, file)[second.offset : second.end]
    assert member.answer(file, second.offset, lineage) == [Piece(7, file, second.offset, second.end, len(good), good)]
    cut = (lineage[-1][0], file, second.end)
    for refused in (
        member.answer(file, second.offset + 1, lineage),
        member.answer(file, second.offset, (*lineage[:-1], (cut[0], file, second.end - 1))),  # cut in the middle of it
        member.answer(file, second.offset, ((77, 77, 1),)),  # no history in common
        member.answer(file, second.offset, lineage, set_id="ab" * 16),
        member.answer(999, 0, lineage),
    ):
        assert [(each.length, each.data) for each in refused] == [(0, b"")]
    assert member.answer(file, second.offset, (*lineage[:-1], cut))[0].length == len(good), "it ends there"
    rot(member.node, file, second.offset + 100)
    assert member.answer(file, second.offset, lineage)[0].length == 0, "its own is damaged"
    assert member.answer(file, first.offset, lineage)[0].length == first.end


NEW = {KNOWS_FETCH: {}}


class Answering:
    """A link to a member that answers FETCH with ``data``, at once."""

    def __init__(self, copies: MemberCopies, member: Any, data: bytes, length: int) -> None:
        self.member, self._copies, self._data, self._length = member, copies, data, length

    def send(self, message: Message) -> None:
        assert isinstance(message, Fetch)
        assert self.member.node != "n1"
        at, end = message.offset, message.offset + len(self._data)
        stranger = Answering(self._copies, self.member, b"", 0)
        self._copies.add_piece(stranger, Piece(message.id, 1, at, 0, 0, b""))  # type: ignore[arg-type]  # another link's
        self._copies.add_piece(self, Piece(message.id - 1, 1, at, 0, 0, b""))  # type: ignore[arg-type]  # to a former question
        half = len(self._data) // 2
        self._copies.add_piece(self, Piece(message.id, 1, at, 0, self._length, self._data[:half]))  # type: ignore[arg-type]
        self._copies.add_piece(self, Piece(message.id, 1, at + half, end, self._length, self._data[half:]))  # type: ignore[arg-type]


def test_a_fetched_batch_is_verified_before_it_is_used(whole: SmallSet) -> None:
    master, file = begun(whole)
    batch = next(iter(scan(master.files, file)))
    good = content(master, file)[: batch.end]
    links: Any = SimpleNamespace(ours={})
    known = Known(lambda: 0.0)
    copies = MemberCopies(master.replica.state, links, known)
    for number, (data, status) in enumerate(
        ((good, {}), (good[:-1] + b"?", NEW), (good[:-1], NEW), (b"", NEW), (good, NEW), (good, NEW)), start=1
    ):
        member = NotedLink(number).member
        known.note(member.store, status)
        links.ours[member.store] = Answering(copies, member, data, len(good))
    assert copies.fetch(file, 0, ()) == (good, "n5"), "the first is of an older version, and is not asked"
    copies.end()
    assert copies.fetch(file, 0, ()) is None


# ---- the place of the write


def test_only_sealed_files_that_cannot_be_cut_are_repaired(whole: SmallSet) -> None:
    master, file = begun(whole)
    follower, other = whole.others(master)
    assert copy_of(master).below == master.replica.state.position.file
    assert file < copy_of(follower).below <= follower.replica.state.position.file
    for node in (master, other):
        node.stop()
    follower.kill()
    follower.start()
    assert copy_of(follower).below == 0, "what is final is not known before a master tells"
    assert not is_sound(whole, follower, file)


def test_a_write_is_refused_where_anything_has_changed(whole: SmallSet) -> None:
    master, file = begun(whole)
    node = whole.others(master)[0]
    own, state = copy_of(node), node.replica.state
    open_file, lineage = state.position.file, state.lineage
    batch = next(iter(scan(node.files, file)))
    good = content(node, file)[: batch.end]
    path = node.files.path(file)
    fd = os.open(path, os.O_RDWR)
    try:
        assert own.write(fd, file, 0, good, lineage)
        epoch = lineage[-1][0]
        assert not own.write(fd, file, 0, good, ((epoch, file, batch.end - 1),)), "the question was about less"
        assert own.write(fd, file, 0, good, ((epoch, file, batch.end),))
        assert not own.write(fd, file, 0, good, ((99, 99, 1),)), "it has another history by now"
        tail = os.open(node.files.path(open_file), os.O_RDWR)
        assert not own.write(tail, open_file, 0, good[:10], lineage), "the open tail"
        os.close(tail)
        shutil.copy(path, f"{path}.new")
        os.replace(f"{path}.new", path)
        assert not own.write(fd, file, 0, good, lineage), "the name leads to another file"
        with closing(FileSource(node.files, file)) as source:
            shutil.copy(path, f"{path}.new")
            os.replace(f"{path}.new", path)
            assert own.mend(Damaged(file, source, ((0, batch.end),))) == (), "what was read had this name before"
    finally:
        os.close(fd)
