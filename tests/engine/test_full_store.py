"""A store in memory that is full."""

from __future__ import annotations

from store.memory import MemoryStore


def test_a_full_store_in_memory_refuses_a_send_and_takes_acknowledgements(house):
    client = house.client()
    client.subscribe()
    client.send("x" * 600)
    house.turn()
    assert isinstance(house.store, MemoryStore)
    house.store._bytes_max = 1_000

    client.send("y" * 600, receipt="r")
    assert "bytes_max" in client.errors[0]
    assert not client.is_closed
    client.ack("x" * 600)
    house.turn()
    client.send("y" * 600, receipt="r")
    house.turn()

    assert client.receipts == ["r"]
