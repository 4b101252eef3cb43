"""The queue in ZooKeeper, on a real server."""

# proves: answered-before-told, node-written-before, zookeeper-lock

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.prove import IS_PROOF

pytest.importorskip("kazoo", reason="kazoo is not installed: the extra zookeeper")
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from tandemmq.bench.peers.ports import free_port
from tandemmq.config.locker import PERIODS
from tandemmq.locker.contract import (
    NO_PROOF,
    Clock,
    Holder,
    Locker,
    LockRefused,
    LockRequest,
    LockSettingsError,
    LockUnavailable,
)
from tandemmq.locker.leased import MARGIN
from tandemmq.locker.zookeeper.locker import HALF_TICK, RENEWAL, ZooKeeperLocker, ZooKeeperSettings, decode, encode
from tandemmq.locker.zookeeper.session import ZooKeeperSession
from tests.contract.locker.test_contract import WAIT_SECONDS_MAX, Leased, OutOfReach, Refusing, answers, eventually
from tests.support.locker.interleaved import InterleavedLease
from tests.support.locker.manual_clock import ManualClock
from tests.support.locker.pair import assert_the_standby_follows, running_pair
from tests.support.locker.steps import Stepping
from tests.support.services.proxy import Proxy
from tests.support.services.zookeeper import ZooKeeperServer, end_session, zookeeper, zookeeper_ensemble

pytestmark = [pytest.mark.service, pytest.mark.promise("locks-keep-their-contract")]
_numbers = count()
Build = Callable[..., ZooKeeperLocker]
RequestFor = Callable[..., LockRequest]
Require = Callable[[object, str], None]


@pytest.fixture(scope="module")
def server(require_service: Require) -> Iterator[ZooKeeperServer]:
    with zookeeper(require_service) as running:
        yield running


@pytest.fixture
def admin(server: ZooKeeperServer) -> Iterator[KazooClient]:
    """Return a client of the server that is not a broker."""
    client = KazooClient(server.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def path() -> str:
    return f"/tests/{next(_numbers)}"


@pytest.fixture
def build(server: ZooKeeperServer, path: str, request_for: RequestFor) -> Iterator[Build]:
    """Lockers on one path, by broker name, session length in seconds and options."""
    built: list[ZooKeeperLocker] = []

    def make(
        name: str,
        lease_seconds: float = 30.0,
        *,
        period_seconds: float = 0.5,
        clock: Clock | None = None,
        **options: object,
    ) -> ZooKeeperLocker:
        asked = request_for(
            name, lock_acquire_sleep_interval_seconds=lease_seconds, lock_keep_alive_period_seconds=period_seconds
        )
        asked = replace(asked, clock=clock or asked.clock)
        built.append(ZooKeeperLocker(replace(asked, options={"hosts": server.hosts, "path": path, **options})))
        return built[-1]

    yield make
    for locker in built:
        locker.release()


class _SteppedLocker(ZooKeeperLocker):
    """Stands still before each call of its session, and before it closes it."""

    def _new_session(self) -> ZooKeeperSession:
        self._unstepped = super()._new_session()
        return Stepping(self._unstepped, {"call", "close"})  # type: ignore[return-value]

    def speak(self) -> None:
        """Do the work of kazoo's thread, by another clock."""
        if self._unstepped.counted_since(math.inf) > -math.inf:
            self._unstepped.call("sync", "/", seconds_max=WAIT_SECONDS_MAX)


class TestContract(Leased, OutOfReach, Refusing, InterleavedLease):
    factory = "tandemmq.locker.zookeeper.locker:ZooKeeperLocker"
    switches_max = None if IS_PROOF else 2
    switches_of_three_max = 1
    switches_of_many_max = 1
    switches_of_time_max = 1
    settings: ClassVar = {"lock_acquire_sleep_interval_seconds": 15.0}
    short: ClassVar = {"lock_acquire_sleep_interval_seconds": 3.0, "lock_keep_alive_period_seconds": 0.1}

    @pytest.fixture(autouse=True)
    def _server(self, server: ZooKeeperServer, admin: KazooClient, path: str) -> None:
        self.server, self.admin, self.path = server, admin, path
        self.made: list[_SteppedLocker] = []

    def options(self) -> dict[str, object]:
        return {"hosts": self.server.hosts, "path": self.path, "connect_timeout": 1_000}

    def steal(self, locker: Locker) -> None:
        first = min(self.admin.get_children(self.path), key=lambda node: node[-10:])
        self.admin.delete(f"{self.path}/{first}")

    @contextmanager
    def out_of_reach(self, locker: Locker) -> Iterator[None]:
        with self.server.paused():
            yield

    def stepped(self, request: LockRequest) -> Locker:
        self.made.append(_SteppedLocker(request))
        return self.made[-1]

    def let_pass(self, seconds: float) -> None:
        """Let time pass, as if the servers had the same clock, and the first locker sent only its own requests."""
        super().let_pass(seconds)
        silent, *others = self.made
        session = silent._session
        silence_seconds = self.clock.now() - session.counted_since(math.inf)
        if silent.lease_seconds <= silence_seconds < math.inf and not session.is_lost:
            end_session(session, self.server)
        for locker in others:
            locker.speak()

    def refused(self, request: LockRequest) -> Locker:
        self.admin.create(self.path, makepath=True, acl=[make_digest_acl("somebody", "else", all=True)])
        return ZooKeeperLocker(request)


# The proof of ownership


# proves: node-renewed-before, node-written-before
def test_a_proof_counts_from_before_the_servers_were_asked(
    server: ZooKeeperServer, path: str, request_for: RequestFor
) -> None:
    clock = ManualClock()
    proxy = Proxy(server.port, asked=lambda: clock.advance(1.0))
    asked = request_for("a", lock_acquire_sleep_interval_seconds=40.0)
    options = {"hosts": f"127.0.0.1:{proxy.port}", "path": path}
    a = ZooKeeperLocker(replace(asked, options=options, clock=clock))
    try:
        assert a.try_acquire()
        assert a.proof().known_at_seconds <= clock.now() - 1.0
        assert a.keep_alive()
        assert a.proof().known_at_seconds <= clock.now() - 1.0
    finally:
        a.release()
        proxy.close()


# Waiting brokers


def test_those_that_wait_are_known_in_their_order(build: Build) -> None:
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


def test_one_that_waits_and_stops_is_in_nobodys_way(build: Build) -> None:
    a, b, c = build("a"), build("b"), build("c")
    assert a.try_acquire()
    assert not b.try_acquire()
    assert not c.try_acquire()
    b.release()
    a.release()
    assert c.try_acquire()


def test_a_released_lock_leaves_no_thread_and_no_descriptor(build: Build) -> None:
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


def test_a_server_that_is_not_there_does_not_hang_a_start(request_for: RequestFor) -> None:
    options = {"hosts": f"127.0.0.1:{free_port()}", "connect_timeout": 200}
    locker = ZooKeeperLocker(replace(request_for("a", lock_acquire_sleep_interval_seconds=2.0), options=options))
    with pytest.raises(LockUnavailable, match=r"is unavailable: no server answered within 0\.2 s"):
        locker.acquire(threading.Event())
    locker.release()


def test_a_server_that_was_killed_and_started_again_finds_us_master(server: ZooKeeperServer, build: Build) -> None:
    # A session outlives the servers: the servers begin to count again when they restart.
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


def test_a_release_that_did_not_reach_the_servers_is_made_up_for(server: ZooKeeperServer, build: Build) -> None:
    a, b = build("a", 50.0), build("b", 50.0)
    assert a.try_acquire()
    with server.paused():
        a.release()
    # The node of the former session is there for most of a minute, but for its own broker.
    assert eventually(lambda: answers(a.try_acquire))
    assert not b.try_acquire()


def test_a_session_that_the_servers_ended_is_a_lost_lock(
    build: Build, admin: KazooClient, server: ZooKeeperServer
) -> None:
    a = build("a", 2.0)
    assert a.try_acquire()
    end_session(a._session, server)
    assert eventually(lambda: is_lost(a))
    assert not a.keep_alive()
    a.release()
    assert a.try_acquire()


# proves: node-proved-when-taken
def test_a_session_that_ended_after_writing_its_node_has_no_lock(
    build: Build, server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = build("a")
    around_calls(monkeypatch, a, after={"set": lambda: end_session(a._session, server)})
    assert not a.try_acquire()
    assert a.proof() == NO_PROOF


Actions = Mapping[str, Callable[[], object]]
NOTHING: Actions = {}


def around_calls(
    monkeypatch: pytest.MonkeyPatch, locker: ZooKeeperLocker, before: Actions = NOTHING, after: Actions = NOTHING
) -> list[str]:
    """Have something happen before or after calls of its session, by verb. What is called from now on is noted."""
    asked: list[str] = []
    call = locker._session.call

    def called(verb: str, *arguments: object, **options: Any) -> object:
        asked.append(verb)
        before.get(verb, lambda: None)()
        answer = call(verb, *arguments, **options)
        after.get(verb, lambda: None)()
        return answer

    monkeypatch.setattr(locker._session, "call", called)
    return asked


def is_lost(locker: Locker) -> bool:
    try:
        return not locker.keep_alive()
    except LockUnavailable:
        return False


def test_a_pair_of_brokers_elects_by_it(server: ZooKeeperServer, path: str, tmp_path: Path) -> None:
    options = {"type": "zookeeper", "zookeeper.hosts": server.hosts, "zookeeper.path": path}
    with running_pair(tmp_path / "data", *(f"--set=locker.{key}={value}" for key, value in options.items())) as pair:
        assert_the_standby_follows(*pair)


_proves_locks = pytest.mark.skipif(not IS_PROOF, reason="three servers: with TANDEMMQ_PROVE=full")


@pytest.mark.prove
@_proves_locks
def test_the_leader_of_the_servers_may_die(require_service: Require, build: Build) -> None:
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


@pytest.mark.prove
@_proves_locks
def test_a_proof_ends_before_the_session_when_its_server_is_cut_off(
    require_service: Require, build: Build, path: str
) -> None:
    lease_seconds, silence_seconds = 10.0, 2.9  # kazoo speaks by itself after 2.93 s at the earliest
    ways: dict[ZooKeeperServer, list[Proxy]] = {}

    def lay_ways(servers: list[ZooKeeperServer]) -> None:
        for server in servers:
            ways[server] = [Proxy(peer.quorum_port) for peer in servers if peer is not server]
            server.ways = {way.to_port: way.port for way in ways[server]}

    def is_leading(server: ZooKeeperServer) -> bool:
        return server.is_serving("Mode: leader")

    with zookeeper_ensemble(require_service, prepare=lay_ways) as servers, ExitStack() as cuts:
        assert eventually(lambda: any(is_leading(server) for server in servers))
        leader = next(server for server in servers if is_leading(server))
        follower = next(server for server in servers if server is not leader)
        assert eventually(follower.is_serving)
        a, b = (build(name, lease_seconds, hosts=server.hosts) for name, server in (("a", follower), ("b", leader)))
        assert a.try_acquire()
        assert not b.try_acquire()
        time.sleep(lease_seconds * HALF_TICK)
        assert a.keep_alive()
        silent_since = a.proof().known_at_seconds
        time.sleep(silence_seconds)
        assert a.keep_alive()
        for way in ways[follower]:
            cuts.enter_context(way.cut())
        assert a.proof().known_at_seconds - silent_since >= silence_seconds
        assert eventually(b.try_acquire)
        assert proved_until(a) < b.proof().known_at_seconds
        b.release()
    for way in (way for laid in ways.values() for way in laid):
        way.close()


# Changes of a node


# proves: node-is-still-ours
def test_a_write_that_was_not_answered_is_found_to_be_ours(build: Build, admin: KazooClient) -> None:
    a = build("a")
    assert a.try_acquire()
    content, _ = admin.get(a._node)
    admin.set(a._node, content)
    assert a.keep_alive()


# proves: node-is-still-ours
def test_a_node_that_went_after_somebody_wrote_it_is_not_ours(
    build: Build, admin: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = build("a")
    assert a.try_acquire()
    admin.set(a._node, b"somebody else's")
    around_calls(monkeypatch, a, before={"get": lambda: admin.delete(a._node)})
    assert not a.keep_alive()


# proves: node-is-still-ours
def test_a_node_that_says_another_name_is_not_ours(build: Build, admin: KazooClient) -> None:
    a = build("a")
    assert a.try_acquire()
    admin.set(a._node, encode(Holder("b"), "another"))
    assert not a.keep_alive()


# proves: node-of-our-session, node-that-was-made-once
@pytest.mark.parametrize("is_master", [True, False])
def test_a_node_that_was_made_anew_by_our_name_is_not_ours(
    build: Build, admin: KazooClient, path: str, is_master: bool
) -> None:
    a, b = build("a"), build("b")
    assert a.try_acquire()
    if not is_master:
        a, b = b, a
        assert not a.try_acquire()
    (name,) = (name for name in admin.get_children(path) if f"-{a._nonce}-" in name)
    content, status = admin.get(f"{path}/{name}")
    admin.delete(f"{path}/{name}")
    if is_master:
        assert b.try_acquire()
    admin.create(f"{path}/{name}", content)
    for _ in range(status.version):
        admin.set(f"{path}/{name}", content)
    if is_master:
        assert not a.keep_alive()
    else:
        b.release()
        assert not a.try_acquire()
    admin.delete(f"{path}/{name}")


def test_a_master_whose_rights_were_taken_away_does_not_know_whether_it_lost(build: Build, admin: KazooClient) -> None:
    a = build("a")
    assert a.try_acquire()
    admin.set_acls(a._node, [make_digest_acl("somebody", "else", all=True)])
    with pytest.raises(LockUnavailable, match="NoAuthError"):
        a.keep_alive()


def test_an_entry_that_was_not_answered_is_found_again(build: Build, admin: KazooClient, path: str) -> None:
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


def test_a_queue_whose_nodes_have_gone_is_entered_anew(build: Build, admin: KazooClient, path: str) -> None:
    a, b = build("a"), build("b")
    assert a.try_acquire()
    assert not b.try_acquire()
    admin.delete(path, recursive=True)
    assert not a.keep_alive()
    assert b.try_acquire()


def test_who_does_not_find_itself_in_the_queue_does_not_own_it(
    build: Build, admin: KazooClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = build("a")
    enter = a._enter

    def enter_and_vanish() -> None:
        enter()
        admin.delete(path, recursive=True)

    with monkeypatch.context() as patch:
        patch.setattr(a, "_enter", enter_and_vanish)
        assert not a.try_acquire()
        assert a.proof() == NO_PROOF
    assert a.try_acquire()


# Sessions and rights


# proves: node-proved-when-taken
def test_the_proof_goes_by_what_the_servers_granted(build: Build) -> None:
    # Our servers take sessions of 0.2 s to 60 s.
    long = build("a", 3_600.0)
    assert long.lease_seconds == 3_600.0
    assert long.try_acquire()
    assert long.lease_seconds == 60.0
    assert long.proof().valid_for_seconds <= 60.0 * (1 - MARGIN)


def test_a_session_that_the_servers_make_too_short_for_the_settings_is_refused(build: Build) -> None:
    a = build("a", 3_600.0, period_seconds=900.0)
    with pytest.raises(LockRefused) as refusal:
        a.acquire(threading.Event())
    assert "grants sessions of 60 s" in str(refusal.value)
    assert "locker.lock_keep_alive_period = 900000: expected at most 15750 ms for sessions of 60 s" in str(
        refusal.value
    )
    assert a.proof() == NO_PROOF
    assert a.waiters() == []


def test_with_a_password_nobody_else_touches_the_nodes(build: Build, admin: KazooClient, path: str) -> None:
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
def test_settings_that_cannot_be_meant_are_named(request_for: RequestFor, options: dict[str, object], key: str) -> None:
    with pytest.raises(LockSettingsError) as failure:
        ZooKeeperLocker(replace(request_for("a"), options=options))
    assert failure.value.key == key
    assert "secret" not in str(failure.value)


def test_settings_are_read_from_text(request_for: RequestFor) -> None:
    options = {"hosts": "h:1,i:2", "connect_timeout": "250"}
    settings = ZooKeeperSettings.of(replace(request_for("a"), options=options))
    assert settings == ZooKeeperSettings("h:1,i:2", "/tandemmq/lock", None, 0.25)


def test_a_period_that_no_proof_outlasts_is_refused_with_the_reason(request_for: RequestFor) -> None:
    def locker(lease_seconds: float, period_seconds: float) -> ZooKeeperLocker:
        asked = request_for(
            "a", lock_acquire_sleep_interval_seconds=lease_seconds, lock_keep_alive_period_seconds=period_seconds
        )
        return ZooKeeperLocker(replace(asked, options={"hosts": "h:1"}))

    # A proof lasts for 65 % of 2 s less one period. For another period and the renewal, 0.25 s, a period of at most
    # 0.525 s leaves enough.
    assert locker(2.0, 0.525).unsafe is None
    with pytest.raises(LockSettingsError) as refusal:
        locker(2.0, 0.526)
    assert refusal.value.key == "lock_keep_alive_period"
    assert str(refusal.value) == (
        "locker.lock_keep_alive_period = 526: expected at most 525 ms for sessions of 2 s (for longer sessions, set "
        "lock_acquire_sleep_interval): a proof of ownership lasts for 65% of a session less one period, and must last "
        "until the next proof"
    )
    assert "lock_keep_alive_period is 0" in str(locker(2.0, 0.0).unsafe)


def test_the_default_settings_leave_room_for_renewals_that_fail() -> None:
    lease_ms, period_ms = PERIODS["zookeeper"]
    proved_ms = lease_ms * (1 - MARGIN - HALF_TICK) - period_ms
    assert proved_ms - 3 * period_ms > lease_ms * RENEWAL


# The validity of a proof


# proves: half-a-tick-before, node-margin
def test_a_proof_counts_from_the_last_touch_known_to_the_leader(build: Build) -> None:
    clock = ManualClock(0.0)
    a = build("a", 40.0, period_seconds=10.0, clock=clock)
    assert a.try_acquire()
    assert proved_until(a) == 36.0  # since it connected
    clock.advance(9.0)
    assert a.keep_alive()
    # A server that reports to its leader every 10 s may have reported nothing since.
    assert proved_until(a) == 36.0
    clock.advance(9.9)
    assert a.keep_alive()
    assert proved_until(a) == 36.0
    clock.advance(0.1)
    assert a.keep_alive()
    assert proved_until(a) == 45.0  # since the renewal at 9 s, of which it was told after 9 s and before 19 s
    assert a.proof().known_at_seconds == 19.0


def test_a_renewal_after_a_silence_proves_no_more_than_the_touch_before_it(build: Build) -> None:
    # A machine that slept: the settings promise a renewal every half second, and there was none.
    clock = ManualClock(0.0)
    a = build("a", 40.0, clock=clock)
    assert a.try_acquire()
    clock.advance(1.0)
    assert a.keep_alive()
    clock.advance(29.0)
    assert a.keep_alive()
    assert proved_until(a) == 37.0


# proves: leader-heard-before-write
def test_a_renewal_syncs_before_it_writes(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the sync, the test would only assume that our server has lately reported us to the leader.
    a = build("a")
    assert a.try_acquire()
    asked = around_calls(monkeypatch, a)
    assert a.keep_alive()
    assert asked == ["sync", "set"]


# proves: node-proved-when-taken
def test_who_cannot_prove_it_yet_after_a_silence_has_it_a_few_polls_later(build: Build) -> None:
    clock = ManualClock(0.0)
    a, b = build("a", 40.0, clock=clock), build("b", 40.0, clock=clock)
    assert a.try_acquire()
    assert not b.try_acquire()
    clock.advance(50.0)
    a.release()
    assert not b.try_acquire()
    assert b.proof() == NO_PROOF
    clock.advance(9.9)
    assert not b.try_acquire()
    clock.advance(0.1)
    assert b.try_acquire()
    assert proved_until(b) == 86.0


def proved_until(locker: Locker) -> float:
    proof = locker.proof()
    return proof.known_at_seconds + proof.valid_for_seconds


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}"])
def test_any_content_is_somebody(content: bytes) -> None:
    assert decode(content).name
