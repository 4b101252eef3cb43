"""The set of deploy/docker-compose.replicated.yml, founded for real; its master killed, a broker stopped and replaced.

How the images are made stands in docker_image.py and zookeeper_image.py. The books are closed after each story.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.acceptance.compose_set import BROKERS, ComposeSet
from tests.support.acceptance.docker_image import Image, run, until
from tests.support.acceptance.load import Books
from tests.support.acceptance.under_load import demand_kept, under_load
from tests.support.acceptance.zookeeper_image import zookeeper_image

pytestmark = [pytest.mark.service, pytest.mark.docker, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def zookeeper(broker_image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with zookeeper_image(tmp_path_factory.mktemp("zookeeper")) as name:
        yield name


@pytest.fixture
def brokers(broker_image: Image, zookeeper: str) -> Iterator[ComposeSet]:
    """A set that is founded; at the end its logs are shown, its volumes are checked, and nothing is left of it."""
    brokers = ComposeSet(broker_image.name, zookeeper)
    try:
        brokers.compose("up", "-d", "--no-build")
        brokers.until_complete()
        yield brokers
        brokers.compose("stop", *BROKERS)
        for each in BROKERS:
            assert brokers.check(broker_image.name, each)["problems"] == []
    finally:
        print(brokers.compose("logs", "--no-color", "--tail", "60"))
        brokers.down()


def test_nothing_confirmed_is_lost_when_masters_are_killed_and_stopped(brokers: ComposeSet) -> None:
    """kill -9 of the master's container, and it comes back as a follower; then docker stop of its successor."""

    def kill(books: Books) -> None:
        master = brokers.until_complete()
        run("docker", "kill", "-s", "KILL", brokers.container(master))
        brokers.until_master(but=master)
        brokers.compose("up", "-d", "--no-build", master)
        brokers.until_complete()

    def stop(books: Books) -> None:
        master = brokers.until_complete()
        brokers.compose("stop", master)
        brokers.until_master(but=master)
        brokers.compose("up", "-d", "--no-build", master)
        brokers.until_complete()

    books, outages = under_load(list(brokers.stomp.values()), kill, stop)
    print(f"without a receipt: killed {outages[0]:.3f} s, stopped {outages[1]:.3f} s")
    demand_kept(books)


def test_a_set_serves_without_zookeeper(brokers: ComposeSet) -> None:
    """ZooKeeper only names: with all three servers stopped the master goes on, and a killed one is replaced."""

    def without(books: Books) -> None:
        master = brokers.until_complete()
        brokers.compose("stop", "--timeout", "1", "zoo1", "zoo2", "zoo3")
        assert brokers.masters() == [master]
        run("docker", "kill", "-s", "KILL", brokers.container(master))
        brokers.until_master(but=master)
        brokers.compose("up", "-d", "--no-build")
        brokers.until_complete()

    books, _ = under_load(list(brokers.stomp.values()), without)
    demand_kept(books)


def test_more_than_half_away_nobody_serves(brokers: ComposeSet) -> None:
    master = brokers.until_complete()
    others = [each for each in BROKERS if each != master]
    for each in others:
        run("docker", "kill", "-s", "KILL", brokers.container(each))
    until(lambda: brokers.masters() == [], "the one that is left stops serving")
    brokers.compose("up", "-d", "--no-build")
    brokers.until_complete()
