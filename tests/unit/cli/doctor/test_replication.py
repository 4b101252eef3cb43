"""`tandemmq doctor replication`: correct settings, and settings with errors."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.replication.directory import Entry, ZooKeeperDirectory, ZooKeeperPlace
from tandemmq.cli import main
from tandemmq.cli.doctor import replication as doctor_replication
from tandemmq.cli.replication import Seen, master_of, why_no_master
from tests.support.acceptance.broker_process import wait_until
from tests.support.services.zookeeper import ZooKeeperServer, zookeeper


def doctor(path: Path, **table: object) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code, and verdict and sentence of each check."""
    values = {"hostname": "127.0.0.1", "bind": "127.0.0.1:0", "security_token": "secret", "zk_address": "127.0.0.1:9"}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in (values | table).items())
    (path / "node.toml").write_text(
        f'[broker]\nname = "orders"\n[store]\ndirectory = "{path}/data"\n[replication]\n{lines}'
    )
    result = CliRunner().invoke(main, ["doctor", "replication", "--config", str(path / "node.toml"), "--json"])
    checks: list[dict[str, Any]] = json.loads(result.stdout)["checks"]
    return result.exit_code, {check["name"]: (check["verdict"], check["sentence"]) for check in checks}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_replication, "ZOOKEEPER_SECONDS_MAX", 0.02)
    monkeypatch.setattr(doctor_replication, "CONNECT_SECONDS_MAX", 0.5)


@pytest.fixture(scope="module")
def server(require_service: Callable[[object, str], None]) -> Iterator[ZooKeeperServer]:
    with zookeeper(require_service) as running:
        yield running


@pytest.mark.usefixtures("impatient")
def test_a_zookeeper_that_is_not_there_fails(tmp_path: Path) -> None:
    code, found = doctor(tmp_path)
    assert code == 1
    assert found["zk_address"][0] == "fail"
    assert "no server answered" in found["zk_address"][1]


@pytest.mark.usefixtures("impatient")
def test_the_advertised_host_name_must_lead_to_this_node(tmp_path: Path) -> None:
    assert doctor(tmp_path)[1]["hostname"][0] == "warn", "loopback is reached by nobody else"
    _, found = doctor(tmp_path, hostname="nowhere.invalid")
    assert found["hostname"][0] == "fail"
    assert "cannot be resolved" in found["hostname"][1]
    _, found = doctor(tmp_path, hostname="127.0.0.2")
    assert found["hostname"][0] == "fail"
    assert "does not lead back here" in found["hostname"][1]


@pytest.mark.usefixtures("impatient")
def test_a_host_name_of_another_machine_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.2", 0)) as stranger:
        _, found = doctor(tmp_path, hostname="127.0.0.2", bind=f"127.0.0.1:{stranger.getsockname()[1]}")
    assert found["hostname"][0] == "fail"
    assert "leads to another process" in found["hostname"][1]


@pytest.mark.usefixtures("impatient")
def test_an_address_that_cannot_be_had_is_told(tmp_path: Path) -> None:
    _, found = doctor(tmp_path, bind="192.0.2.1:1")
    assert found["bind"] == ("fail", "192.0.2.1:1 is no address of this host")
    with socket.create_server(("127.0.0.1", 0)) as other:
        _, found = doctor(tmp_path, bind=f"127.0.0.1:{other.getsockname()[1]}")
    assert found["bind"][0] == "warn"
    assert "is in use" in found["bind"][1]


@pytest.mark.usefixtures("impatient")
def test_weak_settings_are_reported(tmp_path: Path) -> None:
    _, found = doctor(tmp_path, security_token="", replicas=2, sync="quorum_mem")
    assert [found[name][0] for name in ("security_token", "replicas", "sync", "clocks")] == [
        "warn",
        "warn",
        "warn",
        "ok",
    ]
    _, found = doctor(tmp_path, replicas=4, sync="local_disk")
    assert "no more than 3 would" in found["replicas"][1]
    assert "lost with the master" in found["sync"][1]
    assert doctor(tmp_path)[1]["replicas"][0] == "ok"


def test_settings_without_a_set_are_a_wrong_argument(tmp_path: Path) -> None:
    (tmp_path / "single.toml").write_text("")
    result = CliRunner().invoke(main, ["doctor", "replication", "--config", str(tmp_path / "single.toml")])
    assert result.exit_code == 2
    assert "[replication]" in result.stderr


@pytest.mark.service
def test_a_zookeeper_that_grants_longer_sessions_is_told(server: ZooKeeperServer, tmp_path: Path) -> None:
    _, found = doctor(tmp_path, zk_address=server.hosts, zk_session_timeout="150ms")
    assert found["zk_address"][0] == "warn"
    assert "it grants sessions of 0.2 s, but zk_session_timeout is 0.15 s" in found["zk_address"][1]
    code, found = doctor(tmp_path, zk_address=server.hosts)
    assert code == 0
    assert found["zk_address"][0] == "ok"
    assert found["members"] == ("ok", "none has an entry in ZooKeeper yet")


@pytest.mark.service
def test_members_that_cannot_be_reached_are_named(server: ZooKeeperServer, tmp_path: Path) -> None:
    directory = ZooKeeperDirectory(ZooKeeperPlace(server.hosts, "/default", "orders", 2.0))
    directory.start(lambda: None)
    try:
        with socket.create_server(("127.0.0.1", 0)) as there:
            publish(directory, "n2", there.getsockname()[1])
            wait_until(
                lambda: doctor(tmp_path, zk_address=server.hosts)[1]["members"][1].endswith("reached: n2"), "n2 is seen"
            )
            _, found = doctor(tmp_path, zk_address=server.hosts, node="n2", bind=f"127.0.0.1:{free_port()}")
            assert found["members"][0] == "fail"
            assert "another node is called n2" in found["members"][1]
        publish(directory, "n2", free_port())
        wait_until(lambda: doctor(tmp_path, zk_address=server.hosts)[1]["members"][0] == "fail", "n2 is gone")
    finally:
        directory.end()


def publish(directory: ZooKeeperDirectory, node: str, port: int) -> None:
    directory.publish(Entry("ab" * 16, node, f"127.0.0.1:{port}", 1, None, False, "1", False, 0, None, ()))


# ---- Why a set has no master, by what its members say


def seen(node: str, is_voter: bool = True, **said: Any) -> Seen:
    status = {"role": "looking", "set": "5e7", "is_whole": True, "position": [3, 4, 100], "epoch": 0, "problem": ""}
    return Seen(node * 2, node, is_voter, status | said, 0.5)


def away(node: str, ago: float | None = None) -> Seen:
    return Seen(node * 2, node, True, None, ago)


def test_a_master_with_a_quorum_needs_no_reason() -> None:
    master = seen("a", role="master", epoch=3, has_quorum=True)
    assert why_no_master([master, away("b"), away("c")]) == []


def test_of_two_that_call_themselves_master_the_later_epoch_leads() -> None:
    old, new = seen("a", role="master", epoch=3), seen("b", role="master", epoch=4)
    assert master_of([old, new]) is new


def test_a_master_without_a_quorum_says_who_is_missed() -> None:
    reasons = why_no_master([seen("a", role="master", epoch=3, has_quorum=False), away("b", 12.4), away("c")])
    assert reasons == [
        "a was master, and no quorum answers it any more",
        "2 of 3 voters must be connected and whole; 1 are",
        "b is not there: last contact 12 s ago",
        "c is not there",
    ]


def test_a_damaged_node_does_not_count() -> None:
    reasons = why_no_master(
        [seen("a"), seen("b", is_whole=False), seen("c", problem="FORK: db-3.log differs from the master's")]
    )
    assert reasons == [
        "2 of 3 voters must be connected and whole; 1 are",
        "b lacks files of the journal and does not count until it has them",
        "c: FORK: db-3.log differs from the master's",
    ]


def test_a_node_that_is_behind_cannot_lead() -> None:
    reasons = why_no_master([seen("a"), seen("b", position=[3, 4, 90]), away("c")])
    assert reasons[0] == "2 of 3 voters are connected and whole: an election should end soon"
    assert "b is behind a, which must lead" in reasons


def test_learners_are_not_missed() -> None:
    reasons = why_no_master([seen("a"), seen("b"), Seen("dd", "d", False, None)])
    assert reasons == ["2 of 2 voters are connected and whole: an election should end soon"]


def test_a_set_that_is_not_founded_reports_what_it_waits_for() -> None:
    waits = "waits for 3 nodes to found the set; there are 2"
    found = [seen("a", False, set=None, problem=waits), seen("b", False, set=None, problem=waits)]
    assert why_no_master(found) == ["the set is not founded yet", f"a: {waits}", f"b: {waits}"]
