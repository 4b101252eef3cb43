"""Entries that wait for a lane: taken in order, and few runs for many entries."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.delivery import Entry, volatile_entry
from tandemmq.broker.core.queue.backlog import JOINED_MAX, NOTHING_KNOWN, Backlog, Known
from tandemmq.store.records.message import Destination, DestinationKind, Message

ASKED = Known((1,), 2, is_grouped=False)


def entries(*positions: int) -> deque[Entry]:
    made = deque(volatile_entry(Message(Destination(DestinationKind.QUEUE, "q"), f"{each}")) for each in positions)
    for entry, position in zip(made, positions, strict=True):
        entry.position = position
    return made


def test_entries_that_come_one_by_one_are_one_run() -> None:
    backlog = Backlog()
    for position in range(1, 100):
        backlog.add(entries(position), NOTHING_KNOWN)
    assert len(backlog.runs()) == 1
    assert [backlog.take()[0].position for _ in range(99)] == list(range(1, 100))
    backlog.add(entries(100), NOTHING_KNOWN)
    assert (backlog.first, backlog.count) == (100, 1)


def test_a_long_run_is_not_copied() -> None:
    backlog = Backlog()
    backlog.add(entries(0), NOTHING_KNOWN)
    run = entries(*range(1, JOINED_MAX + 2))
    backlog.add(run, NOTHING_KNOWN)
    assert [each for each, _ in backlog.runs()][-1] is run


def test_an_entry_that_a_selector_tested_keeps_what_is_known() -> None:
    backlog = Backlog()
    backlog.add(entries(2), NOTHING_KNOWN)
    backlog.add(entries(1), ASKED)
    backlog.add(entries(3), NOTHING_KNOWN)
    assert [backlog.take()[1] for _ in range(3)] == [ASKED, NOTHING_KNOWN, NOTHING_KNOWN]


_steps = st.lists(st.sampled_from(["new", "back", "asked", "take", "choose", "clear"]), max_size=60)


@given(_steps)
def test_all_entries_come_in_order(steps: list[str]) -> None:
    backlog = Backlog()
    waiting: dict[int, Known] = {}
    taken: list[int] = []
    position = 1_000
    for step in steps:
        if step == "new":
            position += 2
            backlog.add(entries(position, position + 1), NOTHING_KNOWN)
            position += 1
            waiting |= dict.fromkeys((position - 1, position), NOTHING_KNOWN)
        elif step in ("back", "asked") and taken:
            known = NOTHING_KNOWN if step == "back" else ASKED
            waiting[taken[-1]] = known
            backlog.add(entries(taken.pop()), known)
        elif step == "take" and waiting:
            entry, known = backlog.take()
            assert entry.position == min(waiting)
            assert waiting.pop(entry.position) is known
            taken.append(entry.position)
        elif step == "choose":
            chosen = [
                entry.position for _, found in backlog.take_out(lambda entry: not entry.position % 3) for entry in found
            ]
            assert sorted(chosen) == sorted(each for each in waiting if not each % 3)
            for each in chosen:
                del waiting[each]
        elif step == "clear":
            backlog.clear()
            waiting.clear()
        assert backlog.count == len(waiting)
        assert not waiting or backlog.first == min(waiting)
