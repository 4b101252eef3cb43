"""What a JMS producer sent is what the journal holds and what a page gives back: the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.store.operations import AddMessage
from tandemmq.store.records.commands import encode_add
from tandemmq.store.records.frames import accept_frame, nested_message
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.openwire import encode_message
from tests.support.store.store_harness import Term
from tests.support.tree import FRAMES_FILE

FRAMES = {name: bytes.fromhex(frame) for name, frame in json.loads(FRAMES_FILE.read_text()).items()}
MESSAGES = sorted(
    name for name in FRAMES if "Message" in name and "Ack" not in name and int(name.rpartition(" v")[2]) >= 10
)
QUEUE = Destination(DestinationKind.QUEUE, "TEST.Q")


@pytest.fixture
def term(tmp_path: Path) -> Iterator[Term]:
    with Term(str(tmp_path)) as term:
        yield term


def test_a_frame_comes_back_from_the_journal_as_it_was_taken(term: Term) -> None:
    owner = term.store.queue(QUEUE)
    taken = [accept_frame(FRAMES[name], number, 2).message for number, name in enumerate(MESSAGES, 1)]
    raws = [message.raw for message in taken]

    for message in taken:
        term.store.append(AddMessage(message, (owner,), encode_add(message, encode_message(message))))
    term.wait_durable(len(taken))
    paged = [each.message for each in term.page(owner).messages]

    assert [message.raw for message in paged] == raws
    assert [bytes(nested_message(message)) for message in paged] == [raw[4:] for raw in raws if raw]
    assert [message.broker_sequence for message in paged] == list(range(1, len(taken) + 1))
    assert [(message.body, message.properties) for message in paged] == [
        (message.body, message.properties) for message in taken
    ]


def test_a_body_that_cannot_be_read_is_given_to_who_reads_for_himself(term: Term) -> None:
    frame = bytearray(FRAMES["ActiveMQTextMessage-compressed v12"])
    frame[frame.index(b"\x78\x9c") + 8] ^= 0xFF
    message = accept_frame(bytes(frame), 1, 2).message
    owner = term.store.queue(QUEUE)

    term.store.append(AddMessage(message, (owner,), encode_add(message, encode_message(message))))
    (paged,) = term.page(owner).messages

    assert (paged.message.raw, paged.message.body) == (message.raw, b"")
    assert term.store.figures.damaged == 0
