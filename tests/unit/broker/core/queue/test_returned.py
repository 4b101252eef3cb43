"""What came back is taken in order, whether one by one or as a run."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.delivery import Entry, volatile_entry
from tandemmq.broker.core.queue.returned import Returned
from tandemmq.store.records.message import Destination, DestinationKind, Message

STEPS = st.lists(st.tuples(st.sampled_from(["add", "run", "take", "take run", "keep"]), st.integers(1, 9)), max_size=30)


def entry_at(position: int) -> Entry:
    entry = volatile_entry(Message(Destination(DestinationKind.QUEUE, "orders"), "1"))
    entry.position = position
    return entry


@given(STEPS, st.randoms(use_true_random=False))
def test_it_is_what_a_sorted_list_would_be(steps: list[tuple[str, int]], random: object) -> None:
    free = list(range(300))
    random.shuffle(free)  # type: ignore[attr-defined]
    returned = Returned()
    model: list[int] = []
    for what, number in steps:
        if what == "add":
            position = free.pop()
            returned.add(entry_at(position))
            model.append(position)
        elif what == "run":
            positions = sorted(free.pop() for _ in range(number))
            returned.add_run(deque(map(entry_at, positions)))
            model += positions
        elif what == "take" and model:
            assert returned.take().position == min(model)
            model.remove(min(model))
        elif what == "take run" and model:
            run = [entry.position for entry in returned.take_run(number)]
            assert run == sorted(run)
            assert run[0] == min(model)
            assert len(run) <= number
            model = [position for position in model if position not in run]
        elif what == "keep":
            model = [position for position in model if position % 2]
            returned.keep([entry for entry in returned.entries() if entry.position % 2])
        assert sorted(entry.position for entry in returned.entries()) == sorted(model)
        assert returned.total == len(model)
        assert bool(returned.heap) == bool(model)
        assert not model or returned.heap[0][0] == min(model)
    assert [returned.take().position for _ in range(len(model))] == sorted(model)
