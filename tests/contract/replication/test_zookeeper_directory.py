"""The directory in ZooKeeper, on real servers."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("kazoo", reason="kazoo is not installed: the extra zookeeper")
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.replication.directory import (
    ENTRY_BYTES_MAX,
    Entry,
    ZooKeeperDirectory,
    ZooKeeperPlace,
    decode,
    encode,
)
from tests.contract.replication.test_directory import A, B, DirectoryContract, eventually
from tests.support.services.zookeeper import TICK_MS, ZooKeeperServer, end_session, zookeeper, zookeeper_ensemble

pytestmark = [pytest.mark.service, pytest.mark.promise("set-has-one-master")]
_numbers = count()


@pytest.fixture(scope="module")
def server(require_service: Callable[[object, str], None]) -> Iterator[ZooKeeperServer]:
    with zookeeper(require_service) as running:
        yield running


@pytest.fixture
def place(server: ZooKeeperServer) -> ZooKeeperPlace:
    return ZooKeeperPlace(server.hosts, f"/tests/{next(_numbers)}", "orders", 30.0)


@pytest.fixture
def member() -> Iterator[Callable[..., ZooKeeperDirectory]]:
    """Directories that are started, by place and entry."""
    made: list[ZooKeeperDirectory] = []

    def build(place: ZooKeeperPlace, entry: Entry | None = None) -> ZooKeeperDirectory:
        made.append(ZooKeeperDirectory(place))
        if entry is not None:
            made[-1].publish(entry)
        made[-1].start(lambda: None)
        return made[-1]

    yield build
    for directory in made:
        directory.end()


@pytest.fixture
def stranger(server: ZooKeeperServer) -> Iterator[KazooClient]:
    """Return a client of the server that is not a broker."""
    client = KazooClient(server.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


Build = Callable[..., ZooKeeperDirectory]


def all_see(entries: tuple[Entry, ...], *directories: ZooKeeperDirectory) -> bool:
    return eventually(lambda: all(each.entries() == entries and each.problem is None for each in directories))


class TestContract(DirectoryContract):
    @pytest.fixture(autouse=True)
    def _place(self, server: ZooKeeperServer, place: ZooKeeperPlace) -> None:
        self.server, self.place = server, place

    def build(self) -> ZooKeeperDirectory:
        return ZooKeeperDirectory(self.place)

    @contextmanager
    def out_of_reach(self, *members: ZooKeeperDirectory) -> Iterator[None]:
        with self.server.paused():
            yield

    def lose_session(self, member: ZooKeeperDirectory) -> None:
        end_session(member._session, self.server)


# Servers that die


def test_a_server_that_was_killed_and_started_again_costs_time_only(
    server: ZooKeeperServer, place: ZooKeeperPlace, member: Build
) -> None:
    # A server that starts may take a connection and forget it: kazoo waits as long as a session for its answer.
    place = replace(place, session_timeout_seconds=2.0)
    a, b = member(place, A), member(place, B)
    assert all_see((A, B), a, b)
    server.kill()
    try:
        assert eventually(lambda: a.problem is not None and b.problem is not None)
        assert a.entries() == b.entries() == (A, B)
        a.publish(replace(A, epoch=3))
    finally:
        server.start()
    assert all_see((replace(A, epoch=3), B), a, b)


def test_a_server_that_lost_all_it_knew_is_told_again(
    server: ZooKeeperServer, place: ZooKeeperPlace, member: Build, stranger: KazooClient
) -> None:
    stranger.create("/before", makepath=True)  # so that clients have seen more than the empty server has
    place = replace(place, session_timeout_seconds=1.0)
    a, b = member(place, A), member(place, B)
    assert all_see((A, B), a, b)
    server.kill()
    server.empty()
    server.start()
    newcomer = member(place)
    assert all_see((A, B), a, b, newcomer)
    a.publish(replace(A, is_master=True))
    assert all_see((replace(A, is_master=True), B), a, b, newcomer)


def test_a_server_that_was_restored_from_a_backup_is_told_again(
    server: ZooKeeperServer, place: ZooKeeperPlace, member: Build, tmp_path: Path
) -> None:
    place = replace(place, session_timeout_seconds=1.0)
    a, gone = member(place, A), member(place, B)
    assert all_see((A, B), a)
    server.kill()
    shutil.copytree(server.directory / "data", tmp_path / "backup")
    server.start()
    master = replace(A, is_master=True, epoch=4)
    a.publish(master)
    gone.end()
    assert all_see((master,), a)
    server.kill()
    server.empty()
    shutil.copytree(tmp_path / "backup", server.directory / "data")
    server.start()
    # The backup has B, and A as it was; their sessions send nothing any more.
    assert all_see((master,), a, member(place))


def test_a_server_that_is_there_later_is_found(member: Build, require_service: Callable[[object, str], None]) -> None:
    late = ZooKeeperServer()
    try:
        place = ZooKeeperPlace(late.hosts, "/default", "orders", 1.0)
        require_service(True, "")
        a = member(place, A)
        assert eventually(lambda: a.problem is not None and "is unavailable" in a.problem)
        assert a.entries() == (A,)
        assert a.session_timeout_seconds == 1.0
        late.start()
        assert all_see((A,), a, member(place))
    finally:
        a.end()
        late.remove()


def test_the_leader_of_the_servers_may_die(require_service: Callable[[object, str], None], member: Build) -> None:
    with zookeeper_ensemble(require_service) as servers:
        assert eventually(lambda: any(each.is_serving("Mode: leader") for each in servers))
        place = ZooKeeperPlace(",".join(each.hosts for each in servers), "/default", "orders", 4.0)
        a, b = member(place, A), member(place, B)
        assert all_see((A, B), a, b)
        next(each for each in servers if each.is_serving("Mode: leader")).kill()
        a.publish(replace(A, epoch=5))
        assert all_see((replace(A, epoch=5), B), a, b)


# Whose entries


def test_sets_with_different_names_and_passwords_share_a_path(
    place: ZooKeeperPlace, member: Build, stranger: KazooClient
) -> None:
    orders = replace(place, password="one")
    stock = replace(place, broker="stock", password="two")
    a, b = member(orders, A), member(stock, B)
    assert all_see((A,), a, member(orders))
    assert all_see((B,), b, member(stock))


def test_with_a_password_nobody_else_reads_or_writes(
    place: ZooKeeperPlace, member: Build, stranger: KazooClient
) -> None:
    guarded = replace(place, password="one")
    assert all_see((A,), member(guarded, A))
    for verb, arguments in (
        ("get", (f"{place.nodes}/aa",)),
        ("get_children", (place.nodes,)),
        ("create", (f"{place.nodes}/cc", b"{}")),
        ("delete", (f"{place.nodes}/aa",)),
    ):
        with pytest.raises(NoAuthError):
            getattr(stranger, verb)(*arguments)
    wrong = member(replace(place, password="two"), B)
    assert eventually(lambda: wrong.problem is not None and "refuses this broker: NoAuthError" in wrong.problem)
    assert wrong.entries() == (B,)


def told(stranger: KazooClient, node: str) -> Entry | None:
    """Return the present content; None: there is none."""
    try:
        return decode(stranger.get(node)[0])[0]
    except NoNodeError:
        return None


def put_in_the_place_of_ours(stranger: KazooClient, node: str, content: bytes) -> None:
    """Replace the node of the test's broker, although its owner makes it again immediately."""
    while True:
        try:
            stranger.delete(node)
            stranger.create(node, content, ephemeral=True)
        except (NodeExistsError, NoNodeError):
            continue
        return


def test_the_node_of_a_former_process_is_replaced_and_a_living_copy_is_told(
    place: ZooKeeperPlace, member: Build, stranger: KazooClient
) -> None:
    node = f"{place.nodes}/{A.store}"
    former = replace(A, address="one:99")
    stranger.create(node, encode(former, "former"), ephemeral=True, makepath=True)
    a, b = member(place, A), member(place, B)
    assert all_see((A, B), a, b)
    stranger.delete(node)
    assert eventually(lambda: stranger.exists(node) is not None)
    # It comes back: a copy of the directory, whose broker runs.
    put_in_the_place_of_ours(stranger, node, encode(former, "former"))
    assert eventually(lambda: a.problem is not None and "at one:99" in a.problem)
    assert a.entries() == (A, B)
    assert eventually(lambda: b.entries() == (former, B))
    stranger.delete(node)
    assert all_see((A, B), a, b)


def test_a_node_of_our_own_former_sessions_is_replaced_each_time(
    place: ZooKeeperPlace, member: Build, stranger: KazooClient
) -> None:
    node = f"{place.nodes}/{A.store}"
    a = member(place, A)
    assert all_see((A,), a)
    assert eventually(lambda: stranger.exists(node) is not None)
    for epoch in (1, 2, 3):
        put_in_the_place_of_ours(stranger, node, encode(replace(A, epoch=epoch), a._nonce))
        assert eventually(lambda: told(stranger, node) == A)
        assert a.problem is None


def test_what_no_member_wrote_is_passed_over(place: ZooKeeperPlace, member: Build, stranger: KazooClient) -> None:
    a = member(place, A)
    assert all_see((A,), a)
    strange = [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        encode(B, "n").replace(b'"weight": 7', b'"weight": "7"'),
        encode(B, "n").replace(b'"weight": 7', b'"weight": true'),
        encode(B, "n").replace(b'"connectors": []', b'"connectors": [1]'),
        encode(B, "n").replace(b'"connectors"', b'"connections"'),
        encode(replace(B, node="x" * ENTRY_BYTES_MAX), "n"),
        encode(B, "n"),  # in another's place
    ]
    for number, content in enumerate(strange):
        stranger.create(f"{place.nodes}/{number}", content)
    stranger.create(f"{place.nodes}/{B.store}", encode(B, "n")[:-1] + b', "later": 1}')
    assert all_see((A, B), a)


def test_an_entry_reads_back_as_it_was() -> None:
    for entry in (A, B):
        assert decode(encode(entry, "abc")) == (entry, "abc")


# Time


def test_the_session_is_as_long_as_was_agreed(place: ZooKeeperPlace, member: Build) -> None:
    short, long = (member(replace(place, session_timeout_seconds=asked), A) for asked in (0.1, 7.0))
    assert eventually(lambda: short.session_timeout_seconds == 2 * TICK_MS / 1000)
    assert eventually(lambda: long.problem is None)
    assert long.session_timeout_seconds == 7.0


def test_an_ended_directory_leaves_no_thread(place: ZooKeeperPlace, member: Build) -> None:
    before = set(threading.enumerate())
    nowhere = replace(place, hosts=f"127.0.0.1:{free_port()}")
    for directory in (member(place, A), member(nowhere, B)):
        assert eventually(lambda directory=directory: directory.problem != "no server was reached yet")  # type: ignore[misc]
        directory.end()
    assert eventually(lambda: set(threading.enumerate()) <= before)
