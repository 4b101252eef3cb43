"""We and the real ActiveMQ exclude each other: its SharedFileLocker runs in a Java process of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemmq.locker.contract import LockRequest
from tandemmq.locker.shared_file import ACTIVEMQ, SharedFileLocker

LIBRARIES = Path("/usr/share/activemq/lib")

pytestmark = pytest.mark.service


@pytest.fixture
def activemq(require_service, spawn, tmp_path: Path):
    java = shutil.which("java")
    require_service(java and shutil.which("javac"), "no Java compiler: the Debian package default-jdk-headless has one")
    require_service(
        (LIBRARIES / "activemq-broker.jar").exists(), f"no ActiveMQ in {LIBRARIES}: the Debian package activemq"
    )
    program = Path(__file__).with_name("ActiveMQLock.java")
    return spawn([java, "-Xshare:auto", "-cp", f"{LIBRARIES}/*", str(program), str(tmp_path)])


@pytest.fixture
def locker(request_for: Callable[..., LockRequest]) -> Iterator[SharedFileLocker]:
    made = SharedFileLocker(request_for("a"))
    yield made
    made.release()


def test_activemq_is_kept_out_while_we_own_it(activemq, locker: SharedFileLocker) -> None:
    assert locker.try_acquire()
    locker.announce(1)
    assert activemq.say("try") == "False"
    assert locker.keep_alive()
    locker.release()
    assert activemq.say("try") == "True"


def test_we_are_kept_out_while_activemq_owns_it(activemq, locker: SharedFileLocker) -> None:
    assert activemq.say("try") == "True"
    assert not locker.try_acquire()
    holder = locker.holder()
    assert holder is not None
    assert holder.name == ACTIVEMQ
    # Our polls leave the file's time alone: ActiveMQ would take a change for a loss.
    assert activemq.say("keep") == "True"
    assert activemq.say("release") == "None"
    assert locker.try_acquire()


def test_an_activemq_that_follows_us_is_not_taken_for_us(activemq, locker: SharedFileLocker) -> None:
    assert locker.try_acquire()
    locker.announce(1)
    locker.release()
    assert activemq.say("try") == "True"
    holder = locker.holder()
    assert holder is not None
    assert (holder.name, holder.pid) == (ACTIVEMQ, activemq.pid)


def test_a_killed_activemq_is_followed(activemq, locker: SharedFileLocker) -> None:
    assert activemq.say("try") == "True"
    activemq.kill()
    assert locker.try_acquire()
