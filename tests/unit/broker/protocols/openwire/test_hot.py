"""Commands of every message are read without the interpreter, with the same result."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.protocols.openwire.codec import STORED
from tandemmq.broker.protocols.openwire.errors import WireError
from tandemmq.broker.protocols.openwire.hot import read_single_ack
from tandemmq.broker.protocols.openwire.schema import MessageAck
from tandemmq.broker.protocols.openwire.types import ConsumerId, MessageId, ProducerId, Throwable
from tandemmq.store.records import loose
from tandemmq.store.records.acknowledgements import AckType
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.transactions import LocalTransactionId

PRODUCER = ProducerId("ID:a-1-2-1:1", 3, 4)
CONSUMER = ConsumerId("ID:b-1-2-1:1", 5, 6)
MESSAGE = MessageId(None, PRODUCER, 7, 8)
ACK = MessageAck(
    9, True, Destination(DestinationKind.QUEUE, "Q"), None, CONSUMER, AckType.STANDARD, MESSAGE, MESSAGE, 1
)


def test_the_usual_ack_is_read_without_the_interpreter() -> None:
    found = read_single_ack(STORED.encode(ACK))
    assert found == (loose.consumer_id(str(CONSUMER)), MESSAGE.key, 9)
    assert read_single_ack(STORED.encode(dataclasses.replace(ACK, response_required=False))) == (*found[:2], None)


def test_any_other_ack_is_for_the_interpreter() -> None:
    other = MessageId(None, PRODUCER, 6, 8)
    for change in (
        {"transaction_id": LocalTransactionId("ID:c", 1)},
        {"ack_type": AckType.INDIVIDUAL},
        {"ack_type": AckType.POISON},
        {"first_message_id": other},
        {"first_message_id": None},
        {"message_count": 2},
        {"poison_cause": Throwable("a.B", "why")},
        {"first_message_id": MessageId("text", PRODUCER, 7, 8), "last_message_id": MessageId("text", PRODUCER, 7, 8)},
    ):
        assert read_single_ack(STORED.encode(dataclasses.replace(ACK, **change))) is None, change


@given(st.data())
def test_damage_is_never_taken_for_an_ack(data: st.DataObject) -> None:
    frame = bytearray(STORED.encode(ACK))
    place = data.draw(st.integers(4, len(frame) - 1))
    frame[place] = data.draw(st.integers(0, 255))
    frame = frame[: data.draw(st.integers(len(frame) - 3, len(frame)))]
    frame[:4] = (len(frame) - 4).to_bytes(4)
    found = read_single_ack(bytes(frame))
    if found is None or frame[4] != loose.MESSAGE_ACK or found[0] != loose.consumer_id(str(CONSUMER)):
        return  # a consumer of another connection id belongs to no client
    try:
        ack = STORED.decode(bytes(frame))
    except WireError as error:
        raise AssertionError(f"the interpreter does not read it: {error}") from None
    assert isinstance(ack, MessageAck)
    assert (ack.transaction_id, ack.ack_type, ack.message_count, ack.poison_cause) == (None, AckType.STANDARD, 1, None)
    assert ack.first_message_id == ack.last_message_id
    assert ack.last_message_id is not None
    assert found[1] == ack.last_message_id.key
    assert ack.consumer_id == CONSUMER
    assert found[2] == (ack.command_id if ack.response_required else None)
