"""Operators' commands for a set: show it, hand over, change its voters, take a directory out of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.broker.replication.peers import read_known
from tests.support.acceptance.broker_process import BrokerProcess, tandemmq, wait_until
from tests.support.acceptance.set_of_brokers import MemberProcess, SetOfBrokers, running_set

pytestmark = [pytest.mark.service, pytest.mark.timeout(300), pytest.mark.promise("set-is-managed")]


@pytest.fixture
def three(require_service: Callable[[object, str], None], tmp_path: Path) -> Iterator[SetOfBrokers]:
    with running_set(tmp_path, require_service) as whole:
        yield whole


def status_of(member: MemberProcess) -> dict[str, Any]:
    """Return the output of `tandemmq replication status` there; empty: no answer."""
    done = tandemmq("replication", "status", "--admin", member.admin_url, "--json")
    found: dict[str, Any] = json.loads(done.stdout or "{}")
    return found


def send(whole: SetOfBrokers, *texts: str) -> None:
    urls = ",".join(f"stomp://{host}:{port}" for host, port in whole.addresses)
    for text in texts:
        done = tandemmq("send", "orders", text, "--url", f"failover:({urls})")
        assert done.returncode == 0, done.stderr


def test_status_shows_all_and_why_nobody_is_master(three: SetOfBrokers) -> None:
    master, others = three.quiet()

    def shown_without_trouble() -> str:
        """Return the output; empty until that node has had messages of all nodes since the set was founded."""
        done = tandemmq("replication", "status", "--admin", others[0].admin_url)
        return done.stdout if done.returncode == 0 else ""

    first = wait_until(shown_without_trouble, "nothing is wrong")
    assert f"master: {master.node}" in first
    for node in three.members:
        assert node.admin_url in first
    for node in others:
        node.stop()
    away = [f"{node.node} is not there" for node in others]
    wait_until(lambda: all(each in str(status_of(master).get("why_no_master")) for each in away), "they are missed")
    shown = tandemmq("replication", "status", "--admin", master.admin_url)
    assert shown.returncode == 1
    for each in away:
        assert each in shown.stdout
    assert "2 of 3 voters must be connected and whole" in shown.stdout
    master.stop()
    shown = tandemmq("replication", "status", "--admin", master.admin_url)
    assert shown.returncode == 3


def test_a_handover_goes_to_the_node_that_was_named(three: SetOfBrokers) -> None:
    master, others = three.quiet()
    refused = tandemmq("handover", "--admin", master.admin_url, "--to", "n9")
    assert refused.returncode == 1
    assert "n9 is not a follower" in refused.stderr
    wanted = others[1]

    def handed_over() -> str:
        """Return the output; empty until the master has had a message of that node since the set was founded."""
        done = tandemmq("handover", "--admin", master.admin_url, "--to", wanted.node, "--json")
        return done.stdout if done.returncode == 0 else ""

    assert json.loads(wait_until(handed_over, f"{wanted.node} can be elected"))["successor"] == wanted.node
    asked = tandemmq("handover", "--admin", master.admin_url, "--to", wanted.node)
    assert asked.returncode == 3
    assert wanted.admin_url in asked.stderr
    explained = tandemmq(
        "failover", "explain", *(word for node in three.members for word in ("--admin", node.admin_url))
    )
    assert f"{master.node} handed over" in explained.stdout
    assert "elected" in explained.stdout


def test_a_disk_is_replaced(three: SetOfBrokers) -> None:
    master, (lost, asked) = three.quiet()
    send(three, "kept")
    lost.stop()
    shutil.rmtree(lost.data)
    lost.start()

    def has_learner() -> bool:
        members = status_of(master).get("members") or []
        return any(each["node"] == lost.node and not each["is_voter"] and each["lag_bytes"] == 0 for each in members)

    wait_until(has_learner, "the empty node follows as a learner")
    refused = tandemmq("replication", "add", "n9", "--admin", asked.admin_url)
    assert refused.returncode == 1
    assert "n9 is not a learner that follows" in refused.stderr
    removed = tandemmq("replication", "remove", lost.node, "--admin", asked.admin_url)
    assert removed.returncode == 0, removed.stderr
    assert removed.stdout.startswith("2 voters")
    added = tandemmq("replication", "add", lost.node, "--admin", lost.admin_url, "--json")
    assert added.returncode == 0, added.stderr
    assert sorted(json.loads(added.stdout)["voters"].values()) == ["n0", "n1", "n2"]
    assert tandemmq("replication", "remove", master.node, "--admin", asked.admin_url).returncode == 1


def test_a_directory_leaves_its_set_and_serves_alone(three: SetOfBrokers) -> None:
    master, others = three.quiet()
    send(three, "one", "two")
    three.quiet()
    refused = tandemmq("replication", "leave", master.data)
    assert refused.returncode == 1
    assert "a process runs there" in refused.stderr or "stop it first" in refused.stderr
    for node in others:
        node.stop()
    master.stop()
    alone = BrokerProcess(master.data, "orders")
    alone.start()
    assert alone.wait() == 1
    assert f"tandemmq replication leave {master.data}" in alone.log.read_text()
    left = tandemmq("replication", "leave", master.data)
    assert left.returncode == 0, left.stderr
    assert (Path(master.data) / "replication.promise.left").exists()
    assert tandemmq("replication", "leave", master.data).returncode == 1
    alone.start()
    try:
        alone.wait_role("master")
        got = tandemmq("receive", "orders", "--url", alone.url, "--count", "2")
        assert got.returncode == 0, got.stderr
        assert "one" in got.stdout
        assert "two" in got.stdout
    finally:
        alone.stop()


def test_what_is_left_of_a_set_goes_on_when_it_is_told_to(three: SetOfBrokers) -> None:
    master, (first, second) = three.quiet()
    send(three, "before")
    three.quiet()

    def knows_the_others() -> bool:
        members, _ = read_known(first.data) or ({}, None)
        return sum(said["node"] != first.node and said["is_voter"] for said in members.values()) == 2

    wait_until(knows_the_others, "it heard of both since they are voters")
    first.stop()
    send(three, "after")
    master.stop()
    second.stop()
    looked = tandemmq("replication", "forget", first.data)
    assert looked.returncode == 1
    assert "to accept this, use --yes" in looked.stderr
    assert (Path(first.data) / "replication.promise").exists()
    of_others = [line for line in looked.stdout.splitlines() if "had" in line]
    assert any(master.node in line for line in of_others), looked.stdout
    done = tandemmq("replication", "forget", first.data, "--yes")
    assert done.returncode == 0, done.stderr
    assert "known to be final" in done.stdout or "was final" in done.stdout
    alone = BrokerProcess(first.data, "orders").start()
    try:
        alone.wait_role("master")
        got = tandemmq("receive", "orders", "--url", alone.url, "--count", "1", "--timeout", "5")
        assert "before" in got.stdout
    finally:
        alone.stop()
