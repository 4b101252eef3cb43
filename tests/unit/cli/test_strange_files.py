"""``tandemmq store ...`` with another object under the name of a file: the error names it, and no other file is
touched."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tandemmq.cli import main
from tests.support.store.store_harness import STILL, Term
from tests.support.strange_files import STRANGE, is_untouched, put

# One that waits for a FIFO would wait for ever.
pytestmark = [pytest.mark.timeout(60), pytest.mark.promise("strange-files-are-refused")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose journal has several files."""
    path = tmp_path_factory.mktemp("made") / "data"
    path.mkdir()
    with Term(str(path), settings=STILL) as term:
        for _ in range(5):
            term.add_durably(20, body=b"x" * 2000)
    return path


@pytest.fixture
def directory(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "data"))


def tandemmq(*arguments: object) -> Result:
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def middle(directory: Path) -> Path:
    """A journal file that is neither the first nor the last."""
    files = sorted(directory.glob("db-*.log"), key=lambda path: int(path.name[3:-4]))
    return files[len(files) // 2]


def shown(directory: Path) -> set[int]:
    """The files of which records are shown."""
    done = tandemmq("store", "inspect", directory, "--json")
    return {json.loads(line)["file"] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("kind", STRANGE)
def test_inspect_steps_over_it_and_says_so(directory: Path, kind: str) -> None:
    before = shown(directory)
    path = middle(directory)
    reason = put(kind, path)
    done = tandemmq("store", "inspect", directory, "--json")
    assert (done.exit_code, done.stderr.strip()) == (0, f"{reason}: stepped over")
    assert shown(directory) == before - {int(path.name[3:-4])}
    assert is_untouched(directory)


@pytest.mark.parametrize("kind", STRANGE)
def test_the_checker_tells_of_it(directory: Path, kind: str) -> None:
    reason = put(kind, middle(directory))
    done = tandemmq("store", "check", directory, "--json")
    assert (done.exit_code, json.loads(done.stdout)["problems"]) == (1, [reason])
    assert is_untouched(directory)


@pytest.mark.parametrize("kind", ["fifo", "leaving"])
@pytest.mark.parametrize("command", ["why", "export", "handback", "compact", "rebuild-index", "import"])
def test_the_other_commands_refuse_by_its_name(directory: Path, command: str, kind: str) -> None:
    reason = put(kind, middle(directory))
    more: dict[str, list[object]] = {
        "export": ["--to", directory.parent / "copy"],
        "rebuild-index": ["--name", "a"],
        "import": ["--data", directory.parent / "imported"],
    }
    done = tandemmq("store", command, directory, *more.get(command, []))
    assert (done.exit_code, done.stderr.strip()) == (1, f"Error: {reason}")
    assert is_untouched(directory)


@pytest.mark.parametrize("kind", ["fifo", "leaving"])
@pytest.mark.parametrize("name", ["lock", "db.data", "db.data.new", "index/a", "index/a/db.data", "index/a/index.lock"])
def test_other_files_hold_nobody_up_either(directory: Path, name: str, kind: str) -> None:
    reason = put(kind, directory / name)
    for command in ("inspect", "check", "why", "handback"):
        done = tandemmq("store", command, directory)
        # What of these a command does not need is nothing to it.
        assert done.exit_code == 0 or f"{directory / name}" in done.stdout + done.stderr, (command, reason, done)
    assert is_untouched(directory)


@pytest.mark.parametrize("kind", STRANGE)
def test_events_that_are_no_file_are_complained_of(directory: Path, kind: str) -> None:
    put(kind, directory / "index" / "a.events")
    done = tandemmq("failover", "explain", "--data", directory)
    assert done.exit_code == 3, done
    assert "a.events" in done.stderr
    assert "no regular file" in done.stderr


def test_a_store_may_be_reached_by_a_link(directory: Path) -> None:
    link = directory.parent / "link"
    link.symlink_to(directory)
    for command in ("inspect", "check", "why"):
        assert tandemmq("store", command, link).exit_code == 0, command


def test_a_sparse_file_takes_no_time(directory: Path) -> None:
    os.truncate(max(directory.glob("db-*.log"), key=lambda path: int(path.name[3:-4])), 1 << 40)
    for command in ("inspect", "check", "why"):
        assert tandemmq("store", command, directory).exit_code == 0, command
