"""The codec: any split of the stream gives the encoded messages, and no bytes of a peer are harmful."""

from __future__ import annotations

import dataclasses
import json
import random
import struct
import zlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandemmq.broker.replication import frames
from tandemmq.broker.replication import messages as m
from tandemmq.broker.replication.frames import FrameError, FrameReader, encode, encode_parts
from tandemmq.broker.replication.messages import Message
from tandemmq.broker.replication.quorum import Founding, Lineage, Position, Voters

numbers = st.integers(0, (1 << 63) - 1)
files = st.integers(0, (1 << 31) - 1)
weights = st.integers(-((1 << 63) - 1), (1 << 63) - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ids = st.binary(min_size=16, max_size=16).map(bytes.hex)
secrets = st.binary(min_size=32, max_size=32).map(bytes.hex)
pairs = st.tuples(files, numbers)
positions = st.builds(Position, numbers, files, numbers)


@st.composite
def lineages(draw: st.DrawFn) -> Lineage:
    starts = sorted(draw(st.sets(files, max_size=5)))
    epochs = sorted(draw(st.sets(numbers, min_size=len(starts), max_size=len(starts))))
    return tuple((epoch, file, draw(numbers)) for epoch, file in zip(epochs, starts, strict=True))


@st.composite
def foundings(draw: st.DrawFn) -> Founding:
    stores = draw(st.lists(ids, min_size=1, max_size=5, unique=True))
    return Founding(draw(ids), Voters(tuple(stores), {store: draw(texts) for store in stores}))


BY_FIELD: dict[str, st.SearchStrategy[Any]] = {
    "protocol": numbers,
    "set": st.none() | ids,
    "store": ids,
    "node": texts,
    "broker": texts,
    "address": texts,
    "nonce": secrets,
    "hmac": secrets,
    "reason": texts,
    "position": positions,
    "weight": weights,
    "wants_disk": st.booleans(),
    "yes": st.booleans(),
    "granted": st.booleans(),
    "founding": st.none() | foundings(),
    "lineage": lineages(),
    "files": st.lists(files, max_size=5).map(tuple),
    "needed": st.lists(files, max_size=5).map(tuple),
    "lacking": st.lists(files, max_size=5).map(tuple),
    "common": pairs,
    "acknowledged": pairs,
    "final": pairs,
    "file": files,
    "data": st.binary(max_size=2_000),
    "on": st.sampled_from(["memory", "disk"]),
    "to": st.none() | ids,
    "status": st.dictionaries(texts, st.none() | texts | numbers | st.lists(texts), max_size=5),
}
BY_KIND: dict[tuple[Any, str], st.SearchStrategy[Any]] = {
    (m.PreVote, "set"): ids,
    (m.Begin, "set"): ids,
    (m.Fetch, "set"): ids,
    (m.Begin, "end"): pairs,
}
KINDS = list(m.CODES)


def of_kind(kind: Any) -> st.SearchStrategy[Message]:
    names = [field.name for field in dataclasses.fields(kind) if field.name not in ("as_sent", "head")]
    return st.builds(kind, **{name: BY_KIND.get((kind, name), BY_FIELD.get(name, numbers)) for name in names})


messages = st.one_of([of_kind(kind) for kind in KINDS])


def read(reader: FrameReader) -> list[Message]:
    found = []
    while (message := reader.next_message()) is not None:
        found.append(message)
    return found


def frame(code: int, content: object) -> bytes:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    body = bytes([code]) + data
    return struct.pack(">II", len(body), zlib.crc32(body)) + body


PROMISE = {"id": 1, "set": None, "epoch": 1, "position": [1, 1, 1]}
HELLO = m.Hello("b", None, "b1", "ab" * 16, 3, "b1:4000", "cd" * 32)


def test_a_missing_field_of_a_former_version_has_its_default() -> None:
    begin = m.Begin(1, 2, "5e" * 16, (1, 2), (), (), (), (3, 4), (1, 2), True)
    said = {field.name: getattr(begin, field.name) for field in dataclasses.fields(begin)}
    del said["acknowledged"]
    assert frames.decode(frame(21, said)) == begin


@given(messages)
def test_an_encoded_message_can_be_decoded(message: Message) -> None:
    reader = FrameReader()
    reader.feed(encode(message))
    assert read(reader) == [message]
    assert reader.is_between_frames


@given(st.lists(messages, max_size=8), st.integers(0, 1 << 32))
def test_any_split_of_the_stream_gives_the_same_messages(sent: list[Message], seed: int) -> None:
    dice = random.Random(seed)
    stream = b"".join(map(encode, sent))
    reader, found, at = FrameReader(), [], 0
    while at < len(stream):
        count = dice.choice((1, 3, 8, 50, 3_000))
        reader.feed(stream[at : at + count])
        at += count
        if dice.randrange(2):
            found += read(reader)
    assert [*found, *read(reader)] == sent
    assert reader.is_between_frames


@pytest.mark.parametrize("long", [10, 100, 4_000])
@given(st.lists(messages, max_size=8), st.integers(0, 1 << 32))
def test_a_message_received_into_its_place_is_the_same(long: int, sent: list[Message], seed: int) -> None:
    dice = random.Random(seed)
    stream = b"".join(map(encode, sent))
    reader, found, at = FrameReader(), [], 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "LONG_FRAME_BYTES_MIN", long)
        while at < len(stream):
            piece = stream[at : at + dice.choice((1, 3, 8, 50, 3_000))]
            place = reader.place
            if place is not None and dice.randrange(4):
                piece = piece[: len(place)]
                place[: len(piece)] = piece
                reader.filled(len(piece))
            else:
                reader.feed(piece)
            at += len(piece)
            found += read(reader)
    assert found == sent
    assert reader.is_between_frames


def test_data_of_a_long_frame_stays_where_it_was_received() -> None:
    sent = [m.Bytes(1, 2, 3, 0, 5, bytes(1 << 20)), m.Bytes(1, 2, 4, 0, 5, b"x" * (1 << 20))]
    stream = b"".join(map(encode, sent))
    reader = FrameReader()
    reader.feed(stream[:100])
    assert not read(reader)
    place = reader.place
    assert place is not None
    place[:] = stream[100 : 100 + len(place)]
    reader.filled(len(place))
    [first] = read(reader)
    assert isinstance(first, m.Bytes)
    assert isinstance(first.data, memoryview)
    assert first.data.obj is place.obj
    reader.feed(stream[100 + len(place) :])
    assert [first, *read(reader)] == sent


@given(of_kind(m.Bytes))
def test_bytes_are_the_head_and_the_data_itself(message: m.Bytes) -> None:
    head, data = encode_parts(message)
    assert data is message.data
    assert head + data == encode(message)
    assert len(head) == 45
    assert encode_parts(message)[0] is head, "made once, for all links"


def test_the_format() -> None:
    message = m.Bytes(epoch=1, file=2, offset=3, end=4, length=5, data=b"abc")
    assert encode(message) == frame(23, struct.pack(">QIQQQ", 1, 2, 3, 4, 5) + b"abc")
    assert encode(m.Piece(1, 2, 3, 4, 5, b"abc")) == frame(32, struct.pack(">QIQQQ", 1, 2, 3, 4, 5) + b"abc")
    assert encode(m.Alive(7, 9, 500)) == frame(27, b'{"epoch":7,"number":9,"milliseconds":500}')
    assert encode(m.Status()) == frame(40, b"{}")


@given(st.lists(st.binary(max_size=60) | messages.map(encode), max_size=8), st.integers(1, 5_000))
@example([b"\xff" * 8], 4)
@example([frame(23, b"")], 4)
@example([frame(1, b"[" * 100_000)], 4_096)
@example([frame(40, b"\xff")], 1)
def test_any_bytes_are_messages_or_a_frame_error_however_they_are_split(pieces: list[bytes], count: int) -> None:
    stream = b"".join(pieces)

    def all_of(count: int) -> list[object]:
        reader, found = FrameReader(), list[object]()
        try:
            for at in range(0, len(stream), count):
                reader.feed(stream[at : at + count])
                while (message := reader.next_message()) is not None:
                    found.append(message)
        except FrameError as error:
            found.append(str(error))
        return found

    assert all_of(count) == all_of(len(stream) + 1)


@given(messages, st.integers(0, 1 << 32))
def test_a_bit_that_changed_is_seen(message: Message, seed: int) -> None:
    stream = bytearray(encode(message))
    bit = random.Random(seed).randrange(32, 8 * len(stream))  # not in the length, which may only ask for more
    stream[bit // 8] ^= 1 << bit % 8
    reader = FrameReader()
    reader.feed(bytes(stream))
    with pytest.raises(FrameError, match="checksum"):
        reader.next_message()


@pytest.mark.parametrize(
    ("stream", "wrong"),
    [
        (struct.pack(">II", 0, 0), "a frame of 0 bytes; from 1 to 4194304"),
        (struct.pack(">II", (4 << 20) + 1, 0), "a frame of 4194305 bytes"),
        (frame(99, {}), "a message of type 99"),
        (frame(23, b"\0" * 35), "BYTES of 36 bytes, less than its head"),
        (frame(23, struct.pack(">QIQQQ", 1 << 63, 2, 3, 4, 5)), "BYTES of epoch 9223372036854775808"),
        (frame(23, struct.pack(">QIQQQ", 1, 1 << 31, 3, 4, 5)), "file 2147483648"),
        (frame(27, b"no"), "ALIVE: is not JSON"),
        (frame(27, b"[" * 200_000), "ALIVE: is nested too deeply"),
        (frame(27, b'{"epoch":NaN,"number":1}'), "NaN is not a number"),
        (frame(27, b"[]"), r"ALIVE: \[\] is not an object"),
        (frame(27, {"epoch": 1}), "ALIVE without number"),
        (frame(27, {"epoch": True, "number": 1}), "ALIVE: epoch: True is not a number"),
        (frame(27, {"epoch": 1.0, "number": 1}), "ALIVE: epoch: 1.0 is not a number"),
        (frame(27, {"epoch": -1, "number": 1}), "ALIVE: epoch: -1 is not a number"),
        (frame(27, {"epoch": 1 << 63, "number": 1}), "is not a number from"),
        (frame(27, b'{"epoch":' + b"9" * 5_000 + b',"number":1}'), "ALIVE: "),
        (
            frame(29, {"epoch": 1, "file": 1 << 31, "end": 1, "on": "disk", "free": 1}),
            "file: .* is not a number of a file",
        ),
        (
            frame(29, {"epoch": 1, "file": 1, "end": 1, "on": "tape", "free": 1}),
            "on: 'tape' is not one of memory, disk",
        ),
        (frame(30, {"epoch": 1, "to": "AB" * 16}), "to: .* is not 16 bytes in hexadecimal digits"),
        (frame(30, {"epoch": 1, "to": "ab" * 16 + "\n"}), "is not 16 bytes in hexadecimal digits"),
        (frame(3, {"reason": "\ud800"}), "half of a surrogate pair"),
        (frame(3, {"reason": "x" * 4_097}), "a text of 4097 characters"),
        (frame(22, {"epoch": [1]}), "is not a number"),
        (
            frame(10, {"id": 1, "set": "ab" * 16, "epoch": 1, "position": [1, 1], "weight": 1}),
            "position: .* is not a list of 3",
        ),
        (
            frame(10, {"id": 1, "set": None, "epoch": 1, "position": [1, 1, 1], "weight": 1}),
            "PRE_VOTE: set: None is not 16 bytes",
        ),
        (
            frame(13, {"id": 1, "epoch": 1, "granted": 0, "reason": "", "promised": 1}),
            "granted: 0 is neither true nor false",
        ),
        (
            frame(20, {"id": 1, "epoch": 1, "set": None, "lineage": [[2, 2, 1], [1, 3, 1]], "files": []}),
            "lineage: .* does not ascend",
        ),
        (frame(12, {**PROMISE, "founding": {"set": "ab" * 16}}), "founding: a founding without names, voters"),
        (
            frame(12, {**PROMISE, "founding": {"set": "ab" * 16, "voters": ["ab" * 16] * 2, "names": {}}}),
            "names a voter twice",
        ),
        (frame(12, {**PROMISE, "founding": {"set": "ab" * 16, "voters": [], "names": {}}}), "0 voters; from 1 to 99"),
    ],
)
def test_an_invalid_message_is_described(stream: bytes, wrong: str) -> None:
    reader = FrameReader()
    reader.feed(encode(m.Status()) + stream + encode(m.Status()))
    assert reader.next_message() == m.Status()
    with pytest.raises(FrameError, match=wrong):
        reader.next_message()
    reader.feed(encode(m.Status()))
    with pytest.raises(FrameError, match=wrong):
        reader.next_message()


def test_before_the_handshake_a_peer_makes_us_hold_little_and_the_bound_is_raised_after_it() -> None:
    large = m.Bytes(1, 1, 0, 0, 1, bytes(frames.DATA_BYTES_MAX))
    for is_raised in (True, False):
        reader = FrameReader(frames.HANDSHAKE_BYTES_MAX)
        reader.feed(encode(HELLO) + encode(large))
        assert reader.next_message() == HELLO
        if is_raised:
            reader.bytes_max = frames.FRAME_BYTES_MAX
            assert reader.next_message() == large
        else:
            with pytest.raises(FrameError, match="from 1 to 16384"):
                reader.next_message()


def test_more_than_a_frame_holds_is_not_sent() -> None:
    with pytest.raises(AssertionError):
        encode(m.Bytes(1, 1, 0, 0, 1, bytes(frames.DATA_BYTES_MAX + 1)))


def test_a_hello_is_kept_as_it_was_sent() -> None:
    """The proofs are over it, and a later version may say more than we know."""
    said = {**dataclasses.asdict(HELLO), "later": 1}
    del said["as_sent"]
    content = json.dumps(said, indent=1).encode()
    reader = FrameReader()
    reader.feed(frame(1, content))
    found = reader.next_message()
    assert found == HELLO
    assert isinstance(found, m.Hello)
    assert frames.content_of(found) == content
    assert frames.content_of(HELLO) == encode(HELLO)[9:]


def test_a_long_reason_is_cut() -> None:
    reader = FrameReader()
    reader.feed(encode(m.Refused("x" * 10_000)))
    assert reader.next_message() == m.Refused("x" * 4_096)


def test_the_names_are_those_of_the_document() -> None:
    with open("docs/formats/replication.md", encoding="utf-8") as page:
        rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in page if line.startswith("| ")]
    said = {(int(number), name) for number, name in rows if number.isdigit()}
    assert said == set(m.CODES.values())
    assert m.name_of(m.Status()) == "STATUS"
