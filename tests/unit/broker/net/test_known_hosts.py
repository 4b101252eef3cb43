"""Names by which a broker is known, of headers as clients send them."""

from __future__ import annotations

import socket

import pytest

from tandemmq.broker.net.known_hosts import KnownHosts


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:61614", "[::1]:61614", "LOCALHOST:1", "broker-a", "mq.example.org", "10.0.0.1"]
)
def test_addresses_and_own_names_are_known(host: str) -> None:
    assert KnownHosts(["MQ.example.org"]).knows(host)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:61614", "", ":1", "[::1", "127.0.0.1.evil.example"])
def test_other_names_are_not(host: str) -> None:
    assert not KnownHosts(["mq.example.org"]).knows(host)


def test_this_machine_is_known() -> None:
    assert KnownHosts().knows(socket.gethostname())
