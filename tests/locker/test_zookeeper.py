"""The queue in ZooKeeper, on a real server."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest

pytest.importorskip("kazoo", reason="kazoo is not installed: the extra zookeeper")
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from bench.peers.ports import free_port
from locker.contract import Holder, Locker, LockRequest, LockSettingsError, LockUnavailable
from locker.zookeeper import PROVED, ZooKeeperLocker, ZooKeeperSettings, decode, encode
from tests.locker.pair import assert_the_standby_follows, running_pair
from tests.locker.test_contract import Leased, OutOfReach, Refusing, answers, eventually
from tests.services.zookeeper import ZooKeeperServer, zookeeper, zookeeper_ensemble

pytestmark = pytest.mark.service
_numbers = count()


@pytest.fixture(scope="module")
def server(require_service: Callable[[object, str], None]) -> Iterator[ZooKeeperServer]:
    with zookeeper(require_service) as running:
        yield running


@pytest.fixture
def admin(server: ZooKeeperServer) -> Iterator[KazooClient]:
    """Somebody at the server, who is no broker."""
    client = KazooClient(server.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def path() -> str:
    return f"/tests/{next(_numbers)}"


@pytest.fixture
def build(
    server: ZooKeeperServer, path: str, request_for: Callable[..., LockRequest]
) -> Iterator[Callable[..., ZooKeeperLocker]]:
    """Lockers on one path, by broker name, session length in seconds and options."""
    built: list[ZooKeeperLocker] = []

    def make(name: str, lease_seconds: float = 30.0, **options: object) -> ZooKeeperLocker:
        asked = request_for(name, lock_acquire_sleep_interval_seconds=lease_seconds)
        built.append(ZooKeeperLocker(replace(asked, options={"hosts": server.hosts, "path": path, **options})))
        return built[-1]

    yield make
    for locker in built:
        locker.release()


class TestContract(Leased, OutOfReach, Refusing):
    factory = "locker.zookeeper:ZooKeeperLocker"
    settings: ClassVar = {"lock_acquire_sleep_interval_seconds": 15.0}
    short: ClassVar = {"lock_acquire_sleep_interval_seconds": 1.0, "lock_keep_alive_period_seconds": 0.1}

    @pytest.fixture(autouse=True)
    def _server(self, server: ZooKeeperServer, admin: KazooClient, path: str) -> None:
        self.server, self.admin, self.path = server, admin, path

    def options(self) -> dict[str, object]:
        return {"hosts": self.server.hosts, "path": self.path, "connect_timeout": 1_000}

    def steal(self, locker: Locker) -> None:
        first = min(self.admin.get_children(self.path), key=lambda node: node[-10:])
        self.admin.delete(f"{self.path}/{first}")

    @contextmanager
    def out_of_reach(self, locker: Locker) -> Iterator[None]:
        with self.server.paused():
            yield

    def refused(self, request: LockRequest) -> Locker:
        self.admin.create(self.path, makepath=True, acl=[make_digest_acl("somebody", "else", all=True)])
        return ZooKeeperLocker(request)


# Who waits


def test_those_that_wait_are_known_in_their_order(build: Callable[..., ZooKeeperLocker]) -> None:
    a, b, c = build("a"), build("b"), build("c")
    assert a.try_acquire()
    assert a.waiters() == []
    assert not c.try_acquire()
    assert not b.try_acquire()
    for locker in (a, b, c):
        assert [holder.name for holder in locker.waiters()] == ["c", "b"]
        assert locker.holder() == a.holder()
    a.release()
    assert not b.try_acquire()
    assert c.try_acquire()
    assert [holder.name for holder in b.waiters()] == ["b"]


def test_one_that_waits_and_stops_is_in_nobodys_way(build: Callable[..., ZooKeeperLocker]) -> None:
    a, b, c = build("a"), build("b"), build("c")
    assert a.try_acquire()
    assert not b.try_acquire()
    assert not c.try_acquire()
    b.release()
    a.release()
    assert c.try_acquire()


def test_a_released_lock_leaves_no_thread_and_no_descriptor(build: Callable[..., ZooKeeperLocker]) -> None:
    def has_left_nothing() -> bool:
        return threading.active_count() <= threads and len(os.listdir("/proc/self/fd")) <= descriptors

    a = build("a")
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert a.try_acquire()
        assert a.holder() is not None
        a.release()
    assert eventually(has_left_nothing)


# Servers that fail


def test_a_server_that_is_not_there_does_not_hang_a_start(request_for: Callable[..., LockRequest]) -> None:
    options = {"hosts": f"127.0.0.1:{free_port()}", "connect_timeout": 200}
    locker = ZooKeeperLocker(replace(request_for("a", lock_acquire_sleep_interval_seconds=2.0), options=options))
    with pytest.raises(LockUnavailable, match=r"cannot be asked: no server answered within 0\.2 s"):
        locker.acquire(threading.Event())
    locker.release()


def test_a_server_that_was_killed_and_started_again_finds_us_master(
    server: ZooKeeperServer, build: Callable[..., ZooKeeperLocker]
) -> None:
    # A session outlives the servers: they begin to count anew when they are back.
    a, b = (build(name, 30.0, connect_timeout=2_000) for name in ("a", "b"))
    assert a.try_acquire()
    assert not b.try_acquire()
    server.kill()
    with pytest.raises(LockUnavailable):
        a.keep_alive()
    server.start()
    assert eventually(lambda: answers(a.keep_alive))
    assert eventually(lambda: answers(lambda: not b.try_acquire()))
    a.release()
    assert eventually(lambda: answers(b.try_acquire))


def test_a_release_that_did_not_reach_the_servers_is_made_up_for(
    server: ZooKeeperServer, build: Callable[..., ZooKeeperLocker]
) -> None:
    a, b = build("a", 50.0), build("b", 50.0)
    assert a.try_acquire()
    with server.paused():
        a.release()
    # The node of the former session is there for most of a minute, but for its own broker.
    assert eventually(lambda: answers(a.try_acquire))
    assert not b.try_acquire()


def test_a_session_that_the_servers_ended_is_a_lost_lock(
    build: Callable[..., ZooKeeperLocker], admin: KazooClient, server: ZooKeeperServer
) -> None:
    a = build("a", 1.0)
    assert a.try_acquire()
    # Another connection with the session's number and password closes it under its owner.
    number, password = a._session._client.client_id
    thief = KazooClient(server.hosts, client_id=(number, password), timeout=1.0)
    thief.start()
    thief.stop()
    thief.close()
    assert eventually(lambda: is_lost(a))
    assert not a.keep_alive()
    a.release()
    assert a.try_acquire()


def is_lost(locker: Locker) -> bool:
    try:
        return not locker.keep_alive()
    except LockUnavailable:
        return False


def test_a_pair_of_brokers_elects_by_it(server: ZooKeeperServer, path: str, tmp_path: Path) -> None:
    options = {"type": "zookeeper", "zookeeper.hosts": server.hosts, "zookeeper.path": path}
    with running_pair(tmp_path / "data", *(f"--set=locker.{key}={value}" for key, value in options.items())) as pair:
        assert_the_standby_follows(*pair)


@pytest.mark.prove
@pytest.mark.skipif(
    os.environ.get("TANDEMMQ_PROVE_LOCKS", "0") in ("", "0"), reason="three servers: with TANDEMMQ_PROVE_LOCKS=1"
)
def test_the_leader_of_the_servers_may_die(
    require_service: Callable[[object, str], None], build: Callable[..., ZooKeeperLocker]
) -> None:
    with zookeeper_ensemble(require_service) as servers:
        hosts = ",".join(server.hosts for server in servers)
        a, b = (build(name, 10.0, hosts=hosts) for name in ("a", "b"))
        assert eventually(lambda: answers(a.try_acquire))
        assert not b.try_acquire()
        for _ in range(2):
            leader = next(server for server in servers if server.is_serving("Mode: leader"))
            leader.kill()
            assert eventually(lambda: answers(a.keep_alive))
            assert eventually(lambda: answers(lambda: not b.try_acquire()))
            leader.start()
            assert eventually(leader.is_serving)
        assert a.keep_alive()
        a.release()
        assert eventually(lambda: answers(b.try_acquire))
        b.release()


# What can happen to a node


def test_a_write_that_was_not_answered_is_found_to_be_ours(
    build: Callable[..., ZooKeeperLocker], admin: KazooClient
) -> None:
    a = build("a")
    assert a.try_acquire()
    content, _ = admin.get(a._node)
    admin.set(a._node, content)
    assert a.keep_alive()


def test_a_node_that_says_another_name_is_not_ours(build: Callable[..., ZooKeeperLocker], admin: KazooClient) -> None:
    a = build("a")
    assert a.try_acquire()
    admin.set(a._node, encode(Holder("b"), "another"))
    assert not a.keep_alive()


def test_a_master_whose_rights_were_taken_away_does_not_know_whether_it_lost(
    build: Callable[..., ZooKeeperLocker], admin: KazooClient
) -> None:
    a = build("a")
    assert a.try_acquire()
    admin.set_acls(a._node, [make_digest_acl("somebody", "else", all=True)])
    with pytest.raises(LockUnavailable, match="NoAuthError"):
        a.keep_alive()


def test_an_entry_that_was_not_answered_is_found_again(
    build: Callable[..., ZooKeeperLocker], admin: KazooClient, path: str
) -> None:
    a, b = build("a"), build("b")
    assert a.try_acquire()
    assert not b.try_acquire()
    for _ in range(3):
        assert not b.try_acquire()
    assert len(admin.get_children(path)) == 2
    # As if the answer to its first entry had come too late, and it had entered twice.
    b._enter()
    a.release()
    assert b.try_acquire()
    b.release()
    assert admin.get_children(path) == []


def test_a_queue_whose_nodes_have_gone_is_entered_anew(
    build: Callable[..., ZooKeeperLocker], admin: KazooClient, path: str
) -> None:
    a, b = build("a"), build("b")
    assert a.try_acquire()
    assert not b.try_acquire()
    admin.delete(path, recursive=True)
    assert not a.keep_alive()
    assert b.try_acquire()


# Sessions and rights


def test_the_proof_goes_by_what_the_servers_granted(build: Callable[..., ZooKeeperLocker]) -> None:
    # Our servers take sessions of 0.2 s to 60 s.
    long, short = build("a", 3_600.0), build("b", 0.01, path="/tests/short")
    assert long.lease_seconds == 3_600.0
    assert long.try_acquire()
    assert long.lease_seconds == 60.0
    assert long.proof().valid_for_seconds == 60.0 * PROVED
    short._session.connect(10.0)
    assert short.lease_seconds == pytest.approx(0.2)


def test_with_a_password_nobody_else_touches_the_nodes(
    build: Callable[..., ZooKeeperLocker], admin: KazooClient, path: str
) -> None:
    from kazoo.exceptions import NoAuthError

    a, b = build("a", digest="us:secret"), build("b", digest="us:secret")
    assert a.try_acquire()
    assert not b.try_acquire()
    with pytest.raises(NoAuthError):
        admin.set(a._node, b"")
    assert "secret" not in a.where
    a.release()
    assert b.try_acquire()


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({}, "zookeeper.hosts"),
        ({"hosts": "h:port"}, "zookeeper.hosts"),
        ({"hosts": "h:1", "path": "no"}, "zookeeper.path"),
        ({"hosts": "h:1", "digest": "secret"}, "zookeeper.digest"),
        ({"hosts": "h:1", "connect_timeout": "soon"}, "zookeeper.connect_timeout"),
        ({"hosts": "h:1", "port": 1}, "zookeeper.port"),
    ],
)
def test_settings_that_cannot_be_meant_are_named(
    request_for: Callable[..., LockRequest], options: dict[str, object], key: str
) -> None:
    with pytest.raises(LockSettingsError) as failure:
        ZooKeeperLocker(replace(request_for("a"), options=options))
    assert failure.value.key == key
    assert "secret" not in str(failure.value)


def test_settings_are_read_from_text(request_for: Callable[..., LockRequest]) -> None:
    options = {"hosts": "h:1,i:2", "connect_timeout": "250"}
    settings = ZooKeeperSettings.of(replace(request_for("a"), options=options))
    assert settings == ZooKeeperSettings("h:1,i:2", "/tandemmq/lock", None, 0.25)


def test_a_lease_not_longer_than_the_pause_between_renewals_is_unsafe(request_for: Callable[..., LockRequest]) -> None:
    def unsafe(lease_seconds: float, period_seconds: float) -> str | None:
        asked = request_for(
            "a", lock_acquire_sleep_interval_seconds=lease_seconds, lock_keep_alive_period_seconds=period_seconds
        )
        return ZooKeeperLocker(replace(asked, options={"hosts": "h:1"})).unsafe

    assert unsafe(2.0, 0.5) is None
    assert "not longer than lock_keep_alive_period" in str(unsafe(2.0, 2.0))
    assert "lock_keep_alive_period is 0" in str(unsafe(2.0, 0.0))


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}"])
def test_any_content_is_somebody(content: bytes) -> None:
    assert decode(content).name
