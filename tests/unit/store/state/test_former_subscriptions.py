"""Replay with an old index: a subscription ended and began again in files that do not exist any more."""

# proves: former-subscription-holds-nothing

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.index.index import Index
from tandemmq.store.records.commands import encode_subscription, encode_update
from tandemmq.store.records.hints import with_copy_hint
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.stored import encode_stored
from tandemmq.store.state.replay import Replay
from tandemmq.store.state.state import State
from tests.support.store.store_harness import Q

T = Destination(DestinationKind.TOPIC, "T")
OLD_RECORD, ORIGINAL, COPY, NEW_RECORD, AGAIN = 2 << 32, 3 << 32, 5 << 32, 5 << 32 | 500, 5 << 32 | 900


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_message_to_a_new_subscription_is_not_taken_for_a_copy(tmp_path: Path, is_missing: bool) -> None:
    """The copy was made for another subscription, while there was none of that name."""
    message = Message(T, "ID:c:1:1:1", b"x", persistent=True)
    copy = with_copy_hint(encode_update(message, encode_message(message)), ORIGINAL << 32, ORIGINAL)
    with Index.open(str(tmp_path)) as index:
        state = State(index, b"")
        replay = Replay(state)
        replay.apply(OLD_RECORD, encode_subscription(T, "c", "name"))
        if is_missing:
            replay.missing = {OLD_RECORD >> 32}
        replay.apply(COPY, copy)
        replay.apply(NEW_RECORD, encode_subscription(T, "c", "name"))
        replay.apply(AGAIN, encode_stored(message))
        [owner] = state.holders(T)
        held = [entry.location for _, entry in state.entries(owner, 0)]
        assert held == [AGAIN if is_missing else COPY]


def test_a_queue_has_no_record_that_could_be_missing(tmp_path: Path) -> None:
    message = Message(Q, "ID:c:1:1:1", b"x", persistent=True)
    with Index.open(str(tmp_path)) as index:
        state = State(index, b"")
        replay = Replay(state)
        replay.missing = {0, 2}
        for location in (COPY, AGAIN):
            replay.apply(location, encode_stored(message))
        [owner] = state.holders(Q)
        assert [entry.location for _, entry in state.entries(owner, 0)] == [COPY]
