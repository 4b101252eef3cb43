"""Packet ids of QoS 1 that are remembered."""

from __future__ import annotations

from tandemmq.broker.mqtt.clients import SENT_IDS_MAX, SentIdsOfClients


def test_they_are_given_once_and_those_of_the_last_connection_count() -> None:
    all_of_them = SentIdsOfClients()
    for kept in ({("t", "m"): 7}, {}):
        all_of_them.keep("one", {("t", "m"): 6})
        all_of_them.keep("one", kept)
        assert [all_of_them.take("one") for _ in range(2)] == [kept, None]


def test_of_very_many_the_oldest_are_forgotten() -> None:
    all_of_them = SentIdsOfClients()
    in_each = 1_000
    clients = [str(number) for number in range(SENT_IDS_MAX // in_each + 2)]
    for client in clients:
        all_of_them.keep(client, {("t", str(number)): number + 1 for number in range(in_each)})
        all_of_them.keep(f"{client}, who left none", {})
    found = [client for client in clients if all_of_them.take(client)]
    assert found == clients[3:]
