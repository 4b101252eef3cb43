"""Keys of the index: what they say can be read back, and they stand in the order that the store relies on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.state import keys
from tandemmq.store.state.keys import Entry, OwnerRecord

IDS = st.one_of(
    st.text(max_size=30),
    st.builds("{}:{}".format, st.text(max_size=20), st.integers(0, 1 << 65)),
    st.builds("ID:a-{}:1:1:{}".format, st.integers(0, 3), st.integers(0, 50)),
    st.builds("{}:0{}".format, st.text(max_size=3), st.integers(0, 9)),
)


@given(owner=st.integers(1, 3), ids=st.lists(IDS, max_size=30))
def test_many_ids_have_the_keys_that_each_has(owner: int, ids: list[str]) -> None:
    assert list(keys.id_keys(owner, ids)) == [keys.id_key(owner, message_id) for message_id in ids]


@given(ids=st.sets(IDS, max_size=60))
def test_different_ids_have_different_keys(ids: set[str]) -> None:
    assert len({keys.id_key(1, message_id) for message_id in ids}) == len(ids)


@given(first=st.integers(0, 1 << 63), second=st.integers(0, 1 << 63))
def test_the_ids_of_a_producer_stand_in_their_order(first: int, second: int) -> None:
    one, other = keys.id_key(1, f"ID:x:1:1:{first}"), keys.id_key(1, f"ID:x:1:1:{second}")
    assert (one < other) == (first < second)


@given(
    order_key=st.integers(0, (1 << 96) - 1),
    location=st.integers(0, (1 << 64) - 1),
    size=st.integers(0, (1 << 32) - 1),
    message_id=st.text(max_size=40),
)
def test_an_entry_reads_back(order_key: int, location: int, size: int, message_id: str) -> None:
    for place in (location, order_key >> 32):
        value = keys.message_value(order_key, (place, size, message_id))
        assert keys.entry_of(order_key, value) == Entry(place, size, message_id)
    assert keys.order_in(keys.message_key(7, order_key)) == order_key


@given(pins=st.sets(st.integers(1, (1 << 31) - 1), max_size=2000), live=st.integers(0, 1 << 40))
def test_a_files_holders_read_back_however_many_they_are(pins: set[int], live: int) -> None:
    found: set[int] = set()
    for key, value in keys.file_values(5, live * 7, pins):
        assert len(value) <= 2048, "a value fits a quarter of a page"
        file, size, some = keys.file_of_entry(key, value)
        assert (file, size) == (5, live * 7)
        found.update(some)
    assert found == pins
    assert keys.holder_of(keys.holder_key(5, 9), keys.holder_value(live, live * 7)) == (5, 9, live, live * 7)


@given(file=st.integers(1, (1 << 31) - 1), owner=st.integers(1, (1 << 32) - 1), place=st.integers(0, (1 << 96) - 1))
def test_a_displaced_message_reads_back(file: int, owner: int, place: int) -> None:
    key = keys.displaced_key(file, owner, place)
    assert key.startswith(keys.displaced_prefix(file, owner))
    assert keys.order_in(key) == place


@given(
    name=st.text(max_size=50), client=st.none() | st.text(max_size=20), count=st.integers(0), location=st.integers(0)
)
def test_an_owner_reads_back(name: str, client: str | None, count: int, location: int) -> None:
    record = OwnerRecord(Destination(DestinationKind.TOPIC, name), client, client, location, count, count * 3)
    assert keys.owner_of(keys.numbered(keys.OWNER, 9), keys.owner_value(record)) == (9, record)
