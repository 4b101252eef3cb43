"""Where clients find all brokers: what is said, and when it changes."""

from __future__ import annotations

from tandemmq.broker.net.told_addresses import MemberConnectors, ToldAddresses

A, B, C = "aa", "bb", "cc"


def member(host: str, *connectors: str) -> MemberConnectors:
    return MemberConnectors(host, connectors or (f"stomp://{host}:61613", f"openwire://{host}:61616"))


def test_what_the_operator_said_stays() -> None:
    told = ToldAddresses(["tcp://said:1"])
    assert not told.take([A, B], {A: member("one"), B: member("two")})
    assert told.plain == told.tls == ["tcp://said:1"]


def test_members_are_told_with_the_scheme_that_clients_use() -> None:
    told = ToldAddresses([])
    plain, tls = told.plain, told.tls
    assert told.take(
        [A, B], {A: member("one"), B: member("two", "nio://two:1", "openwire+ssl://two:2", "nio+ssl://two:3")}
    )
    assert plain == ["tcp://one:61616", "tcp://two:1"]
    assert tls == ["ssl://two:2", "ssl://two:3"]


def test_who_is_away_keeps_its_place_and_who_has_no_vote_has_none() -> None:
    told = ToldAddresses([])
    assert told.take([A, B, C], {A: member("one"), B: member("two"), C: member("three")})
    assert not told.take([A, B, C], {A: member("one")})
    assert told.plain == ["tcp://one:61616", "tcp://two:61616", "tcp://three:61616"]
    assert told.take([A, B], {A: member("one"), B: member("two"), C: member("three")})
    assert told.plain == ["tcp://one:61616", "tcp://two:61616"]


def test_a_member_that_moved_is_told_anew() -> None:
    told = ToldAddresses([])
    told.take([A, B], {A: member("one"), B: member("two")})
    assert told.take([A, B], {B: member("elsewhere")})
    assert told.plain == ["tcp://one:61616", "tcp://elsewhere:61616"]


def test_one_alone_tells_nothing() -> None:
    told = ToldAddresses([])
    assert not told.take([A], {A: member("one")})
    assert told.plain == []


def test_loopback_is_told_on_loopback_only() -> None:
    told = ToldAddresses([])
    local = "openwire://127.0.0.1:61616"
    told.take([A, B], {A: member("one", local), B: member("two")})
    assert told.plain == ["tcp://two:61616"]
    told.take([A, B], {A: member("127.0.0.1", local), B: member("127.0.0.1", "openwire://127.0.0.1:61617")})
    assert told.plain == ["tcp://127.0.0.1:61616", "tcp://127.0.0.1:61617"]
