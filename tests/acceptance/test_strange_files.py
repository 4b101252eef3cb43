"""Real brokers whose directory somebody else wrote into: FIFOs, links and the like under the names of their files.

A broker says by name what is there and goes on, ends, or lets the lock go; it neither hangs nor writes elsewhere.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.broker.security.users import User, with_password
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess, wait_until
from tests.support.acceptance.stomp_wire import Wire, bodies, confirm
from tests.support.strange_files import STRANGE, is_untouched, put

pytestmark = pytest.mark.timeout(120)
ANSWER_SECONDS_MAX = 20.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path / "data", "a")
    yield made
    made.stop()


@pytest.fixture
def standby(tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path / "data", "b")
    yield made
    made.stop()


def serves(broker: BrokerProcess, body: str) -> None:
    """It is master, and confirms a message."""
    broker.wait_role("master")
    asyncio.run(confirm(broker.stomp, "/queue/q", body, ANSWER_SECONDS_MAX))


def holds(broker: BrokerProcess, *wanted: str) -> bool:
    return asyncio.run(bodies(broker.stomp, "/queue/q", len(wanted), ANSWER_SECONDS_MAX)) == list(wanted)


def journal(broker: BrokerProcess) -> list[Path]:
    return sorted(Path(broker.data).glob("db-*.log"), key=lambda path: int(path.name[3:-4]))


def following(path: Path) -> Path:
    return path.with_name(f"db-{int(path.name[3:-4]) + 1}.log")


def ends_well(broker: BrokerProcess) -> None:
    assert broker.terminate() == 0
    assert "Traceback" not in broker.log.read_text()
    assert is_untouched(Path(broker.data))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("db-1.log", "fifo", marks=pytest.mark.promise("strange-files-are-refused")),
        *(("db-2.log", kind) for kind in ("leaving", "directory", "socket")),
        *(("lock", kind) for kind in ("fifo", "dangling", "leaving")),
    ],
)
def test_a_start_ends_with_the_name_of_what_it_needs(broker: BrokerProcess, name: str, kind: str) -> None:
    serves(broker.start(), "kept")
    assert broker.terminate() == 0
    reason = put(kind, Path(broker.data, name))
    before = sorted(os.listdir(broker.data))
    assert broker.start().wait() == 1
    log = broker.log.read_text()
    assert (reason if name != "lock" else f"{name} cannot be locked: is {STRANGE[kind][1]}") in log
    assert "Traceback" not in log
    assert sorted(os.listdir(broker.data)) == before
    assert is_untouched(Path(broker.data))


PRIVATE = [
    ".next-a", ".listing-a", "db.data.new", "db-log.template", "index/a/db.data", "index/a/db.free",
    "index/a/index.lock", "index/a/damaged", "index/a.events", "index/a.admin-token", "index/a.admin-token.new",
]  # fmt: skip


@pytest.mark.parametrize(
    "kind", [pytest.param("fifo", marks=pytest.mark.promise("strange-files-are-refused")), "leaving"]
)
def test_it_goes_on_without_what_it_can_spare(broker: BrokerProcess, kind: str) -> None:
    """Two starts for all names, and not one for each: what is waited for is that the broker serves."""
    for number, names in enumerate((PRIVATE, ["index/a"])):
        serves(broker.start(), str(number))
        broker.kill()
        for name in names:
            put(kind, Path(broker.data, name))
    broker.start().wait_role("master")
    broker.wait_log(f"index directory {broker.data}/index/a is stepped over")
    assert holds(broker, "0", "1")
    ends_well(broker)
    assert check(broker.data).problems == []


@pytest.mark.parametrize("kind", ["fifo", "dangling", "directory"])
def test_a_pair_waits_until_the_name_of_the_next_file_is_free(
    broker: BrokerProcess, standby: BrokerProcess, kind: str
) -> None:
    serves(broker.start(), "before")
    standby.start().wait_role("standby")
    path = following(journal(broker)[-1])
    reason = put(kind, path)
    if kind != "dangling":  # which is seen when the next file is to be made
        broker.wait_log(f"{path.name} exists")
    standby.wait_log(reason)
    files = len(journal(broker))
    path.unlink() if not path.is_dir() or path.is_symlink() else path.rmdir()
    assert len(journal(broker)) <= files, "nobody put up a fence meanwhile"

    def master() -> BrokerProcess | None:
        return next((each for each in (broker, standby) if (each.status() or {}).get("role") == "master"), None)

    found = wait_until(master, "one is master again", 60.0)
    serves(found, "after")
    assert holds(found, "before", "after")
    for each in (broker, standby):
        ends_well(each)


def test_a_master_whose_file_became_something_else_lets_go(broker: BrokerProcess) -> None:
    serves(broker.start(), "before")
    path = journal(broker)[-1]
    kept = path.with_name("kept")
    path.rename(kept)
    reason = put("fifo", path)
    broker.wait_log(reason)
    path.unlink()
    kept.rename(path)
    serves(broker, "after")
    assert holds(broker, "before", "after")
    ends_well(broker)


@pytest.mark.parametrize(
    "kind", [pytest.param("fifo", marks=pytest.mark.promise("users-are-reloaded")), "directory", "endless"]
)
def test_a_file_of_users_that_becomes_something_else_changes_nothing(broker: BrokerProcess, kind: str) -> None:
    users = Path(broker.data).parent / "users"
    users.write_text(f"{with_password(User('ann', None, frozenset(), None), 'secret')}\n")
    broker.options += ("--set", f"security.users_file={users}")
    broker.start().wait_role("master")
    put(kind, users)
    broker.wait_log(f"{users}: cannot be read: is {'a device' if kind == 'endless' else STRANGE[kind][1]}")

    async def logs_in() -> None:
        (await Wire.open(broker.stomp, login="ann", passcode="secret")).close()

    asyncio.run(logs_in())
    ends_well(broker)


def test_a_hole_of_a_terabyte_is_passed_over(broker: BrokerProcess) -> None:
    serves(broker.start(), "before")
    broker.kill()
    os.truncate(journal(broker)[-1], 1 << 40)
    serves(broker.start(), "after")
    assert holds(broker, "before", "after")
    ends_well(broker)
    assert check(broker.data).problems == []
