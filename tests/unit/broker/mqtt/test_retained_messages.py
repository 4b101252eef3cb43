"""Retained messages are those in their queue. Look-ups have the same results as in a plain dictionary."""

# proves: replaced-retained-ends-first

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.memory import ENTRY_OVERHEAD_BYTES, Kind
from tandemmq.broker.core.names import MQTT_RETAINED
from tandemmq.broker.core.slices import ITEMS
from tandemmq.broker.mqtt.retained_messages import TOPIC_BYTES, Retained, Retaining
from tandemmq.broker.protocols.mqtt.topics import destination_of, matches
from tandemmq.store.records.message import Message
from tests.unit.broker.mqtt.conftest import Terms

pytestmark = pytest.mark.promise("mqtt-retained")

_WORDS = st.sampled_from(["", "a", "b", "$SYS", "$", "c"])
_TOPICS = st.lists(_WORDS, min_size=1, max_size=4).map("/".join).filter(bool)
_FILTERS = (
    st.tuples(st.lists(st.one_of(_WORDS, st.just("+")), max_size=4), st.booleans())
    .map(lambda made: "/".join([*made[0], *(["#"] if made[1] else [])]))
    .filter(bool)
)
# Actions on a topic: retain bytes until a time (0: for ever), or, None, remove the message.
_STEPS = st.lists(st.tuples(_TOPICS, st.one_of(st.none(), st.tuples(st.binary(min_size=1), st.integers(0, 9)))))


async def test_no_state_is_created_while_no_message_is_retained(terms: Terms) -> None:
    assert terms.clients.is_loaded
    assert terms.retained() == {}
    assert terms.engine.waiting_in(MQTT_RETAINED) is None


async def test_the_queue_holds_one_message_for_each_topic(terms: Terms) -> None:
    for number in range(3):
        await terms.retain("a/b", b"%d" % number)
        await terms.retain(f"a/{number}", b"x")
    await terms.retain("a/0", b"")
    await terms.retain("never/there", b"")
    await terms.until(lambda: terms.stored(MQTT_RETAINED) == 3)
    assert (terms.retained(), terms.retained("a/b")) == ({"a/b": b"2", "a/1": b"x", "a/2": b"x"}, {"a/b": b"2"})


async def test_the_next_term_reads_them_while_who_asks_waits(terms: Terms) -> None:
    expected = {}
    for number in range(2 * ITEMS):
        expected[f"t/{number}"] = b"%d" % number
        await terms.retain(f"t/{number}", expected[f"t/{number}"])
    terms.again()
    assert not terms.clients.is_loaded
    await terms.loaded()
    assert terms.clients.is_loaded
    assert terms.retained() == expected
    assert terms.engine.memory.by_kind[Kind.STATE] >= 2 * ITEMS * TOPIC_BYTES


async def test_a_later_retained_message_is_newer_also_in_the_next_term(terms: Terms) -> None:
    await terms.retain("a", b"1")
    until = terms.clients.newest
    await terms.retain("b", b"1")
    terms.store.epoch += 1
    terms.again()
    await terms.loaded()
    await terms.retain("c", b"1")
    await terms.until(lambda: len(terms.retained()) == 3)
    assert [each.body for each in terms.clients.retained("+", "", until) if each is not None] == [b"1"]
    assert terms.clients.newest > until


async def test_a_replaced_message_is_removed_by_the_next_term(terms: Terms) -> None:
    """The next term finds the replaced message, too, because the broker ended before it was acknowledged."""
    await terms.retain("a", b"1")
    terms.clients.end()  # from now on replaced messages are not acknowledged
    held = terms.engine.inventory.client("mqtt-retained")
    assert held is not None
    terms.engine.closed(held.connection)
    await terms.retain("a", b"2")
    await terms.retain("b", b"1")
    await terms.retain("b", b"")
    assert terms.stored(MQTT_RETAINED) == 4
    terms.begin()
    await terms.loaded()
    assert terms.retained() == {"a": b"2"}
    await terms.until(lambda: terms.stored(MQTT_RETAINED) == 1)


async def test_a_replaced_message_is_acknowledged_before_the_removal_of_its_topic(
    terms: Terms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the former message would come back alone after a crash between the two."""
    monkeypatch.setattr(Retaining, "_acknowledge", lambda self: None)
    await terms.retain("a", b"1")
    await terms.retain("a", b"")
    term = terms.clients._term
    assert term is not None
    retaining = term.retaining
    first, second = retaining._gone
    assert first < second


async def test_an_expired_message_is_acknowledged(terms: Terms) -> None:
    await terms.retain("a", b"1", expiry=10)
    await terms.retain("b", b"1", expiry=1_000)
    terms.now += 10_000
    assert terms.retained() == {"b": b"1"}
    await terms.until(lambda: terms.stored(MQTT_RETAINED) == 1)
    terms.now += 1_000_000
    terms.again()
    await terms.until(lambda: terms.stored(MQTT_RETAINED) == 0)
    assert terms.clients.counts["mqtt_retained_messages"] == 0


async def test_beyond_its_bounds_nothing_more_is_kept_and_what_was_kept_before_stays(terms: Terms) -> None:
    for number in range(5):
        await terms.retain(f"a/{number}", b"1")
    terms.again(retained_messages_max=3)
    await terms.loaded()
    await terms.retain("a/5", b"1")
    await terms.until(lambda: terms.stored(MQTT_RETAINED) == 5)
    assert sorted(terms.retained()) == [f"a/{number}" for number in range(5)]


async def test_they_have_a_quarter_of_the_memory_at_most(terms: Terms) -> None:
    memory = terms.engine.memory
    memory.limit = memory.used + 1_000_000
    for number in range(60):
        await terms.retain(f"a/{number}", b"x" * 4_000)
    kept = len(terms.retained())
    assert memory.limit // 8 < kept * (4_000 + ENTRY_OVERHEAD_BYTES + TOPIC_BYTES) < memory.limit // 4
    await terms.retain("a/0", b"y" * 4_000)  # a message that takes no more bytes than the one before
    await terms.until(lambda: terms.retained()["a/0"] == b"y" * 4_000)
    await terms.retain("a/1", b"")
    await terms.until(lambda: len(terms.retained()) == kept - 1)
    await terms.retain("a/60", b"x" * 4_000)
    await terms.until(lambda: "a/60" in terms.retained())
    assert "a/1" not in terms.retained()


async def test_an_operator_who_hangs_up_on_it_loses_nothing(terms: Terms) -> None:
    await terms.retain("a", b"1")
    assert terms.engine.hang_up("mqtt-retained")
    assert not terms.clients.is_loaded
    await terms.loaded()
    assert terms.retained() == {"a": b"1"}
    await terms.retain("a", b"2")
    await terms.until(lambda: terms.retained() == {"a": b"2"})
    await terms.until(lambda: terms.stored(MQTT_RETAINED) == 1)


# ---- the tree, against a plain dictionary


def _message(topic: str, body: bytes, expiration: int = 0, number: int = 1) -> Message:
    message = Message(destination_of(topic), "ID:1", body, expiration=expiration)
    message.broker_sequence = number
    return message


def _found(found: Iterator[Message | None]) -> list[bytes]:
    return [message.body for message in found if message is not None]


@given(_STEPS, st.lists(_FILTERS, min_size=1), st.integers(0, 10), st.one_of(st.just(""), _TOPICS), st.integers(0, 20))
def test_it_finds_what_a_look_at_all_of_them_finds(
    steps: list[tuple[str, tuple[bytes, int] | None]], filters: list[str], now: int, after: str, newest: int
) -> None:
    """Retained messages come in the order of topics, after any topic, and without those that are too new."""
    retained = Retained()
    model: dict[str, tuple[int, bytes, int]] = {}
    for tag, (topic, what) in enumerate(steps):
        former = model.pop(topic, None)
        if what is None:
            gone = retained.remove(topic)
        else:
            model[topic] = tag, *what
            gone = retained.put(topic, _message(topic, *what, number=tag), tag)
        assert (None if gone is None else gone.tag) == (None if former is None else former[0])

    def check() -> None:
        assert retained.count == len(model)
        assert retained.bytes == sum(len(body) for _, body, _ in model.values())
        for topic_filter in filters:
            expected = {
                topic: (tag, body)
                for topic, (tag, body, until) in sorted(model.items(), key=lambda each: each[0].split("/"))
                if matches(topic_filter, topic) and not 0 < until <= now
            }
            assert _found(retained.matching(topic_filter, now)) == [body for _, body in expected.values()]
            rest = [
                body
                for topic, (tag, body) in expected.items()
                if tag <= newest and (not after or topic.split("/") > after.split("/"))
            ]
            assert _found(retained.matching(topic_filter, now, after, newest)) == rest
        for topic, (tag, _, _) in model.items():
            kept = retained.get(topic)
            assert kept is not None
            assert kept.tag == tag

    check()
    gone = {kept.topic for kept in retained.expire(now)}
    assert gone == {topic for topic, (_, _, until) in model.items() if 0 < until <= now}
    for topic in gone:
        del model[topic]
    check()


def test_a_long_look_pauses_and_sees_what_changes_meanwhile() -> None:
    retained = Retained()
    for number in range(2 * ITEMS):
        retained.put(f"a/{number}", _message(f"a/{number}", b"old"), number)
    found = retained.matching("a/+", 0)
    before_pause = []
    for message in found:
        if message is None:
            break
        before_pause.append(message.body)
    assert 0 < len(before_pause) <= ITEMS
    for number in range(0, 2 * ITEMS, 2):
        retained.remove(f"a/{number}")
    for number in range(1, 2 * ITEMS, 2):
        retained.put(f"a/{number}", _message(f"a/{number}", b"new"), number)
    after = _found(found)
    assert set(after) == {b"new"}
    assert len(before_pause) + 2 * len(after) in range(2 * ITEMS - 1, 2 * ITEMS + 2)


MANY = 20 * ITEMS


def test_many_who_look_at_very_many_hold_few_of_them() -> None:
    retained = Retained()
    for number in range(MANY):
        retained.put(f"{number}", _message("a", b"1"), number)
    looks = [retained.matching("#", 0) for _ in range(20)]
    tracemalloc.start()
    try:
        for look in looks:
            next(look)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < len(looks) * 20 * ITEMS
    assert all(len(_found(look)) == MANY - 1 for look in looks)


def test_a_level_of_many_may_become_one_of_few_and_end_meanwhile() -> None:
    retained = Retained()
    topics = [f"a/{number:05}" for number in range(3 * ITEMS)]
    for topic in topics:
        retained.put(topic, _message(topic, topic.encode()), 1)
    found = retained.matching("a/+", 0)
    seen = [next(found) for _ in range(10)]
    for topic in topics[:-2]:
        retained.remove(topic)
    assert all(seen)
    assert set(_found(found)) == {each.encode() for each in topics[-2:]}
    found = retained.matching("#", 0)
    next(found)
    for topic in topics:
        retained.remove(topic)
    assert _found(found) == []
    assert retained.count == 0


def test_a_filter_that_matches_nothing_of_much_pauses_too() -> None:
    retained = Retained()
    for number in range(3 * ITEMS):
        retained.put(f"a/{number}/x", _message("a", b"1"), number)
    assert list(retained.matching("a/+/y", 0)).count(None) >= 3


def test_messages_replaced_before_they_expire_leave_no_entries() -> None:
    retained = Retained()
    for number in range(10 * ITEMS):
        retained.put("a", _message("a", b"%d" % number, expiration=number + 1), number)
    assert len(retained._expiring) <= 2 + ITEMS
    assert [kept.tag for kept in retained.expire(10 * ITEMS)] == [10 * ITEMS - 1]
    assert retained.count == 0
    assert list(retained.matching("#", 0)) == []
