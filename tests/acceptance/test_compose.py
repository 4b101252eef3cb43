"""The pair of docker-compose.yml and the set of deploy/docker-compose.replicated.yml, started with Docker.

The tests kill, pause and stop masters, and disconnect them from the network. docker_image.py and zookeeper_image.py
make the images. Most tests run under load, and then check that no confirmed message is missing.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator

import pytest

from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.compose_pair import Pair
from tests.support.acceptance.compose_set import BROKERS, ComposeSet
from tests.support.acceptance.docker_image import TREE, Image, base_image, run, size_of
from tests.support.acceptance.load import Books
from tests.support.acceptance.under_load import demand_kept, under_load, wait_for_receipts
from tests.support.acceptance.zookeeper_image import zookeeper_image
from tests.support.prove import rounds
from tests.support.services import postgres

pytestmark = [pytest.mark.service, pytest.mark.docker, pytest.mark.timeout(900)]


#: Maximum sizes of the image and of its base. python:3.11-slim has about 125 MB.
IMAGE_BYTES_MAX = 250_000_000
BASE_BYTES_MAX = 130_000_000
LEASE_FILE = TREE / "deploy" / "docker-compose.lease.yml"
#: Number of rounds of kill, stop and restart; 0: one round without the restart.
ROUNDS = rounds(0, 5)


@pytest.fixture
def image(broker_image: Image) -> str:
    return broker_image.name


@pytest.fixture
def pair(image: str) -> Iterator[Pair]:
    yield from started(Pair(image), image)


def started(pair: Pair, image: str) -> Iterator[Pair]:
    """Start a pair, and yield it. At the end, check the store, print the logs, and remove the pair."""
    try:
        pair.compose("up", "-d", "--no-build")
        pair.until_settled()
        yield pair
        assert pair.check(image)["problems"] == []
    finally:
        print(pair.compose("logs", "--no-color", "--tail", "60"))
        pair.down()


def test_the_image_is_small_and_has_all_that_a_broker_needs(broker_image: Image, image: str) -> None:
    """The base has the size of python:3.11-slim. The image has the packages of two extras."""
    base, whole = size_of(base_image()), size_of(image)
    print(f"{whole / 1e6:.0f} MB, of which base {base / 1e6:.0f} MB; built in {broker_image.build_seconds:.1f} s")
    assert base <= BASE_BYTES_MAX
    assert whole <= IMAGE_BYTES_MAX
    assert run("docker", "run", "--rm", image, "--version").startswith("tandemmq, version ")
    python = ("docker", "run", "--rm", "--entrypoint", "python3", image)
    run(*python, "-c", "import kazoo, psycopg, uvloop, tandemmq.cli.doctor")
    program = "import importlib.util as u; print([n for n in ('pip', 'setuptools') if u.find_spec(n)])"
    assert run(*python, "-c", program).strip() == "[]"


def test_killed_and_stopped_in_turn_nothing_is_lost_under_load(pair: Pair) -> None:
    """The master is killed (docker kill) and started again. Then its successor is stopped (docker stop). The stop is
    a planned handover."""
    first, second = pair.until_settled()
    wait_until(
        lambda: pair.inspect(second, "{{.State.Health.Status}}") == "healthy", "the standby's container is healthy"
    )
    assert pair.page(second, "health?ready")[0] == 503
    with socket.create_connection(("127.0.0.1", pair.openwire[first]), 10) as jms:
        assert b"ActiveMQ" in jms.recv(300)  # a WireFormatInfo

    def kill(books: Books) -> None:
        run("docker", "kill", "-s", "KILL", pair.container(first))
        pair.until_role(second, "master")
        pair.compose("up", "-d", "--no-build", first)
        pair.until_role(first, "standby")

    def stop(books: Books) -> None:
        container = pair.container(second)
        run("docker", "stop", container)
        pair.until_role(first, "master")
        # With "restart: unless-stopped", Docker does not restart a container that was stopped with docker stop.
        state = json.loads(run("docker", "inspect", "--format", "{{json .State}}", container))
        assert (state["ExitCode"], state["Running"]) == (0, False)

    def start_again(books: Books) -> None:
        pair.compose("up", "-d", "--no-build", second)
        pair.until_role(second, "standby")

    acts = (kill, stop, start_again) * ROUNDS or (kill, stop)
    books, outages = under_load(list(pair.stomp.values()), *acts)
    print("without a receipt:", [f"{act.__name__}: {out:.3f} s" for act, out in zip(acts, outages, strict=False)])
    demand_kept(books)


class ReachablePostgres(postgres.Postgres):
    """PostgreSQL that containers can reach: it listens on all addresses, and always requires the password."""

    def __init__(self) -> None:
        super().__init__()
        with (self.directory / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 0.0.0.0/0 md5\n")  # md5 also accepts a password stored as SCRAM

    def command(self) -> list[str]:
        return [word.replace("listen_addresses=127.0.0.1", "listen_addresses=*") for word in super().command()]


@pytest.fixture
def database(require_service: Callable[[object, str], None]) -> Iterator[str]:
    """SQLAlchemy URL of a PostgreSQL on this machine. A container needs another host in it than 127.0.0.1."""
    require_service(postgres.programs(), "no PostgreSQL: the Debian package postgresql has it")
    server = ReachablePostgres()
    server.start()
    try:
        yield server.fresh("lease")
    finally:
        server.remove()


@pytest.fixture
def leased(image: str, database: str) -> Iterator[Pair]:
    """The pair of deploy/docker-compose.lease.yml. The database runs on this machine, the gateway of its network."""
    # The address of docker0 belongs to this machine, and remains when the network of the containers is removed.
    gateway = json.loads(run("ip", "-json", "-4", "addr", "show", "docker0"))[0]["addr_info"][0]["local"]
    url = database.replace("@127.0.0.1:", f"@{gateway}:")
    yield from started(Pair(image, [LEASE_FILE], {"TANDEMMQ_DATA_SOURCE": url}), image)


@pytest.mark.proof_only
def test_a_master_with_a_lease_that_is_paused_or_cut_off_is_replaced_and_stands_by_afterwards(leased: Pair) -> None:
    """First the master is paused. Then its successor is disconnected from clients and the database, but not from the
    volume."""
    first, second = leased.until_settled()
    epoch = leased.page(first, "status")[1]["epoch"]
    network = f"{leased.project}_default"

    def pause(books: Books) -> None:
        run("docker", "pause", leased.container(first))
        leased.until_role(second, "master")
        wait_for_receipts(books)
        run("docker", "unpause", leased.container(first))
        leased.until_role(first, "standby")

    def cut(books: Books) -> None:
        container = leased.container(second)
        run("docker", "network", "disconnect", network, container)
        leased.until_role(first, "master")
        wait_for_receipts(books)
        run("docker", "network", "connect", "--alias", second, network, container)
        leased.until_role(second, "standby")

    books, outages = under_load(list(leased.stomp.values()), pause, cut)
    print(f"without a receipt: {outages[0]:.3f} s when paused, {outages[1]:.3f} s when cut off")
    demand_kept(books)
    assert {leased.inspect(each, "{{.RestartCount}}") for each in (first, second)} == {"0"}, "they go on as they were"
    assert leased.page(first, "status")[1]["epoch"] > epoch + 1


def test_the_image_runs_as_a_plain_user_and_knows_its_command(image: str) -> None:
    assert run("docker", "run", "--rm", "--entrypoint", "id", image, "-un").strip() == "tandemmq"
    assert "Usage" in run("docker", "run", "--rm", image, "--help")


def test_two_containers_examine_their_volume_together(image: str) -> None:
    """One container listens, the other one connects, and both mount the same volume. The writable layer of a container
    is not a volume."""
    name = f"tandemmq-test-doctor-{os.getpid()}"
    mounted = ("-v", f"{name}:/var/lib/tandemmq")
    doctor = ("doctor", "storage", "/var/lib/tandemmq")
    run("docker", "volume", "create", name)
    try:
        run("docker", "run", "-d", "--name", name, *mounted, image, *doctor, "--listen", "0.0.0.0:7777")
        wait_until(lambda: "listening" in run("docker", "logs", name), "the other one listens")
        address = run("docker", "inspect", "--format", "{{.NetworkSettings.IPAddress}}", name).strip()
        answer = run("docker", "run", "--rm", *mounted, image, *doctor, "--peer", f"{address}:7777", "--json")
        report = json.loads(answer)
        assert address in report["second"]
        assert report["verdict"] in ("ok", "warn")
        assert run("docker", "wait", name).strip() == "0"
        left = run("docker", "run", "--rm", *mounted, "--entrypoint", "ls", image, "-A", "/var/lib/tandemmq")
        assert left.strip() == ""
    finally:
        run("docker", "rm", "--force", name)
        run("docker", "volume", "rm", name)
    answer = run("docker", "run", "--rm", image, "doctor", "storage", "/tmp", "--json")
    assert "mount: overlay" in {check["name"] for check in json.loads(answer)["checks"]}


@pytest.fixture(scope="module")
def zookeeper(broker_image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with zookeeper_image(tmp_path_factory.mktemp("zookeeper")) as name:
        yield name


@pytest.fixture
def members(broker_image: Image, zookeeper: str) -> Iterator[ComposeSet]:
    """Start a set, and yield it when it is founded. Then check its volumes, print the logs, and remove the set."""
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


def test_nothing_confirmed_is_lost_when_masters_are_killed_and_stopped(members: ComposeSet) -> None:
    """The container of the master is killed (kill -9) and started again as a follower. Then its successor is stopped
    (docker stop)."""

    def kill(books: Books) -> None:
        master = members.until_complete()
        run("docker", "kill", "-s", "KILL", members.container(master))
        members.until_master(but=master)
        members.compose("up", "-d", "--no-build", master)
        members.until_complete()

    def stop(books: Books) -> None:
        master = members.until_complete()
        members.compose("stop", master)
        members.until_master(but=master)
        members.compose("up", "-d", "--no-build", master)
        members.until_complete()

    books, outages = under_load(list(members.stomp.values()), kill, stop)
    print(f"without a receipt: killed {outages[0]:.3f} s, stopped {outages[1]:.3f} s")
    demand_kept(books)


def test_a_set_serves_without_zookeeper(members: ComposeSet) -> None:
    """ZooKeeper only lists the members. While all its servers are stopped, the master continues, and a killed master is
    replaced."""

    def without(books: Books) -> None:
        master = members.until_complete()
        members.compose("stop", "--timeout", "1", "zoo1", "zoo2", "zoo3")
        assert members.masters() == [master]
        run("docker", "kill", "-s", "KILL", members.container(master))
        members.until_master(but=master)
        members.compose("up", "-d", "--no-build")
        members.until_complete()

    books, _ = under_load(list(members.stomp.values()), without)
    demand_kept(books)


def test_more_than_half_away_nobody_serves(members: ComposeSet) -> None:
    master = members.until_complete()
    others = [each for each in BROKERS if each != master]
    for each in others:
        run("docker", "kill", "-s", "KILL", members.container(each))
    wait_until(lambda: members.masters() == [], "the one that is left stops serving")
    members.compose("up", "-d", "--no-build")
    members.until_complete()
