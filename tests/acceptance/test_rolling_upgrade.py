"""Upgrade of a pair from an earlier version, one broker after the other, under load and without a loss; and back.

The earlier version is a wheel that is built from its commit. Both versions run as if they were installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.acceptance.broker_process import ROOT, BrokerProcess, serving
from tests.support.acceptance.load import Books
from tests.support.acceptance.set_of_brokers import SetOfBrokers
from tests.support.acceptance.under_load import demand_kept, under_load
from tests.support.services.zookeeper import zookeeper

#: The last commit before standbys were warm, the lock could be a lease, and a master could hand over by command.
EARLIER = "22226704481c"
#: The last commit whose members began a link with HELLO.
NO_INTRODUCTION = "b392537"
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def installed(tree: Path, place: Path) -> Path:
    """The wheel of a tree, unpacked as pip does it; the dependencies are those of this environment."""
    for arguments in (
        ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place / "wheel"), str(tree)),
        ("install", "--no-deps", "--target", str(place / "site"), "--find-links", str(place / "wheel"), "tandemmq"),
    ):
        command, environment = [*PIP, *arguments], {**os.environ, "TANDEMMQ_COMPILE": "0"}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
    return place / "site"


def archived(commit: str) -> bytes:
    """A tar of that commit."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=False)
    if archive.returncode != 0:
        pytest.skip(f"commit {commit} is not here: this is no clone, or a shallow one")
    return archive.stdout


@pytest.fixture(scope="module")
def versions(
    tmp_path_factory: pytest.TempPathFactory, require_service: Callable[[object, str], None]
) -> dict[str, Path]:
    """Return the directories in which the earlier version and this one are installed."""
    archive = archived(EARLIER)
    place = tmp_path_factory.mktemp("versions")
    for name in ("old-tree", "new-tree"):
        (place / name).mkdir()
    subprocess.run(["tar", "-x", "-C", str(place / "old-tree")], input=archive, check=True)
    return {"old": installed(place / "old-tree", place / "old"), "new": installed(ROOT, place / "new")}


class Installed(BrokerProcess):
    """A broker of an installed version; which one may change while it is stopped."""

    def __init__(self, data: Path, name: str, site: Path) -> None:
        super().__init__(data, name)
        self.use(site)

    def use(self, site: Path) -> None:
        self.environment = {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}


@pytest.fixture
def pair(tmp_path: Path, versions: dict[str, Path]) -> Iterator[tuple[Installed, ...]]:
    with serving(*(Installed(tmp_path / "data", name, versions["old"]) for name in "ab")) as pair:
        yield pair


def handover(broker: Installed, site: Path) -> None:
    """Hand over as an operator does, with the command of the new version."""
    result = subprocess.run(
        [sys.executable, "-m", "tandemmq", "handover", "--admin", f"http://127.0.0.1:{broker.admin}"],
        env={**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.promise("upgrade-loses-nothing")
@pytest.mark.thorough
def test_a_pair_is_upgraded_broker_by_broker_and_back_and_nothing_is_lost(
    pair: tuple[Installed, Installed], versions: dict[str, Path]
) -> None:
    a, b = pair
    assert "phase" not in (a.status() or {}), "that is no earlier version"

    def upgrade_the_standby(books: Books) -> None:
        assert b.terminate() == 0
        b.use(versions["new"])
        b.start()
        assert "phase" in b.wait_role("standby")

    def upgrade_the_master(books: Books) -> None:
        """The earlier version hands over when it is stopped."""
        assert a.terminate() == 0
        b.wait_role("master")
        a.use(versions["new"])
        a.start()
        a.wait_role("standby")

    def hand_back(books: Books) -> None:
        handover(b, versions["new"])
        a.wait_role("master")
        b.wait_role("standby")

    def go_back(books: Books) -> None:
        """The earlier version reads the journal that the new version wrote as master."""
        for broker, other in ((b, a), (a, b)):
            assert broker.terminate() == 0
            other.wait_role("master")
            broker.use(versions["old"])
            broker.start()
            assert "phase" not in broker.wait_role("standby")

    books, outages = under_load([a.stomp, b.stomp], upgrade_the_standby, upgrade_the_master, hand_back, go_back)
    print("without a receipt:", ", ".join(f"{seconds:.3f} s" for seconds in outages))
    demand_kept(books)


@pytest.mark.promise("upgrade-loses-nothing")
@pytest.mark.thorough
def test_a_set_is_upgraded_node_by_node_and_back_and_nothing_is_lost(
    tmp_path: Path, require_service: Callable[[object, str], None]
) -> None:
    """From members that begin a link with HELLO to those that prove the token before. Both versions elect together."""
    old = tmp_path / "old"
    old.mkdir()
    subprocess.run(["tar", "-x", "-C", str(old)], input=archived(NO_INTRODUCTION), check=True)
    assert not (old / "broker" / "replication" / "introduction.py").exists()
    site = installed(old, tmp_path / "installed")
    former = {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    with zookeeper(require_service) as server:
        whole = SetOfBrokers(tmp_path / "set", zookeepers=[server])
        for member in whole.members:
            member.environment = former
        try:
            whole.start()

            def move(environment: dict[str, str]) -> Callable[[Books], None]:
                def restart(books: Books) -> None:
                    master, followers = whole.settled()
                    for each in (*followers, master):
                        assert each.terminate() == 0
                        each.environment = environment
                        each.start()
                        whole.settled()

                return restart

            books, _ = under_load([member.stomp for member in whole.members], move({}), move(former))
            demand_kept(books)
            assert not whole.problems()
        finally:
            whole.stop()
