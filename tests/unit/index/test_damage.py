"""Flipped bits, lost files, old pages: reported, never taken for data."""

# proves: free-list-of-this-root, page-of-its-pointer, root-checksum

import os
import random

import pytest

from tandemmq.index import Index, IndexDamaged
from tandemmq.index.check import check
from tandemmq.index.freelist import FreeSlot
from tandemmq.index.page import LEAF, Header, Pointer, seal, verify
from tandemmq.index.recovery import is_list_of
from tandemmq.index.roots import Root


@pytest.fixture
def filled(tmp_path, tools):
    """The files of an index, and what it held at its last two generations."""
    directory = str(tmp_path / "filled")
    states = []
    with Index.open(directory, tools.plain, page_size=512) as index:
        tools.write(index, {tools.key(n): b"old %d" % n for n in range(400)})
        states.append(dict(index.scan()))
        tools.write(index, {tools.key(n): b"new %d" % n for n in range(0, 400, 9)})
        states.append(dict(index.scan()))
    image = {}
    for name in ("db.data", "db.free"):
        with open(os.path.join(directory, name), "rb") as file:
            image[name] = bytearray(file.read())
    return image, states


def test_a_page_left_by_a_dead_checkpoint_is_not_used():
    """The next one is of the same generation, and its write to the same place was lost."""
    header = Header(LEAF, 0, 0, page=3, prefix_bytes=0, zero=0, generation=7, incarnation=1)
    left, checksum = seal(header, b"left behind", 512)
    meant, meant_checksum = seal(header._replace(incarnation=2), b"meant", 512)
    pointer = Pointer(3, 7, meant_checksum)
    assert verify(meant, pointer, 512).incarnation == 2
    assert checksum != meant_checksum
    with pytest.raises(IndexDamaged):
        verify(left, pointer, 512)


def test_a_flipped_byte_in_a_page_is_reported_and_never_data(filled, tools, tmp_path):
    image, (_, state) = filled
    directory = str(tmp_path / "flipped")
    source = random.Random(11)
    damaged = 0
    for _ in range(200):
        flipped = {name: bytearray(content) for name, content in image.items()}
        at = source.randrange(8192, len(flipped["db.data"]))
        flipped["db.data"][at] ^= 1 << source.randrange(8)
        tools.put(directory, flipped)
        report = check(directory, tools.plain)
        with Index.open(directory, tools.plain) as index:
            try:
                assert dict(index.scan()) == state
            except IndexDamaged:
                damaged += 1
                assert not report.is_sound
            for key, value in state.items():
                try:
                    assert index.get(key) == value
                except IndexDamaged:
                    assert not report.is_sound
    assert damaged > 50


@pytest.mark.parametrize("slot", [0, 1])
def test_a_flipped_byte_in_a_root_slot_leads_to_the_other_root(filled, tools, tmp_path, slot):
    image, (old, new) = filled
    directory = str(tmp_path / "flipped")
    for at in [*range(0, 100), 1000, 4095]:
        flipped = {name: bytearray(content) for name, content in image.items()}
        flipped["db.data"][slot * 4096 + at] ^= 0x10
        tools.put(directory, flipped)
        assert "one root slot is invalid" in check(directory, tools.plain).notes
        with Index.open(directory, tools.plain) as index:
            assert dict(index.scan()) == (old if slot == 0 else new)
            tools.recover(index)
            tools.write(index, {b"x": b"y"})
            tools.write(index, {b"x": None})
            assert dict(index.scan()) == (old if slot == 0 else new)
        tools.assert_sound(directory, without_notes=True)


def test_a_flipped_byte_in_db_free_costs_a_search_and_nothing_else(filled, tools, tmp_path):
    image, (_, state) = filled
    directory = str(tmp_path / "flipped")
    for at in range(60):
        flipped = {name: bytearray(content) for name, content in image.items()}
        flipped["db.free"][at] ^= 0x40
        tools.put(directory, flipped)
        with Index.open(directory, tools.plain) as index:
            assert index.needs_free_page_recovery
            tools.recover(index)
            tools.write(index, {})
            assert dict(index.scan()) == state
        tools.assert_sound(directory, without_notes=True)


def test_an_old_page_in_a_new_ones_place_is_seen(filled, tools, tmp_path):
    """The page is as after a disk that acknowledged a write and lost it."""
    image, _ = filled
    directory = str(tmp_path / "old")
    data = image["db.data"]
    data[8192 : 8192 + 512], data[8704 : 8704 + 512] = data[8704 : 8704 + 512], data[8192 : 8192 + 512]
    tools.put(directory, image)
    assert not check(directory, tools.plain).is_sound


def test_a_file_cut_short_is_damage(filled, tools, tmp_path):
    image, _ = filled
    directory = str(tmp_path / "cut")
    del image["db.data"][8192 + 700 :]
    tools.put(directory, image)
    assert not check(directory, tools.plain).is_sound
    with Index.open(directory, tools.plain) as index, pytest.raises(IndexDamaged):
        list(index.scan())


def test_a_file_cut_within_its_roots_grows_no_strangers(tools, tmp_path):
    """A root ends in zeros: what was cut off comes back when the file grows."""
    directory = str(tmp_path / "one")
    with Index.open(directory, tools.plain, page_size=512) as index:
        tools.write(index, {b"key": b"value"})
    with open(os.path.join(directory, "db.data"), "rb") as file:
        data = bytearray(file.read())
    for length in range(8000, 8192, 7):
        tools.put(directory, {"db.data": data[:length]})
        with Index.open(directory, tools.plain, notes_damage=False) as index, pytest.raises(IndexDamaged):
            tools.write(index, {b"other": b"value"})


def test_damage_that_was_met_is_noted_and_the_next_opening_refuses(filled, tools, tmp_path):
    """Opening reads no pages: without the note it would be used again, and fail again."""
    image, _ = filled
    directory = str(tmp_path / "noted")
    tools.put(directory, image)
    with Index.open(directory, tools.plain) as index:
        root = index._last.pointer
    image["db.data"][8192 + (root.page - 1) * 512 + 40] ^= 1
    tools.put(directory, image)
    with Index.open(directory, tools.plain, notes_damage=False) as index, pytest.raises(IndexDamaged):
        list(index.scan())
    with Index.open(directory, tools.plain) as index, pytest.raises(IndexDamaged):
        list(index.scan())
    with pytest.raises(IndexDamaged, match=f"page {root.page} "):
        Index.open(directory, tools.plain)


def test_damage_met_by_a_checkpoint_leaves_the_published_root_alone(filled, tools, tmp_path):
    image, _ = filled
    directory = str(tmp_path / "damaged")
    tools.put(directory, image)
    with Index.open(directory, tools.plain) as index:
        root = index._last.pointer
        generation = index.generation
    data = image["db.data"]
    data[8192 + (root.page - 1) * 512 + 40] ^= 1
    tools.put(directory, image)
    with Index.open(directory, tools.plain) as index:
        with pytest.raises(IndexDamaged):
            tools.write(index, {b"x": b"y"})
        assert index.generation == generation


def test_a_list_is_believed_only_if_the_root_names_all_of_it():
    root = Root(512, 1, 5, 77, 99, 10, 3, Pointer(1, 5, 0), b"")
    good = {"unique_id": 99, "generation": 5, "incarnation": 77, "page_count": 10, "free": [], "waiting": []}
    assert is_list_of(FreeSlot(**good), root)
    for field in ("unique_id", "generation", "incarnation", "page_count"):
        assert not is_list_of(FreeSlot(**{**good, field: good[field] + 1}), root)


def test_no_list_is_believed_when_the_root_names_none():
    root = Root(512, 1, 5, 77, 0, 10, 3, Pointer(1, 5, 0), b"")
    assert not is_list_of(FreeSlot(0, 5, 77, 10, [], []), root)
