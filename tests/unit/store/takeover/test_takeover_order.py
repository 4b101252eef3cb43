"""Order keys for messages that get another place in their queue."""

from __future__ import annotations

import random

from tandemmq.store.takeover.difference import HEADROOM, ordered_keys
from tests.support.prove import SEED

FILE = 1 << 64


def moved(present: list[int | None]) -> int:
    """Return how many messages get another key, or their first; check the keys on the way."""
    taken = {key for key in present if key is not None}
    keys = ordered_keys(present, taken)
    assert keys == sorted(set(keys)), "ascending, each once"
    for before, after in zip(present, keys, strict=True):
        assert before == after or after not in taken, "no key that another message has as yet"
    return sum(before != after for before, after in zip(present, keys, strict=True))


def test_messages_in_order_stay() -> None:
    assert moved([]) == 0
    assert moved([FILE, FILE + 5, 2 * FILE]) == 0


def test_as_few_messages_as_possible_move() -> None:
    assert moved([FILE + 5, FILE, FILE + 1, FILE + 7]) == 1
    assert moved([FILE + 100 * n for n in (5, 6, 7, 0, 1, 2, 3, 4)]) == 3
    assert moved([FILE + 100 * n for n in range(9, -1, -1)]) == 9


def test_there_is_a_free_key_before_the_first_message() -> None:
    assert ordered_keys([None, FILE], {FILE}) == [FILE - HEADROOM + 1, FILE]
    assert ordered_keys([None, 3], {3}) == [1, 3]


def test_without_a_free_key_the_next_message_is_moved() -> None:
    commit = [FILE, FILE + 1, FILE + 2]  # three operations of one commit
    assert ordered_keys([commit[0], None, commit[1], commit[2]], set(commit)) == [FILE, FILE + 3, FILE + 4, FILE + 5]
    assert moved([1, 2, None, None, 3]) == 3


def test_keys_of_other_messages_are_not_given_out() -> None:
    assert ordered_keys([FILE, None, 2 * FILE], {FILE, FILE + 1, FILE + 2, 2 * FILE}) == [FILE, FILE + 3, 2 * FILE]


def test_any_order_can_be_said() -> None:
    print(f"TANDEMMQ_SEED={SEED}")
    chance = random.Random(SEED)
    for _ in range(300):
        count = chance.randrange(30)
        keys: list[int | None] = list(chance.sample(range(1, chance.choice((40, 1000, 1 << 50))), count))
        for _ in range(chance.randrange(5)):
            keys.insert(chance.randrange(len(keys) + 1), None)
        assert keys.count(None) <= moved(keys) <= len(keys)
