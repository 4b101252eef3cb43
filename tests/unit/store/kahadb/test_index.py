"""Reading db.data: each version, long objects, the redo buffer, and damage. The bytes are built here."""

# proves: aside-name-durable, minimal-index-name-durable, minimal-index-sync

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from tandemmq.journal.format import location
from tandemmq.store.kahadb.index import KahaIndex, read_index
from tandemmq.store.kahadb.java_objects import AuditImage, decode_audit, encode_audit
from tandemmq.store.kahadb.java_stream import read_object
from tandemmq.store.kahadb.minimal import encode_minimal, is_minimal, set_index_aside, write_minimal
from tandemmq.store.kahadb.page_file import KahaIndexDamaged
from tandemmq.store.records.commands import encode_subscription
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.kahadb.index_images import (
    Image,
    branch,
    header,
    leaf,
    list_node,
    messages,
    numbers,
    place,
    redo,
    utf,
)
from tests.support.prove import SEED

TOPIC = Destination(DestinationKind.TOPIC, "T.A")
COMMAND = encode_subscription(TOPIC, "c", "s", selector="a = 1")

# java.util.HashSet of "c:s" and "d:t", as ActiveMQ 5.4.2 to 5.5 kept the owners of a pending message
HASH_SET = bytes.fromhex(
    "aced0005737200116a6176612e7574696c2e48617368536574ba44859596b8b7340300007870770c000000103f40000000000002"
    "740003633a73740003643a7478"
)


def queue_value(default: int, low: int, high: int, version: int = 7) -> bytes:
    body = struct.pack(">qqq?", default, 90, 91, False)
    if version >= 2:
        body += struct.pack(">qq", low, high)
    return body + (struct.pack(">q", 92) if version >= 7 else b"")


def queue_index(version: int = 7) -> Image:
    image = Image()
    image.metadata(version=version, openwire=6 if version < 7 else 11)
    default = image.put(messages([(1, "ID:a:1:1:2"), (3, "ID:a:1:1:4")], version=version))
    low = image.put(messages([(2, "ID:a:1:1:3")], version=version))
    high = image.put(messages([(4, "ID:a:1:1:5")], version=version))
    image.put(leaf([(utf("0:Q.A"), queue_value(default, low, high, version))]), 1)
    return image


def topic_index(version: int) -> Image:
    image = Image()
    image.metadata(version=version)
    empty = image.put(leaf([]))
    default = image.put(messages([(n, f"ID:a:1:1:{n}") for n in range(5)], version=version))
    subscriptions = image.put(leaf([(utf("c:s"), COMMAND[1:])]))
    acknowledged = struct.pack(">q", 1) + (b"\4" if version >= 3 else b"")
    acks = image.put(leaf([(utf("c:s"), acknowledged)]))
    body = struct.pack(">qqq?qq", default, empty, empty, True, subscriptions, acks)
    if version == 3:
        body += struct.pack(
            ">q", image.put(leaf([(struct.pack(">q", n), struct.pack(">i", len(HASH_SET)) + HASH_SET) for n in (2, 4)]))
        )
    elif version >= 4:
        body += struct.pack(">q", image.put(list_node([(utf("c:s"), numbers((2, 2), (4, 5)))])))
    if version >= 5:
        body += struct.pack(">q", image.put(list_node([(utf("c:s"), place(1, 40))])))
    if version >= 2:
        body += struct.pack(">qq", empty, empty)
    body += struct.pack(">q", 92) if version >= 7 else b""
    image.put(leaf([(utf("1:T.A"), body)]), 1)
    return image


def opened(directory: Path) -> KahaIndex:
    found = read_index(str(directory))
    assert found is not None
    return found


def test_no_index_is_none(tmp_path: Path) -> None:
    assert read_index(str(tmp_path)) is None
    assert not is_minimal(str(tmp_path))


@pytest.mark.parametrize("version", range(2, 8))
def test_a_queue_is_read_in_the_order_of_delivery(tmp_path: Path, version: int) -> None:
    queue_index(version).write(tmp_path)
    with opened(tmp_path) as index:
        assert (index.version, index.last_update) == (version, location(1, 5000))
        assert index.openwire_version == (11 if version == 7 else 6)
        (queue,) = index.destinations()
        assert queue.destination == Destination(DestinationKind.QUEUE, "Q.A")
        entries = list(queue.entries())
        assert [entry.message_id[-1] for entry in entries] == ["5", "2", "4", "3"]
        assert [entry.sequence for entry in queue.by_sequence()] == [1, 2, 3, 4]
        assert entries[1].location == location(1, 200)
        assert entries[1].size == (90 if version >= 6 else None)
        assert not index.is_minimal


@pytest.mark.parametrize("version", range(1, 8))
def test_a_durable_subscription_is_read_with_what_it_has_pending(tmp_path: Path, version: int) -> None:
    topic_index(version).write(tmp_path)
    with opened(tmp_path) as index:
        (topic,) = index.destinations()
        (subscription,) = topic.subscriptions
        assert subscription.payload == COMMAND
        assert subscription.command.info is not None
        assert (subscription.command.info.selector, subscription.last_acknowledged) == ("a = 1", 1)
        assert subscription.location == (location(1, 40) if version >= 5 else None)
        pending = [entry.sequence for entry in topic.entries() if entry.sequence in subscription.pending]
        assert pending == ([2, 3, 4] if version < 3 else [2, 4])


def test_metadata_tells_where_the_journal_stands(tmp_path: Path) -> None:
    image = Image()
    image.metadata(last_update=(3, 7), in_progress=(2, 8), audit=(1, 9), ack_map=(3, 1), openwire=9)
    image.put(leaf([]), 1)
    image.write(tmp_path)
    with opened(tmp_path) as index:
        assert (index.last_update, index.first_in_progress) == (location(3, 7), location(2, 8))
        assert (index.producer_audit, index.ack_map) == (location(1, 9), location(3, 1))
        assert index.openwire_version == 9


def test_trees_of_many_pages_and_objects_of_many_pages(tmp_path: Path) -> None:
    image = Image()
    image.metadata()
    leaves = [image.put(messages([(n * 10 + k, f"ID:a:1:1:{n * 10 + k}") for k in range(10)])) for n in range(30)]
    twigs = [
        image.put(branch([struct.pack(">q", n * 100 + k * 10) for k in range(1, 10)], leaves[n * 10 : n * 10 + 10]))
        for n in range(3)
    ]
    default = image.put(branch([struct.pack(">q", 100), struct.pack(">q", 200)], twigs))
    high = image.put(messages([(1000, "x" * 30_000)]))  # a node of one key overflows into a chain
    empty = image.put(leaf([]))
    image.put(leaf([(utf("0:Q"), queue_value(default, empty, high))]), 1)
    image.write(tmp_path)
    with opened(tmp_path) as index:
        (queue,) = index.destinations()
        entries = list(queue.entries())
        assert [entry.sequence for entry in entries] == [1000, *range(300)]
        assert entries[0].message_id == "x" * 30_000


def test_a_redo_buffer_needs_an_unclean_stop_and_a_good_checksum(tmp_path: Path) -> None:
    image = queue_index()
    newer = Image()
    newer.metadata(last_update=(9, 9))
    pages = {0: newer.pages[0]}
    for was_closed, checksum, cut, expected in (
        (False, None, 0, (9, 9)),
        (True, None, 0, (1, 5000)),
        (False, 1, 0, (1, 5000)),
        (False, None, 1, (1, 5000)),
    ):
        image.write(tmp_path, was_closed=was_closed)
        content = redo(pages, checksum)
        (tmp_path / "db.redo").write_bytes(content[: len(content) - cut])
        with opened(tmp_path) as index:
            assert index.was_closed == was_closed
            assert index.last_update == location(*expected), (was_closed, checksum, cut)


def test_a_redo_buffer_may_hold_pages_behind_the_end_of_the_index(tmp_path: Path) -> None:
    image = queue_index()
    complete = dict(image.pages)
    last = max(image.pages)
    del image.pages[last]
    image.write(tmp_path, was_closed=False)
    (tmp_path / "db.redo").write_bytes(redo({last: complete[last]}) + b"what an older batch left")
    with opened(tmp_path) as index:
        (queue,) = index.destinations()
        assert len(list(queue.entries())) == 4


def test_the_second_header_counts_where_the_first_is_torn(tmp_path: Path) -> None:
    torn = b"#\n#Sat No".ljust(2048)
    data = queue_index().bytes(second_header=header(False, 8))
    (tmp_path / "db.data").write_bytes(torn + data[2048:])
    with opened(tmp_path) as index:
        assert not index.was_closed
    (tmp_path / "db.data").write_bytes(torn + torn + data[4096:])
    with pytest.raises(KahaIndexDamaged, match="no properties"):
        read_index(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "0 bytes"),
        (b"\0" * 4096, "no properties"),
        (header(True) * 2, "holds no pages"),
        (header(True) * 2 + bytes(4096), "page 0 is free"),
    ],
)
def test_an_invalid_index_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "db.data").write_bytes(content)
    with pytest.raises(KahaIndexDamaged, match=reason):
        read_index(str(tmp_path))


def test_a_tree_a_list_and_a_chain_that_run_in_circles_end(tmp_path: Path) -> None:
    image = Image()
    image.metadata()
    image.put(branch([utf("a")], [1, 1]), 1)
    image.write(tmp_path)
    with opened(tmp_path) as index, pytest.raises(KahaIndexDamaged, match="cycle"):
        list(index.destinations())
    image.pages[1] = struct.pack(">Bqqi", 1, 1, 1, 0).ljust(4096, b"\0")
    image.write(tmp_path)
    with opened(tmp_path) as index, pytest.raises(KahaIndexDamaged, match="no end"):
        list(index.destinations())


def read_all(directory: Path) -> str | None:
    """Return what is wrong with the index; None if it can be read to its end. Any other exception is raised."""
    try:
        with opened(directory) as index:
            for destination in index.destinations():
                list(destination.entries())
                assert len(destination.subscriptions) < 100
    except KahaIndexDamaged as reason:
        return str(reason)
    return None


def test_any_damage_is_named_and_nothing_else_is_raised(tmp_path: Path) -> None:
    print(f"TANDEMMQ_SEED={SEED}")
    chance = random.Random(SEED)
    for image in (queue_index(), topic_index(7), topic_index(3)):
        whole = image.bytes()
        used = [n for n in range(len(whole)) if n % 4096 < 160]
        for at in chance.sample(used, 300):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << chance.randrange(8)
            (tmp_path / "db.data").write_bytes(damaged)
            reason = read_all(tmp_path)
            assert reason is None or "db.data" in reason


# ---- the minimal index


def test_a_minimal_index_tells_the_openwire_version_and_nothing_else(tmp_path: Path) -> None:
    write_minimal(str(tmp_path), 6)
    assert os.path.getsize(tmp_path / "db.data") == 12_288
    assert os.listdir(tmp_path) == ["db.data"]
    assert is_minimal(str(tmp_path))
    with opened(tmp_path) as index:
        assert index.openwire_version == 6
        assert index.was_closed
        assert index.last_update is None
        assert list(index.destinations()) == []
    assert encode_minimal(6) != encode_minimal(11)


def test_an_index_that_knows_something_is_not_minimal(tmp_path: Path) -> None:
    queue_index().write(tmp_path)
    assert not is_minimal(str(tmp_path))
    (tmp_path / "db.data").write_bytes(b"damaged")
    assert not is_minimal(str(tmp_path))


def test_setting_aside_keeps_every_byte(tmp_path: Path) -> None:
    names = ("db.data", "db.redo", "db.free")
    for name in names:
        (tmp_path / name).write_text(name)
    (tmp_path / "db-1.log").write_text("journal")
    moved = set_index_aside(str(tmp_path), 17)
    assert sorted(moved) == sorted(str(tmp_path / f"{name}.aside-17") for name in names)
    assert sorted(os.listdir(tmp_path)) == sorted(["db-1.log", *(f"{name}.aside-17" for name in names)])
    assert all((tmp_path / f"{name}.aside-17").read_text() == name for name in names)
    assert set_index_aside(str(tmp_path), 18) == ()


# ---- The producer audit, against bytes that ActiveMQ's own classes wrote


ACK_MAP_1_1 = bytes.fromhex(
    "aced0005737200116a6176612e7574696c2e486173684d61700507dac1c31660d103000246000a6c6f6164466163746f72490009746872"
    "6573686f6c6478703f4000000000000c77080000001000000001737200116a6176612e6c616e672e496e746567657212e2a0a4f7818738"
    "02000149000576616c7565787200106a6176612e6c616e672e4e756d62657286ac951d0b94e08b02000078700000000173720011"
    "6a6176612e7574696c2e48617368536574ba44859596b8b7340300007870770c000000103f4000000000000171007e00047878"
)
# An audit of depth 60 and three producers that saw ID:a-1-1:1:1:1, ID:b-1-1:1:1:5 and ID:a-1-1:1:1:2, in this order.
AUDIT = bytes.fromhex(
    "aced00057372002e6f72672e6170616368652e6163746976656d712e4163746976654d514d65737361676541756469744e6f53796e6300"
    "0000000000000102000349000a6175646974446570746849001f6d6178696d756d4e756d6265724f6650726f647563657273546f547261"
    "636b4c00036d61707400234c6f72672f6170616368652f6163746976656d712f7574696c2f4c525543616368653b78700000003c000000"
    "03737200216f72672e6170616368652e6163746976656d712e7574696c2e4c52554361636865fb409f19879def0302000149000c6d6178"
    "436163686553697a65787200176a6176612e7574696c2e4c696e6b6564486173684d617034c04e5c106cc0fb0200015a000b6163636573"
    "734f72646572787200116a6176612e7574696c2e486173684d61700507dac1c31660d103000246000a6c6f6164466163746f7249000974"
    "68726573686f6c6478703f400000000000037708000000040000000274000c49443a622d312d313a313a31737200246f72672e61706163"
    "68652e6163746976656d712e7574696c2e426974417272617942696e000000000000000102000549000a6669727374496e6465784a000e"
    "6c617374496e4f726465724269744a000e6c6f6e674669727374496e6465784900116d61784e756d6265724f664172726179734c00046c"
    "6973747400164c6a6176612f7574696c2f4c696e6b65644c6973743b7870ffffffffffffffffffffffff00000000000000000000000173"
    "7200146a6176612e7574696c2e4c696e6b65644c6973740c29535d4a6088220300007870770400000001737200216f72672e6170616368"
    "652e6163746976656d712e7574696c2e426974417272617900000000000000010300024a0004626974734900066c656e67746878707702"
    "0620787874000c49443a612d312d313a313a317371007e0008ffffffffffffffffffffffff0000000000000000000000017371007e000b"
    "7704000000017371007e000d770203067878780100000003"
)


def test_an_audit_is_read_and_written_as_java_does() -> None:
    image = AuditImage(60, 3, {"ID:b-1-1:1:1": (0, 0b100000), "ID:a-1-1:1:1": (0, 0b110)})
    assert decode_audit(AUDIT) == image
    assert list(decode_audit(AUDIT).windows) == ["ID:b-1-1:1:1", "ID:a-1-1:1:1"], "least recently used first"
    assert encode_audit(image) == AUDIT


def test_a_window_keeps_its_newest_part_and_begins_at_a_multiple_of_64() -> None:
    first, length = 1000, 500
    image = decode_audit(encode_audit(AuditImage(200, 4, {"p": (first, (1 << length) - 1)})))
    kept_first, kept = image.windows["p"]
    assert kept_first % 64 == 0
    seen = {kept_first + bit for bit in range(kept.bit_length()) if kept >> bit & 1}
    assert seen == set(range(kept_first, first + length))
    assert len(seen) >= 200
    assert decode_audit(encode_audit(AuditImage(2048, 4, {"p": (1003, 0b101)}))).windows["p"] == (960, 0b101 << 43)


def test_a_written_index_is_read_unchanged() -> None:
    print(f"TANDEMMQ_SEED={SEED}")
    chance = random.Random(SEED)
    for _ in range(50):
        windows = {}
        for number in range(chance.randrange(70)):
            first = chance.randrange(1 << 40) * 64
            windows[f"ID:hôst-{number}:1:{number}"] = (first, chance.getrandbits(chance.randrange(1, 2000)) | 1)
        image = AuditImage(2048, 64, windows)
        assert decode_audit(encode_audit(image)) == image
        assert list(decode_audit(encode_audit(image)).windows) == list(windows)


def test_damage_is_named_and_nothing_else_is_raised() -> None:
    for length in range(len(AUDIT)):
        with pytest.raises(RecordDamaged):
            decode_audit(AUDIT[:length])
    for at in range(len(AUDIT)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(AUDIT)
            damaged[at] ^= flip
            try:
                decode_audit(bytes(damaged))
            except RecordDamaged:
                pass  # a flipped number is another number; anything but this exception fails the test


def test_a_class_with_thousands_of_superclasses_is_damage() -> None:
    def described(name: bytes, flags: int, parent: bytes) -> bytes:
        return b"r" + struct.pack(">H", len(name)) + name + bytes(8) + bytes((flags, 0, 0, 0x78)) + parent

    members = [
        b"s" + described(b"B", 2, b"p" if number == 0 else b"q" + struct.pack(">i", 0x7E0000 + 2 * number))
        for number in range(2_000)
    ]
    begin = b"\xac\xed\0\5s" + described(b"A", 3, b"p")
    assert len(read_object(begin + b"".join(members[:10]) + b"\x78").custom) == 10
    with pytest.raises(RecordDamaged, match="superclasses"):
        read_object(begin + b"".join(members) + b"\x78")


def test_one_object_is_not_taken_for_another() -> None:
    with pytest.raises(RecordDamaged, match="HashMap"):
        decode_audit(ACK_MAP_1_1)
