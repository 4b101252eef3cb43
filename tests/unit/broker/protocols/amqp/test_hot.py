"""Fast codec (hot.py): it reads and writes composites as the table of schema.py does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tandemmq.broker.protocols.amqp import hot
from tandemmq.broker.protocols.amqp.codec import (
    composed,
    read_composite,
    read_performative,
    read_section,
    write_composite,
)
from tandemmq.broker.protocols.amqp.errors import AmqpError
from tandemmq.broker.protocols.amqp.frames import FrameCutter
from tandemmq.broker.protocols.amqp.schema import (
    ACCEPTED,
    UINT_MAX,
    Accepted,
    Composite,
    Disposition,
    Flow,
    Header,
    Properties,
    Rejected,
    Released,
    TransactionalState,
    Transfer,
)
from tandemmq.broker.protocols.amqp.types import Described, Reader, Symbol, Timestamp, ULong, Uuid
from tests.support.prove import FIXED_SEED

MUTATED = 30  # number of damaged copies of each form
UINTS = (0, 1, 0x52, 255, 256, 0x40414243, UINT_MAX)


def transfers() -> Iterator[Transfer]:
    for number in UINTS:
        for settled in (None, True, False):
            yield Transfer(number & 0x3FF, number, b"tag", 0, settled)
            yield Transfer(3, number, b"", number, settled, True)
            yield Transfer(3, number, bytes(32), 0, settled, True, 0, None, False, False, True)
    yield Transfer(1)
    yield Transfer(1, more=True)
    yield Transfer(1, 2, b"t", 0, False, state=TransactionalState(b"x"))
    yield Transfer(1, 2, b"t", 0, False, aborted=True)
    yield Transfer(1, 2, b"t", 0, False, resume=True)
    yield Transfer(1, 2, b"t" * 33, 0, False)


def dispositions() -> Iterator[Disposition]:
    for first in UINTS:
        for last in (None, first, UINT_MAX):
            for settled in (True, False):
                yield Disposition(True, first, last, settled, ACCEPTED)
                yield Disposition(True, first, last, settled, ACCEPTED, True)
    for state in (None, Released(), Rejected(), TransactionalState(b"x", Accepted())):
        yield Disposition(True, 1, 2, True, state)
    yield Disposition(False, 1, 2, True, ACCEPTED)


def flows() -> Iterator[Flow]:
    for number in (None, *UINTS):
        window = number or 0
        common = {"incoming_window": window, "next_outgoing_id": 7, "outgoing_window": UINT_MAX}
        yield Flow(next_incoming_id=number, **common)
        for drain in (True, False):
            yield Flow(
                next_incoming_id=1, handle=number, delivery_count=number, link_credit=number, drain=drain, **common
            )
        yield Flow(next_incoming_id=1, handle=1, available=number, echo=True, **common)
    yield Flow(incoming_window=1, next_outgoing_id=1, outgoing_window=1, properties={"a": 1})


def headers() -> Iterator[Header]:
    for durable in (None, True, False):
        for priority in (None, 0, 9, 255):
            for number in (None, *UINTS):
                yield Header(durable, priority, number)
                yield Header(durable, priority, None, durable, number)
                yield Header(durable, None, number, None, number)


def properties() -> Iterator[Properties]:
    texts: list[Any] = ["", "a", "ü€😀", "x" * 255, "y" * 256]
    for text in (None, *texts):
        yield Properties(text, None, text, text, text, text)
        yield Properties(text, b"user", "to", None, None, text, group_id=text, reply_to_group_id=text)
    for identity in (ULong(7), Uuid(bytes(16)), b"bytes"):
        yield Properties(identity, None, "to", correlation_id=identity)
    for number in (0, 1, -1, 1 << 40):
        yield Properties(
            "i",
            content_type=Symbol("text/plain"),
            content_encoding="gzip",
            absolute_expiry_time=Timestamp(number),
            creation_time=Timestamp(-number),
            group_sequence=number & UINT_MAX,
        )
    yield Properties()


FORMS: tuple[Composite, ...] = (*transfers(), *dispositions(), *flows(), *headers(), *properties())


def by_hot(row: type[Composite], data: bytes) -> tuple[Composite, int] | None:
    """Return the composite that hot.py reads, and the offset of its end."""
    if row is Transfer:
        return hot.read_transfer(data)
    found: Composite | None
    if row is Disposition or row is Flow:
        found = (hot.read_disposition if row is Disposition else hot.read_flow)(data)
    else:
        read = hot.read_header if row is Header else hot.read_properties
        found = read(data[3:])
    return None if found is None else (found, len(data))


def by_table(data: bytes) -> tuple[Composite, int]:
    reader = Reader(data)
    return read_composite(reader), reader.at


@pytest.mark.parametrize("row", [Transfer, Disposition, Flow, Header, Properties])
def test_composites_are_read_as_by_the_table(row: type[Composite]) -> None:
    forms = [each for each in FORMS if type(each) is row]
    read = [by_hot(row, write_composite(each)) for each in forms]
    for form, found in zip(forms, read, strict=True):
        if found is not None:
            assert found == by_table(write_composite(form))
    assert len([each for each in read if each is not None]) * 2 > len(forms)


@pytest.mark.parametrize("row", [Transfer, Disposition, Flow, Header, Properties])
def test_damaged_composites_are_refused_or_read_as_by_the_table(row: type[Composite]) -> None:
    chance = random.Random(FIXED_SEED)
    for form in FORMS:
        if type(form) is not row:
            continue
        whole = write_composite(form)
        for _ in range(MUTATED):
            data = bytearray(whole)
            match chance.randrange(3):
                case 0:
                    data[chance.randrange(3, len(data))] = chance.randrange(256)
                case 1:
                    del data[chance.randrange(3, len(data))]
                case 2:
                    data.insert(
                        chance.randrange(3, len(data) + 1), chance.choice(b"\0\x40\x41\x42\x43\x45\x52\x70\xa0\xc0")
                    )
            found = by_hot(row, bytes(data))
            if found is not None:
                assert found == by_table(bytes(data)), data.hex()


def test_a_truncated_composite_is_refused() -> None:
    for form in (
        Transfer(1, 2, b"tag", 0, True),
        Disposition(True, 1, 2, True, ACCEPTED),
        Flow(incoming_window=1, next_outgoing_id=1, outgoing_window=1),
        Header(True),
        Properties("a"),
    ):
        whole = write_composite(form)
        for stop in range(len(whole)):
            assert by_hot(type(form), whole[:stop]) is None
            with pytest.raises(AmqpError):
                by_table(whole[:stop])


def test_a_transfer_without_its_last_fields_is_read() -> None:
    """Proton omits settled = false, and all fields after it."""
    assert hot.read_transfer(write_composite(Transfer(1, 2, b"t", 0)))


def test_a_whole_delivery_is_read_as_by_the_table() -> None:
    read = 0
    for form in transfers():
        encoded = write_composite(form)
        handle, delivery_id, is_settled, payload_at = hot.read_whole(encoded + b"payload")
        if handle >= 0:
            read += 1
            assert (form.handle, form.delivery_id, bool(form.settled), len(encoded)) == (
                handle, delivery_id, is_settled, payload_at,
            )  # fmt: skip
            assert form == Transfer(handle, delivery_id, form.delivery_tag, 0, form.settled)
    assert read * 4 > len(list(transfers()))


def test_a_damaged_whole_delivery_is_left_to_the_table() -> None:
    chance = random.Random(FIXED_SEED)
    for form in transfers():
        whole = write_composite(form)
        for _ in range(MUTATED):
            data = bytearray(whole)
            data[chance.randrange(3, len(data))] = chance.choice(b"\0\x40\x41\x42\x43\x45\x52\x70\xa0\xc0")
            damaged = bytes(data)
            handle, delivery_id, is_settled, payload_at = hot.read_whole(damaged)
            if handle >= 0:
                found, place = by_table(damaged)
                assert isinstance(found, Transfer)
                assert found == Transfer(handle, delivery_id, found.delivery_tag, 0, found.settled), damaged.hex()
                assert (bool(found.settled), place) == (is_settled, payload_at)


def test_the_payload_begins_after_the_transfer() -> None:
    for form in transfers():
        encoded = write_composite(form)
        for payload in (b"", b"\x41", b"payload"):
            found, place = read_performative(encoded + payload)
            assert (found, place) == by_table(encoded)


def test_a_section_is_read_at_its_offset() -> None:
    for form in (*headers(), *properties()):
        encoded = write_composite(form)
        data = b"before" + encoded + b"after"
        found = read_section(encoded[2], data, 9, 6 + len(encoded))
        assert found == composed(Described(ULong(encoded[2]), Reader(encoded[3:]).value()))


@pytest.mark.parametrize(
    "following", [b"\0\x53\x73\x45", b"\0\x53\x77\x40", b"\0\x53\x71\xc1\1\0", b"", b"\0\xa3\1x\x40"]
)
def test_a_header_with_the_present_values_is_recognized(following: bytes) -> None:
    plain = (0x72, 0x73, 0x77)
    for form in (None, *headers()):
        known = form or Header()
        priority = 4 if known.priority is None else min(known.priority, 9)
        encoded = b"" if form is None else write_composite(form)
        is_current = (
            known.ttl is None and not known.delivery_count and following[1:2] == b"\x53" and following[2] in plain
        )
        is_usual = form != Header()  # an empty list is not recognized, but read by the table
        durable = known.durable is True
        assert hot.has_header(encoded + following, durable, priority) is (is_current and is_usual)
        assert not hot.has_header(encoded + following, not durable, priority)
        assert not hot.has_header(encoded + following, durable, priority + 1)


def test_a_damaged_header_is_not_recognized() -> None:
    chance = random.Random(FIXED_SEED)
    body = b"\0\x53\x77\x40"
    for form in headers():
        whole = write_composite(form)
        for _ in range(MUTATED):
            data = bytearray(whole)
            data[chance.randrange(3, len(data))] = chance.randrange(256)
            for durable in (True, False):
                if hot.has_header(bytes(data) + body, durable, 4):
                    found, place = by_table(bytes(data) + body)
                    assert (place, type(found)) == (len(data), Header)
                    assert isinstance(found, Header)
                    assert (found.durable is True, found.priority or 4, found.ttl) == (durable, 4, None)


@pytest.mark.parametrize("number", UINTS)
@pytest.mark.parametrize("settled", [True, False])
def test_frames_are_written_as_by_the_table(number: int, settled: bool) -> None:
    cutter = FrameCutter(1 << 20)
    cutter.feed(hot.transfer_head(7, number & 0xFFFF, number, number << 32, settled, 3) + b"abc")
    cutter.feed(hot.accepted(65_535, number, UINT_MAX))
    first, second = cutter.next_frame(), cutter.next_frame()
    assert first is not None
    assert second is not None
    tag = (number << 32).to_bytes(8, "big")
    transfer = Transfer(number & 0xFFFF, number, tag, 0, settled)
    assert (first.channel, read_performative(first.body)) == (7, (transfer, len(first.body) - 3))
    assert len(first.body) + 8 == hot.TRANSFER_HEAD_BYTES + 3
    assert second.channel == 65_535
    assert by_table(second.body) == (Disposition(True, number, UINT_MAX, True, ACCEPTED), len(second.body))
    assert cutter.pending_bytes == 0
