"""Files of a broker are open to the users that store.file_mode permits, and to no others."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tandemmq.modes import NEW_FILE, directory_mode, made_like, mending, narrowing, umask_of, whose, wider

pytestmark = pytest.mark.promise("files-are-private")


@pytest.mark.parametrize(
    ("file_mode", "directory", "command"),
    [
        (0o600, 0o700, "g-rwx,o-rwx"),
        (0o640, 0o750, "g-w,o-rwx"),
        (0o660, 0o770, "o-rwx"),
        (0o644, 0o755, "g-w,o-w"),
    ],
)
def test_new_files_and_directories_get_their_mode(tmp_path: Path, file_mode: int, directory: int, command: str) -> None:
    assert directory_mode(file_mode) == directory
    former = os.umask(umask_of(file_mode))
    try:
        os.mkdir(tmp_path / "d")
        os.close(os.open(tmp_path / "f", os.O_CREAT, NEW_FILE))
    finally:
        os.umask(former)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "df"] == [directory, file_mode]
    assert wider([str(tmp_path / "d"), str(tmp_path / "f")], file_mode) == []
    assert narrowing(file_mode) == command


def test_files_open_to_more_users_are_found(tmp_path: Path) -> None:
    modes = {"a": 0o600, "b": 0o640, "c": 0o604, "d": 0o620, "e": 0o700}
    for name, mode in modes.items():
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    (tmp_path / "link").symlink_to("b")
    paths = [str(tmp_path / name) for name in (*modes, "link", "gone")]
    assert [os.path.basename(path) for path in wider(paths, 0o600)] == ["b", "c", "d"]
    assert [os.path.basename(path) for path in wider(paths, 0o660)] == ["c"]


@pytest.mark.parametrize(
    ("user", "groups", "file_mode", "advice"),
    [
        (None, {1}, 0o600, "chmod -R g-rwx,o-rwx DIR"),  # its owner
        (0, {1}, 0o600, "chmod -R g-rwx,o-rwx DIR"),
        # By its group alone, as in OpenShift: root:0 0775, and a user that is drawn.
        (54321, {None}, 0o600, 'store.file_mode = "0660", because this broker has access by its group, and'),
        (54321, {None}, 0o666, 'store.file_mode = "0666", because this broker has access by its group'),
        (54321, {7}, 0o600, "chown -R 54321:7 DIR && chmod -R g-rwx,o-rwx DIR"),
    ],
)
def test_the_advice_leaves_the_broker_its_access(
    tmp_path: Path, user: int | None, groups: set[int | None], file_mode: int, advice: str
) -> None:
    status = tmp_path.stat()
    owner = status.st_uid if user is None else user
    found = mending([str(tmp_path)], file_mode, owner, {status.st_gid if each is None else each for each in groups})
    assert found.startswith(advice.replace("DIR", str(tmp_path)))
    assert ("g-" in found) is ("chmod -R g-" in advice)


def test_a_file_of_another_within_counts(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", "/"  # which is root's
    ours.touch()
    assert mending([str(ours), theirs], 0o600, ours.stat().st_uid or 1, {os.stat(theirs).st_gid}).startswith("store.")


def test_a_refusal_names_the_owner_and_who_asks(tmp_path: Path) -> None:
    told = whose(PermissionError(13, "Permission denied", str(tmp_path / "gone" / "file")))
    mode = stat.S_IMODE(tmp_path.stat().st_mode)
    assert told.startswith(f": {tmp_path} belongs to ")
    assert f"({tmp_path.stat().st_uid}):" in told
    assert f"mode {mode:04o}; this process runs as " in told
    assert f"({os.geteuid()}), groups " in told
    assert whose(PermissionError(13, "x")) == whose(FileNotFoundError(2, "x", "y")) == ""


def test_a_tool_creates_files_with_the_modes_of_the_existing_ones(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        for mode in (0o700, 0o770):
            directory = tmp_path / oct(mode)
            directory.mkdir()
            directory.chmod(mode)
            with made_like(str(directory)):
                os.close(os.open(directory / "f", os.O_CREAT, NEW_FILE))
            assert stat.S_IMODE((directory / "f").stat().st_mode) == mode & NEW_FILE
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
