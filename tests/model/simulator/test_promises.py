"""The books of a simulation: which order is promised of what is drained from one master, and from two."""

from __future__ import annotations

import pytest

from tandemmq.simulator.promises import Promises


@pytest.mark.parametrize(
    ("drained", "is_in_order"),
    [
        ([("acknowledged", 1), ("last", 1)], True),
        ([("last", 1), ("acknowledged", 1)], False),
        # The first master ended before it had the acknowledgement; its successor delivers the message again.
        ([("last", 1), ("acknowledged", 2)], True),
        ([("last", 1), ("waiting", 2)], False),
        ([("last", 2), ("acknowledged", 2)], False),
    ],
)
def test_an_unconfirmed_acknowledgement_excuses_the_next_master_alone(
    drained: list[tuple[str, int]], is_in_order: bool
) -> None:
    promises = Promises()
    for sequence, message_id in enumerate(("acknowledged", "waiting", "last")):
        promises.will_send(message_id, "Q", "producer", sequence)
    promises.will_acknowledge(["acknowledged"])
    for message_id, epoch in drained:
        promises.drained_from("Q", message_id, epoch)
    promises.check()
    assert not promises.broken if is_in_order else "out of order" in promises.broken[0]
