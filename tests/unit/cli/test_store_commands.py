"""``tandemmq store ...`` on real directories, and its errors."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tandemmq.broker.protocols.encoded import NATIVE
from tandemmq.cli import main
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import encode_batch
from tandemmq.locker.contract import Holder, LockRequest
from tandemmq.locker.shared_file import SharedFileLocker
from tandemmq.store.damage.report import JournalLost
from tandemmq.store.membership import PROMISE_FILE
from tandemmq.store.operations import AddMessage
from tandemmq.store.records.commands import encode_add, encode_trace
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.tools.check import check
from tests.support import forked
from tests.support.broker.amqp_wire import value
from tests.support.store.store_harness import KIB, STILL, Term

pytestmark = pytest.mark.promise("bytes-are-explained")

BUSY = Destination(DestinationKind.QUEUE, "BUSY")


def store(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["store", *arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten files with one message of Q in each."""
    path = tmp_path_factory.mktemp("made") / "data"
    path.mkdir()
    with Term(str(path), settings=STILL) as term:
        owner = term.store.queue(BUSY)
        for number in range(10):
            term.add_durably(1, body=b"kept %d" % number)
            term.take(term.add_durably(30, BUSY, body=b"x" * 2000), owner)
    assert check(str(path)).problems == []
    return path


@pytest.fixture
def directory(made: Path, tmp_path: Path) -> str:
    """A copy of it for each test."""
    return str(shutil.copytree(made, tmp_path / "data"))


@pytest.fixture
def held(directory: str) -> Iterator[str]:
    """The directory, while a broker holds its lock."""
    holder = Holder("master-1", pid=os.getpid(), host="here", admin="http://127.0.0.1:8161")
    locker = SharedFileLocker(LockRequest(directory=directory, holder=holder))
    assert locker.try_acquire()
    yield directory
    locker.release()


def journal_bytes(directory: str) -> int:
    files = JournalFiles(directory)
    return sum(files.size(file) for file in files.list())


# ---- why


def test_why_says_the_whole_and_each_file(directory: str) -> None:
    result = store("why", directory)
    assert result.exit_code == 0, result.output
    assert "1 message of queue://Q.A" in result.stdout
    assert "or `tandemmq store compact` moves" in result.stdout
    assert "BEYOND its bound" in result.stdout
    assert "index/a/" in result.stdout


def test_why_of_one_file_is_the_same_however_it_is_spelled(directory: str) -> None:
    file = JournalFiles(directory).list()[0]
    output = {store("why", directory, spelled).stdout for spelled in (f"db-{file}.log", f"db-{file}", str(file))}
    (text,) = output
    assert text.startswith(f"db-{file}.log  64 KiB")
    assert "holds 1 message of queue://Q.A" in text
    assert "acknowledgements of queue://BUSY" in text or "first ID:" in text


def test_why_in_the_directory_of_a_broker_needs_no_name(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    os.rename(directory, Path(directory).parent / "tandemmq-data")
    monkeypatch.chdir(Path(directory).parent)
    file = JournalFiles("tandemmq-data").list()[0]
    assert "journal " in store("why").stdout
    assert store("why", f"db-{file}").stdout.startswith(f"db-{file}.log")


def test_why_as_json_has_the_same_figures(directory: str) -> None:
    answer = json.loads(store("why", directory, "--json").stdout)
    assert (answer["journal_bytes"], answer["live_messages"]) == (journal_bytes(directory), 10)
    assert {holder["destination"] for file in answer["files"] for holder in file["holders"]} == {"queue://Q.A"}
    one = json.loads(store("why", directory, f"db-{answer['files'][0]['file']}", "--json").stdout)
    assert [file["file"] for file in one["files"]] == [answer["files"][0]["file"]]


def test_why_beside_a_master_names_it_and_changes_nothing(held: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(held).rglob("*")}
    result = store("why", held)
    assert result.exit_code == 0, result.output
    assert "in use by master-1" in result.stderr
    assert "--admin http://127.0.0.1:8161" in result.stderr
    assert {path: path.stat().st_mtime_ns for path in Path(held).rglob("*")} == before


# ---- inspect


def test_inspect_prints_a_line_a_record_and_filters(directory: str) -> None:
    adds = store("inspect", directory, "--type", "add", "--destination", "Q.A").stdout.splitlines()
    assert len(adds) == 10
    file, _, rest = adds[3].partition(":")
    offset = rest.split()[0]
    (line,) = store("inspect", directory, "--file", file, "--from", offset, "--type", "add").stdout.splitlines()[:1]
    assert line == adds[3]


def test_inspect_as_json_can_show_bodies(directory: str) -> None:
    lines = store("inspect", directory, "--type", "add", "--destination", "queue://Q.A", "--json", "--bodies").stdout
    found = [json.loads(line) for line in lines.splitlines()]
    assert [each["message"]["body"] for each in found] == [f"kept {number}" for number in range(10)]
    assert {each["type"] for each in found} == {"add"}


def test_inspect_shows_encoded_messages_of_amqp_decoded(tmp_path: Path) -> None:
    with Term(str(tmp_path), settings=STILL) as term:
        message = term.message(BUSY, value("t\u00ebxt"))
        message.body_kind, message.properties = BodyKind.BYTES, {NATIVE: True, "a": "b"}
        add = AddMessage(message, (term.store.queue(BUSY),), encode_add(message, encode_message(message)))
        term.store.append(add)
        term.wait(lambda: add in term.durable_operations)
    (line,) = store("inspect", str(tmp_path), "--type", "add", "--json", "--bodies").stdout.splitlines()
    shown = json.loads(line)["message"]
    assert (shown["kind"], shown["body"], shown["properties"]["a"]) == ("text", "t\u00ebxt", "b")


def test_inspect_follows_one_message(directory: str) -> None:
    first = json.loads(store("inspect", directory, "--type", "add", "--json").stdout.splitlines()[0])
    store("compact", directory)
    assert "copy" in store("inspect", directory, "--id", first["id"]).stdout
    assert store("inspect", directory, "--id", "ID:nobody:1").stdout == ""


def test_inspect_sums_up_by_type(directory: str) -> None:
    counted = json.loads(store("inspect", directory, "--summary", "--json").stdout)
    assert (counted["bytes"], counted["types"]["add"]["records"]) == (journal_bytes(directory), 10)
    parts = sum(kind["bytes"] for kind in counted["types"].values())
    assert parts + counted["batch_bytes"] + counted["dead_bytes"] + counted["unused_bytes"] == counted["bytes"]
    assert "bookkeeping" in store("inspect", directory, "--summary").stdout


# ---- compact


def test_compact_shrinks_the_journal_and_keeps_all_that_lives(directory: str) -> None:
    before = journal_bytes(directory)
    result = store("compact", directory, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["disk_after"] == journal_bytes(directory) < before / 3
    assert report["messages"] >= 8
    with open(f"{directory}/lock", "r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)  # it let it go
    assert check(directory).problems == []
    assert not list(Path(directory).glob(".next-*")), "nothing is made ahead for files that are not to come"
    with Term(directory, settings=STILL) as term:
        assert term.bodies() == [b"kept %d" % number for number in range(10)]
        assert term.store.records_replayed <= 5, "the broker's own index is true to the end"
    assert check(directory).problems == []


def test_compact_has_nothing_to_gain_from_what_lives(tmp_path: Path) -> None:
    with Term(str(tmp_path), settings=STILL) as term:
        term.add_durably(26, body=b"x" * 2400)
    result = store("compact", str(tmp_path))
    assert "nothing to gain" in result.stdout, result.output
    assert check(str(tmp_path)).problems == []


def test_commands_that_write_are_refused_while_somebody_holds_the_lock(held: str) -> None:
    before = sorted(os.listdir(held))
    result = store("compact", held)
    assert result.exit_code == 1
    assert "is in use by master-1" in result.stderr
    assert "--admin" in result.stderr
    assert store("check", held).exit_code == 1
    assert sorted(os.listdir(held)) == before


@pytest.mark.parametrize("command", ["afresh", "compact", "handback", "rebuild-index", "import"])
def test_commands_that_write_are_refused_in_the_directory_of_a_set(directory: str, made: Path, command: str) -> None:
    Path(directory, PROMISE_FILE).write_bytes(b"")
    before = sorted(os.listdir(directory))
    result = store(command, *((str(made), "--data") if command == "import" else ()), directory)
    assert result.exit_code == 1
    assert f"tandemmq replication leave {directory}" in result.stderr
    assert sorted(os.listdir(directory)) == before


# ---- rebuild-index


def test_rebuild_index_takes_the_only_name_there_is(directory: str) -> None:
    result = store("rebuild-index", directory, "--json")
    assert result.exit_code == 0, result.output
    rebuilt = json.loads(result.stdout)
    assert (rebuilt["messages"], rebuilt["path"]) == (10, f"{directory}/index/a")
    assert os.path.isdir(rebuilt["aside"])
    assert check(directory).problems == []


def test_rebuild_index_asks_for_a_name_where_there_are_two(directory: str) -> None:
    Term(directory, "b", STILL).close()
    result = store("rebuild-index", directory)
    assert result.exit_code == 2
    assert "a, b" in result.stderr
    assert store("rebuild-index", directory, "--name", "b").exit_code == 0
    assert check(directory).problems == []


def test_rebuild_index_is_refused_while_the_index_is_open(directory: str) -> None:
    with Term(directory, settings=STILL):
        result = store("rebuild-index", directory, "--name", "a")
        assert result.exit_code == 1
        assert "the index of a is in use" in result.stderr
    assert check(directory).problems == []


# ---- afresh


# proves: afresh-only-without-a-journal
def test_afresh_gives_up_only_a_lost_journal(directory: str) -> None:
    (Path(directory) / "db.data").write_bytes(b"of ActiveMQ")
    before = sorted(Path(directory).rglob("*"))
    refused = store("afresh", directory)
    assert (refused.exit_code, "holds a journal: db-" in refused.stderr) == (1, True)
    assert sorted(Path(directory).rglob("*")) == sorted({*before, Path(directory, "lock")})
    for path in Path(directory).glob("db-*.log"):
        path.unlink()
    with pytest.raises(JournalLost):
        Term(directory, settings=STILL)
    moved = json.loads(store("afresh", directory, "--json").stdout)["aside"]
    assert [os.path.exists(path) for path in moved] == [True, True]
    assert "nothing to do" in store("afresh", directory).stdout
    with Term(directory, settings=STILL) as term:
        assert term.bodies() == []
        term.add_durably(1)
    assert check(directory).problems == []


# ---- check


def test_check_says_how_much_it_read_and_how_fast(directory: str) -> None:
    result = store("check", directory)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("clean: ")
    assert "/s)" in result.stdout
    assert json.loads(store("check", directory, "--json").stdout)["messages"] == 10


@pytest.mark.parametrize(("command", "doing"), [("check", b"checking"), ("rebuild-index", b"replaying")])
def test_bars_are_drawn_on_a_terminal_only(directory: str, command: str, doing: bytes) -> None:
    with _terminal() as (shown, stderr):
        arguments = [sys.executable, "-m", "tandemmq", "store", command, directory]
        result = forked.run(arguments, stderr=stderr, timeout=60)
    assert result.returncode == 0
    assert doing in bytes(shown)
    assert "\x1b" not in result.stdout, "what is printed may be piped on"
    assert store(command, directory).stderr == ""


class _terminal:
    """A separate terminal for stderr, and its content."""

    def __enter__(self) -> tuple[bytearray, int]:
        self._master, self._slave = pty.openpty()
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self._shown, self._slave

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._master, 65536)
            except OSError:
                return
            if not piece:
                return
            self._shown.extend(piece)

    def __exit__(self, *_: object) -> None:
        os.close(self._slave)
        self._reader.join()
        os.close(self._master)


# ---- errors are reported


@pytest.mark.parametrize("command", ["why", "inspect", "compact", "rebuild-index", "check"])
def test_a_directory_without_a_journal_is_a_wrong_argument(tmp_path: Path, command: str) -> None:
    result = store(command, str(tmp_path))
    assert result.exit_code == 2
    assert "holds no journal" in result.stderr
    assert os.listdir(tmp_path) == [], "and nothing is left there, not even a lock"
    missing = store(command, str(tmp_path / "nowhere"))
    assert missing.exit_code == 2
    assert "nowhere" in missing.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("why DIR db-99", 2, "db-99.log"),
        ("inspect DIR --file 99", 2, "db-99.log"),
        ("why DIR lock", 2, "'lock' is no journal file"),
        ("inspect DIR --file db-x.log", 2, "db-x.log"),
        ("inspect DIR --type nonsense", 2, "there is no nonsense"),
        ("why --admin 127.0.0.1:9", 3, "no broker answers at http://127.0.0.1:9"),
        ("compact --admin 127.0.0.1:9", 3, "no broker answers at http://127.0.0.1:9"),
        ("compact", 2, "DIRECTORY"),
        ("compact DIR --admin 127.0.0.1:9", 2, "--admin"),
        ("why DIR db-1 --admin 127.0.0.1:9", 2, "--admin"),
    ],
)
def test_a_wrong_argument_is_reported_with_its_code(directory: str, arguments: str, code: int, said: str) -> None:
    result = store(*(directory if word == "DIR" else word for word in arguments.split()))
    assert (result.exit_code, said in result.stderr) == (code, True), result.stderr


@pytest.mark.parametrize("command", ["compact", "rebuild-index"])
def test_a_journal_of_activemq_is_taken_over_by_a_broker_first(tmp_path: Path, command: str) -> None:
    batch, _ = encode_batch([encode_trace("LOADED")])
    (tmp_path / "db-1.log").write_bytes(batch)
    result = store(command, str(tmp_path))
    assert result.exit_code == 1
    assert "ActiveMQ's" in result.stderr
    assert os.listdir(tmp_path) == ["db-1.log"]


def test_damage_is_told_with_the_messages_concerned(directory: str) -> None:
    first = json.loads(
        store("inspect", directory, "--type", "add", "--json", "--destination", "Q.A").stdout.splitlines()[0]
    )
    with open(JournalFiles(directory).path(first["file"]), "r+b") as file:
        file.seek(first["offset"] + first["size"] - 20)
        file.write(b"\xff\xff")
    assert "DAMAGED" in store("inspect", directory, "--file", str(first["file"])).stdout
    told = store("why", directory)
    assert told.exit_code == 0, told.output
    assert first["id"] in told.stderr
    refused = store("compact", directory)
    assert refused.exit_code == 1
    assert "store check" in refused.stderr


# ---- several stores, and settings


def test_one_of_several_stores_is_named_and_has_the_lock_of_all(directory: str, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    one = whole / "queue#3a#2f#2fORDERS.#3e"
    whole.mkdir()
    os.rename(directory, one)
    result = store("why", str(whole))
    assert result.exit_code == 2
    assert f"holds several stores, name one of them: {one}" in result.stderr
    assert store("why", str(one)).exit_code == 0

    locker = SharedFileLocker(LockRequest(directory=str(whole), holder=Holder("master-1")))
    assert locker.try_acquire()
    refused = store("compact", str(one))
    assert refused.exit_code == 1
    assert "is in use by master-1" in refused.stderr
    assert "in use by master-1" in store("why", str(one)).stderr
    locker.release()
    assert store("compact", str(one)).exit_code == 0
    assert not (one / "lock").exists()
    assert check(str(one)).problems == []


def test_files_are_as_long_as_they_were_though_an_epochs_first_one_begins_short(tmp_path: Path) -> None:
    long = replace(STILL, journal_max_file_length=512 * KIB)
    with Term(str(tmp_path), settings=long) as term:
        term.add_durably(60, body=b"x" * 10_000)
    Term(str(tmp_path), settings=long).close()
    whole = json.loads(store("why", str(tmp_path), "--json").stdout)
    assert whole["bound_bytes"] == 2 * whole["live_bytes"] + 2 * 512 * KIB
    assert check(str(tmp_path)).problems == []


def test_compact_takes_the_settings_of_the_broker(directory: str, tmp_path: Path) -> None:
    settings = tmp_path / "tandemmq.toml"
    index = tmp_path / "indexes"
    settings.write_text(f'[store]\narchive_data_logs = true\nindex_directory = "{index}"\n')
    files = set(JournalFiles(directory).list())
    assert store("compact", directory, "--config", str(settings), "--name", "b").exit_code == 0
    assert os.listdir(index) == ["b"]
    archived = set(JournalFiles(f"{directory}/data-archive").list())
    assert archived == files - set(JournalFiles(directory).list()), "what went is kept"
    assert len(archived) >= 8
    assert check(directory, str(index)).problems == []
    settings.write_text("[store]\nno_such_key = 1\n")
    wrong = store("compact", directory, "--config", str(settings))
    assert wrong.exit_code == 2
    assert "no_such_key" in wrong.stderr
