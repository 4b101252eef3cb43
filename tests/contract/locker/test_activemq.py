"""We and the real ActiveMQ exclude each other, on one table by JDBC and by one lock file: its lockers run in a Java
process."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandemmq.locker.contract import Locker, LockRequest
from tandemmq.locker.kinds import create
from tandemmq.locker.shared_file import ACTIVEMQ, SharedFileLocker
from tests.contract.locker.conftest import OtherProcess
from tests.contract.locker.test_contract import eventually
from tests.support.prove import IS_PROOF

LIBRARIES = Path("/usr/share/activemq/lib")
DRIVERS = {
    "postgres": Path("/usr/share/java/postgresql.jar"),
    "mariadb": Path("/usr/share/java/mariadb-java-client.jar"),
}

#: Each server once and each kind once; all of them on demand.
PAIRS = [("postgres", "lease-database"), ("mariadb", "database")]
if IS_PROOF:
    PAIRS += [("postgres", "database"), ("mariadb", "lease-database")]

pytestmark = pytest.mark.service


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[Any, str]:
    """A server and a kind of lock."""
    name, kind = request.param
    return request.getfixturevalue(name), kind


@pytest.fixture
def server(pair: tuple[Any, str]) -> Any:
    return pair[0]


@pytest.fixture
def kind(pair: tuple[Any, str]) -> str:
    return pair[1]


@pytest.fixture
def url(server: Any, kind: str) -> str:
    """Return the URL of an empty database: the first broker makes the table."""
    return str(server.fresh(f"activemq-{kind}"))


@pytest.fixture(scope="session")
def program(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the compiled program."""
    compiler = shutil.which("javac")
    require_service(
        compiler and shutil.which("java"), "no Java compiler: the Debian package default-jdk-headless has one"
    )
    require_service((LIBRARIES / "activemq-jdbc-store.jar").exists(), f"no ActiveMQ in {LIBRARIES}")
    classes = tmp_path_factory.mktemp("classes")
    source = Path(__file__).with_name("ActiveMQDatabaseLock.java")
    command = [str(compiler), "-nowarn", "-cp", f"{LIBRARIES}/*", "-d", str(classes), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return classes


@pytest.fixture
def activemq(
    require_service: Callable[[object, str], None],
    spawn: Callable[[list[str]], OtherProcess],
    server: Any,
    kind: str,
    url: str,
    program: Path,
) -> OtherProcess:
    name = "mariadb" if "mysql" in url else "postgres"
    driver = DRIVERS[name]
    require_service(
        driver.exists(), f"no JDBC driver {driver}: the Debian packages lib{{postgresql-jdbc,mariadb}}-java"
    )
    scheme = {"mariadb": "mariadb", "postgres": "postgresql"}[name]
    jdbc = f"jdbc:{scheme}://127.0.0.1:{server.port}/activemq-{kind}"
    command = ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", f"{program}:{LIBRARIES}/*:{driver}"]
    process = spawn([*command, "ActiveMQDatabaseLock", kind, jdbc, *server.login])
    assert process.say("ready") == "None"  # Java takes longer to start than a lease lasts
    return process


@pytest.fixture
def locker(request_for: Callable[..., LockRequest], kind: str, url: str) -> Iterator[Locker]:
    seconds = 2.0 if kind == "lease-database" else 0.1
    request = request_for("ours", lock_acquire_sleep_interval_seconds=seconds, lock_keep_alive_period_seconds=0.2)
    made = create(kind, replace(request, options={"data_source": url, "query_timeout": 5_000}))
    yield made
    made.release()


def test_activemq_is_kept_out_while_we_own_it(activemq: OtherProcess, locker: Locker) -> None:
    assert locker.try_acquire()
    locker.announce(1)
    assert activemq.say("start") == "None"
    for _ in range(12):
        time.sleep(0.1)
        assert locker.keep_alive()
        assert activemq.say("has") == "False"
    locker.release()
    assert eventually(lambda: activemq.say("has") == "True")
    assert activemq.say("keep") == "True"
    assert not locker.try_acquire()


def test_we_are_kept_out_while_activemq_owns_it(activemq: OtherProcess, locker: Locker, kind: str) -> None:
    assert activemq.say("start") == "None"
    assert eventually(lambda: activemq.say("has") == "True")
    for _ in range(20):
        assert activemq.say("keep") == "True"
        assert not locker.try_acquire()
        time.sleep(0.05)
    holder = locker.holder()
    assert holder is not None
    assert holder.name == ("activemq" if kind == "lease-database" else "a broker of unknown name")
    activemq.say("release")
    assert eventually(locker.try_acquire)
    assert locker.keep_alive()


def test_a_killed_activemq_is_followed(activemq: OtherProcess, locker: Locker) -> None:
    assert activemq.say("start") == "None"
    assert eventually(lambda: activemq.say("has") == "True")
    assert not locker.try_acquire()
    activemq.kill()
    assert eventually(locker.try_acquire)
    holder = locker.holder()
    assert holder is not None
    assert holder.name == "ours"


# ---- by the lock file of a directory


@pytest.fixture
def file_activemq(require_service, spawn, tmp_path: Path):
    java = shutil.which("java")
    require_service(java and shutil.which("javac"), "no Java compiler: the Debian package default-jdk-headless has one")
    require_service(
        (LIBRARIES / "activemq-broker.jar").exists(), f"no ActiveMQ in {LIBRARIES}: the Debian package activemq"
    )
    program = Path(__file__).with_name("ActiveMQLock.java")
    return spawn([java, "-Xshare:auto", "-cp", f"{LIBRARIES}/*", str(program), str(tmp_path)])


@pytest.fixture
def file_locker(request_for: Callable[..., LockRequest]) -> Iterator[SharedFileLocker]:
    made = SharedFileLocker(request_for("a"))
    yield made
    made.release()


def test_activemq_with_a_file_is_kept_out_while_we_own_it(file_activemq, file_locker: SharedFileLocker) -> None:
    assert file_locker.try_acquire()
    file_locker.announce(1)
    assert file_activemq.say("try") == "False"
    assert file_locker.keep_alive()
    file_locker.release()
    assert file_activemq.say("try") == "True"


def test_we_are_kept_out_while_activemq_with_a_file_owns_it(file_activemq, file_locker: SharedFileLocker) -> None:
    assert file_activemq.say("try") == "True"
    assert not file_locker.try_acquire()
    holder = file_locker.holder()
    assert holder is not None
    assert holder.name == ACTIVEMQ
    # Our polls leave the file's time alone: ActiveMQ would take a change for a loss.
    assert file_activemq.say("keep") == "True"
    assert file_activemq.say("release") == "None"
    assert file_locker.try_acquire()


def test_an_activemq_that_follows_us_is_not_taken_for_us(file_activemq, file_locker: SharedFileLocker) -> None:
    assert file_locker.try_acquire()
    file_locker.announce(1)
    file_locker.release()
    assert file_activemq.say("try") == "True"
    holder = file_locker.holder()
    assert holder is not None
    assert (holder.name, holder.pid) == (ACTIVEMQ, file_activemq.pid)


def test_a_killed_activemq_with_a_file_is_followed(file_activemq, file_locker: SharedFileLocker) -> None:
    assert file_activemq.say("try") == "True"
    file_activemq.kill()
    assert file_locker.try_acquire()
