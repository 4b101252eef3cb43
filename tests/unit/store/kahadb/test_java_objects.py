"""The producer audit, against bytes that ActiveMQ's own classes wrote."""

from __future__ import annotations

import random

import pytest

from tandemmq.store.kahadb.java_objects import AuditImage, decode_audit, encode_audit
from tandemmq.store.records.errors import RecordDamaged
from tests.support.prove import SEED

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
    bitmap = (1 << length) - 1
    image = decode_audit(encode_audit(AuditImage(200, 4, {"p": (first, bitmap)})))
    kept_first, kept = image.windows["p"]
    assert kept_first % 64 == 0
    seen = {kept_first + bit for bit in range(kept.bit_length()) if kept >> bit & 1}
    assert seen == set(range(kept_first, first + length))
    assert len(seen) >= 200
    assert decode_audit(encode_audit(AuditImage(2048, 4, {"p": (1003, 0b101)}))).windows["p"] == (960, 0b101 << 43)


def test_whatever_is_written_reads_the_same() -> None:
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


def test_one_object_is_not_taken_for_another() -> None:
    with pytest.raises(RecordDamaged, match="HashMap"):
        decode_audit(ACK_MAP_1_1)
