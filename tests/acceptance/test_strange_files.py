"""Real brokers over directories that are damaged, strange, or open to other users.

A broker names the cause, and continues, ends or releases the lock. It does not hang, and does not write elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import stomp
from click.testing import CliRunner

from tandemmq.broker.security.users import User, with_password
from tandemmq.cli import main
from tandemmq.journal.format import encode_batch
from tandemmq.store.records.commands import encode_trace
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess, serving, wait_master, wait_until
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
    """Wait until the broker is master and confirms a message."""
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
    broker.wait_log(f"index directory {broker.data}/index/a cannot be used")
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

    found = wait_master((broker, standby))
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


def journal_file(path: Path, *batches: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    content = b""
    for text in batches:
        batch, _ = encode_batch([encode_trace(text.decode())])
        content = content[: -5 if content else None] + bytes(batch)
    path.write_bytes(content)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # Root may write anywhere but where nothing can be written.
        broker = BrokerProcess("/proc/self/tandemmq", "a")
        broker.log = tmp_path / "log"
    else:
        (tmp_path / "data").mkdir(mode=0o500)
        broker = BrokerProcess(tmp_path / "data", "a")
    assert broker.start().wait() == 1
    assert broker.data in broker.log.read_text()
    assert "Traceback" not in broker.log.read_text()


@pytest.mark.promise("foreign-files-are-kept")
def test_a_foreign_file_in_the_place_of_a_journal_file_is_refused_and_kept(broker: BrokerProcess) -> None:
    path = Path(broker.data) / "db-1.log"
    path.parent.mkdir()
    content = b"this is somebody's diary\n" * 1000
    path.write_bytes(content)
    assert broker.start().wait() == 1
    assert "db-1.log is corrupt from offset 0" in broker.log.read_text()
    assert "Traceback" not in broker.log.read_text()
    assert path.read_bytes() == content


@pytest.mark.promise("damage-is-named")
def test_damage_in_the_middle_is_refused_with_its_place(broker: BrokerProcess) -> None:
    path = Path(broker.data) / "db-1.log"
    journal_file(path, b"one", b"two", b"three")
    content = bytearray(path.read_bytes())
    content[content.index(b"two")] ^= 1
    path.write_bytes(content)
    assert broker.start().wait() == 1
    assert "db-1.log is corrupt from offset" in broker.log.read_text()
    assert path.read_bytes() == bytes(content)


@pytest.mark.promise("damage-is-named")
def test_a_truncated_file_is_a_torn_tail(broker: BrokerProcess) -> None:
    path = Path(broker.data) / "db-1.log"
    journal_file(path, b"one", b"two", b"three")
    path.write_bytes(path.read_bytes()[:-20])
    broker.start().wait_role("master")
    assert broker.terminate() == 0


@pytest.mark.promise("index-is-rebuilt")
def test_a_damaged_index_is_set_aside_and_built_anew(broker: BrokerProcess) -> None:
    broker.start().wait_role("master")
    connection = stomp.Connection12([("127.0.0.1", broker.stomp)])
    connection.connect(wait=True)
    for number in range(3):
        connection.send("/queue/q", str(number), persistent="true", receipt=str(number))
    wait_until(lambda: count(broker) == 3, "three messages are stored")
    assert broker.terminate() == 0
    data = Path(broker.data) / "index" / "a" / "db.data"
    data.write_bytes(b"\xff" * data.stat().st_size)
    broker.start().wait_role("master")
    assert count(broker) == 3
    assert any(".aside-" in name for name in os.listdir(Path(broker.data) / "index"))
    assert broker.terminate() == 0


def count(broker: BrokerProcess) -> int:
    status = broker.status()
    assert status is not None
    return int(status["counts"]["messages"])


UMASK = 0o022
WORKS = f"import os, sys; os.umask({UMASK}); os.execv(sys.argv[1], sys.argv[1:])"


def modes(directory: Path) -> dict[str, int]:
    found = [directory, *directory.rglob("*")]
    return {str(path.relative_to(directory)): stat.S_IMODE(path.stat().st_mode) for path in found}


def tandemmq(*arguments: str) -> None:
    """The command, in this process: an interpreter for each would take most of the time."""
    before = os.umask(UMASK)
    try:
        done = CliRunner().invoke(main, arguments)
    finally:
        os.umask(before)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("asked", [None, pytest.param("0660", marks=pytest.mark.promise("files-are-private"))])
def test_files_have_the_mode_that_was_asked_for(tmp_path: Path, asked: str | None) -> None:
    options = () if asked is None else ("--set", f"store.file_mode={asked}")
    data = tmp_path / "data"
    broker = BrokerProcess(data, "a", *options)
    broker.runs_under = (sys.executable, "-c", WORKS)
    with serving(broker):
        assert broker.wait_role("master")["warnings"] == []
        tandemmq("send", "q", "hello", "--url", broker.url)
        broker.kill()
        assert broker.start().wait_role("master")["warnings"] == []
    tandemmq("store", "compact", str(data))
    tandemmq("store", "rebuild-index", str(data), "--name", "a")
    mode = int(asked or "0600", 8)
    seen = modes(data)
    assert {"lock", "index", "index/a"} <= seen.keys()
    assert any(name.startswith("db-") for name in seen)
    assert seen.pop("index/a.admin-token") == 0o600, "a group is let in by hand"
    wrong = {
        name: oct(found)
        for name, found in seen.items()
        if found != ((mode | mode >> 2 & 0o111) if (data / name).is_dir() else mode)
    }
    assert wrong == {}
    tandemmq("store", "export", str(data), "--to", str(tmp_path / "copy"))
    assert not [name for name, found in modes(tmp_path / "copy").items() if found & 0o077]


def test_what_others_may_read_is_told(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    (data / "notes").touch()
    (data / "notes").chmod(0o644)
    with serving(BrokerProcess(data, "a")) as (broker,):
        (warning,) = broker.wait_role("master")["warnings"]
        assert warning.startswith(f"{data} and 1 more: open to more users than store.file_mode 0600 allows")
        os.system(warning.rpartition("to repair it: ")[2])
        broker.terminate()
        assert broker.start().wait_role("master")["warnings"] == []


# ---- files that no process reads


def test_the_master_of_a_pair_finds_damage_in_the_background(tmp_path: Path) -> None:
    """The volume has one copy: it is reported, and the broker goes on."""
    options = ("--set", "store.journal_max_file_length=64kb", "--set", "store.scrub_interval=100ms")
    with serving(*(BrokerProcess(tmp_path / "data", name, *options) for name in "ab")) as pair:
        master = wait_master(pair)
        standby = next(each for each in pair if each is not master)
        for number in range(20):
            asyncio.run(confirm(master.stomp, "/queue/q", f"{number}".ljust(8_000, "x"), ANSWER_SECONDS_MAX))
        wait_until(lambda: counted(master, "scrub_passes_total") > 1, "it reads again and again")
        first = journal(master)[0]
        good = first.read_bytes()
        with open(first, "r+b") as rotten:
            rotten.seek(30_000)
            rotten.write(b"rotten")
        wait_until(lambda: counted(master, "damaged_journal_files") == 1, "it is found")
        assert any("1 sealed journal files are damaged" in each for each in (master.status() or {})["warnings"])
        assert counted(standby, "scrub_bytes_total") == 0, "the volume is read once"
        first.write_bytes(good)
        wait_until(lambda: counted(master, "damaged_journal_files") == 0, "it is well again")


def counted(broker: BrokerProcess, name: str) -> int:
    return int((broker.status() or {}).get("counts", {}).get(name, -1))
