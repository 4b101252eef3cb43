"""The frames of the load: the frames that the driver writes, and the answers that it reads."""

import pytest

from tandemmq.bench.driver.stomp import (
    BODY_SIZE_MIN,
    Acknowledgement,
    OrderCheck,
    SendStream,
    header_of,
    message_identities,
    producer_and_sequence,
    read_receipts,
    sent_microseconds,
)


def message_body(frame: bytes) -> bytes:
    """The body of one MESSAGE frame that was split off at its NUL."""
    return frame[frame.index(b"\n\n") + 2 :]


def delivered(body: bytes, ack: bytes = b"ID\\cx-1") -> bytes:
    """A MESSAGE frame as it looks when it was split off at its NUL."""
    return b"\nMESSAGE\nsubscription:1\nmessage-id:m-%b\nack:%b\ndestination:/queue/a\n\n%b" % (ack, ack, body)


def test_a_stream_of_sends_holds_numbered_frames_of_the_size_asked_for() -> None:
    stream = SendStream("/queue/a", 7, 100, is_persistent=True)

    frames = stream.frames(41, 3, 1234).split(b"\0")

    assert frames.pop() == b""
    assert [header_of(frame, b"receipt") for frame in frames] == [b"0000000041", b"0000000042", b"0000000043"]
    for frame in frames:
        assert frame.startswith(b"SEND\n")
        assert header_of(frame, b"persistent") == b"true"
        assert header_of(frame, b"content-length") == b"100"
        assert len(message_body(frame)) == 100


def test_a_body_tells_who_sent_it_as_which_message_and_when() -> None:
    frame = SendStream("/queue/a", 7, BODY_SIZE_MIN, is_persistent=False).frames(41, 1, 1_700_000_000_000_123)
    message = delivered(message_body(frame[:-1]))

    assert producer_and_sequence(message) == (7, 41)
    assert sent_microseconds(message) == 1_700_000_000_000_123


def test_a_message_that_is_not_persistent_says_nothing_about_it() -> None:
    frame = SendStream("/queue/a", 0, 100, is_persistent=False).frames(0, 1, 0)

    assert header_of(frame, b"persistent") is None


def test_a_body_too_small_for_its_stamp_is_refused() -> None:
    with pytest.raises(ValueError, match="at least"):
        SendStream("/queue/a", 0, BODY_SIZE_MIN - 1, is_persistent=True)


def test_receipts_are_read_from_many_frames_at_once() -> None:
    data = b"RECEIPT\nreceipt-id:0000000009\n\n\0\nRECEIPT\nreceipt-id:0000000010\n\n\0\n"

    assert read_receipts(data) == [9, 10]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.2", b"ACK\nid:a\\c1\n\n\0ACK\nid:a\\c2\n\n\0"),
        ("1.1", b"ACK\nsubscription:1\nmessage-id:m-a\\c1\n\n\0ACK\nsubscription:1\nmessage-id:m-a\\c2\n\n\0"),
    ],
)
def test_identities_go_back_as_they_came(version: str, expected: bytes) -> None:
    acknowledgement = Acknowledgement(version, "1")
    frames = [delivered(b"x", b"a\\c1"), delivered(b"x", b"a\\c2")]

    identities = message_identities(frames, acknowledgement.header)

    assert acknowledgement.frames(identities) == expected


def test_a_frame_without_an_identity_is_noticed() -> None:
    with pytest.raises(ValueError, match="not found"):
        message_identities([b"ERROR\nmessage:no\n\n"], b"\nack:")


def check_of(sequences: list[int]) -> OrderCheck:
    check = OrderCheck()
    stream = SendStream("/queue/a", 3, BODY_SIZE_MIN, is_persistent=True)
    check.add([delivered(message_body(stream.frames(sequence, 1, 0)[:-1])) for sequence in sequences])
    return check


@pytest.mark.parametrize(
    ("sequences", "skipped", "late"),
    [([0, 1, 2], 0, 0), ([0, 2], 1, 0), ([0, 1, 1], 0, 1), ([1, 0], 1, 1), ([], 0, 0)],
    ids=["in order", "one missing", "one twice", "two swapped", "none"],
)
def test_the_order_check_sees_gaps_repeats_and_swaps(sequences: list[int], skipped: int, late: int) -> None:
    check = check_of(sequences)

    assert (check.seen, check.skipped, check.late) == (len(sequences), skipped, late)
