"""Retained messages are what their queue holds."""

# proves: replaced-retained-ends-first

from __future__ import annotations

import pytest

from tandemmq.broker.core.memory import ENTRY_OVERHEAD_BYTES, Kind
from tandemmq.broker.core.names import MQTT_RETAINED
from tandemmq.broker.core.slices import ITEMS
from tandemmq.broker.mqtt.retaining import Retaining
from tandemmq.broker.protocols.mqtt.retained import TOPIC_BYTES
from tests.unit.broker.mqtt.conftest import Terms

pytestmark = pytest.mark.promise("mqtt-retained")


async def test_nothing_is_begun_while_nobody_retains_anything(terms: Terms) -> None:
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


async def test_what_is_retained_later_is_newer_also_in_the_next_term(terms: Terms) -> None:
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


async def test_what_replaces_another_is_found_by_the_next_term_alone(terms: Terms) -> None:
    """Also where the one that was replaced is there, for the broker died before it was acknowledged."""
    await terms.retain("a", b"1")
    terms.clients.end()  # nobody acknowledges what is replaced from now on
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


async def test_what_was_replaced_ends_before_what_ends_its_topic(terms: Terms, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would come back alone after a crash in between."""
    monkeypatch.setattr(Retaining, "_acknowledge", lambda self: None)
    await terms.retain("a", b"1")
    await terms.retain("a", b"")
    retaining = terms.clients._retaining
    assert retaining is not None
    first, second = retaining._gone
    assert first < second


async def test_what_expires_is_acknowledged(terms: Terms) -> None:
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
    await terms.retain("a/0", b"y" * 4_000)  # one that takes no more than the one before
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
