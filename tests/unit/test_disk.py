"""Files are opened only if they are regular ones, and read and written to the end: whole, or an error, after no more
calls than there are bytes."""

from __future__ import annotations

import ast
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.disk import (
    NotRegular,
    data_from,
    demand_directory,
    irregular,
    open_regular,
    open_with_status,
    read_fully,
    write_fully,
)
from tests.support.crash.unwilling_disk import ENDS_WITH, MOODS, UnwillingDisk
from tests.support.strange_files import ELSEWHERE, STRANGE
from tests.support.tree import DIRECTORIES
from tests.support.tree import ROOT as TREE

WRITING_CALLS = {"pwrite", "pwritev", "writev", "sendfile", "copy_file_range"}


class Memory:
    """A file in memory that takes and gives so many bytes a call, the last number for ever."""

    def __init__(self, content: bytes, steps: list[int]) -> None:
        self.content = bytearray(content)
        self.calls = 0
        self._steps = steps

    def _step(self, wanted: int) -> int:
        self.calls += 1
        return min(wanted, self._steps[min(self.calls, len(self._steps)) - 1])

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int, /) -> int:
        taken = self._step(len(data))
        self.content[offset : offset + taken] = data[:taken]
        return taken

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        return bytes(self.content[offset : offset + self._step(length)])


STEPS = st.lists(st.integers(1, 40), min_size=1, max_size=10)


@given(st.binary(max_size=200), st.integers(0, 20), STEPS)
def test_all_bytes_are_written_for_any_lengths_of_the_calls(data: bytes, offset: int, steps: list[int]) -> None:
    before = b"\xaa" * 300
    for given_as in (bytes, bytearray, memoryview):
        memory = Memory(before, steps)
        write_fully(memory, 0, given_as(data), offset)
        assert memory.content == before[:offset] + data + before[offset + len(data) :]
        assert memory.calls <= len(data)


@given(st.binary(max_size=200), st.integers(0, 220), st.integers(0, 220), STEPS)
def test_all_bytes_are_read_for_any_lengths_of_the_calls(
    content: bytes, offset: int, length: int, steps: list[int]
) -> None:
    memory = Memory(content, steps)
    assert read_fully(memory, 0, length, offset) == content[offset : offset + length]
    assert memory.calls <= length + 1


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("mood", MOODS)
def test_a_write_is_whole_or_an_error(file: int, mood: str) -> None:
    disk = UnwillingDisk(mood)
    data = bytes(range(256)) * 4
    if mood not in ENDS_WITH:
        write_fully(disk, file, data, 3)
        assert os.pread(file, 2000, 3) == data
    else:
        with pytest.raises(OSError, match=r"accepted no byte|" + os.strerror(ENDS_WITH[mood])) as failure:
            write_fully(disk, file, data, 3)
        assert failure.value.errno == ENDS_WITH[mood]
    assert disk.calls <= len(data)


def test_a_write_of_no_bytes_raises_an_error_with_place_and_length(file: int) -> None:
    with pytest.raises(OSError, match="accepted no byte of 4 at offset 11") as failure:
        write_fully(UnwillingDisk("half, then nothing"), file, b"1234567", 8)
    assert failure.value.errno == errno.EIO


def test_an_empty_write_makes_no_call(file: int) -> None:
    disk = UnwillingDisk("nothing")
    write_fully(disk, file, b"", 0)
    assert disk.calls == 0


def test_no_other_place_writes_to_files_by_the_verbs_that_may_write_in_part() -> None:
    found = [
        f"{path.relative_to(TREE)}:{node.lineno}"
        for directory in ("tandemmq", *DIRECTORIES)
        for path in (TREE / directory).rglob("*.py")
        if any(name in (text := path.read_text()) for name in WRITING_CALLS)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITING_CALLS
    ]
    assert [place.partition(":")[0] for place in found] == ["tandemmq/disk.py"], found


# ---- paths that are no regular files


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT])
@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.timeout(60)
def test_an_irregular_file_is_not_opened(tmp_path: Path, kind: str, flags: int) -> None:
    directory = tmp_path / "store"
    directory.mkdir()
    path = directory / "db-7.log"
    make, called = STRANGE[kind]
    make(path)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(NotRegular, match=called) as refused:
        open_regular(os, str(path), flags)
    assert refused.value.filename == str(path)
    assert set(os.listdir("/proc/self/fd")) == before
    assert [str(error) for error in irregular([str(path), str(directory / "db-8.log")])] == [str(refused.value)]
    if kind == "leaving":
        assert path.read_bytes() == ELSEWHERE


def test_a_fifo_with_a_reader_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(NotRegular, match="a FIFO"):
            open_regular(os, str(path), os.O_WRONLY)
    finally:
        os.close(reader)


def test_the_directory_may_be_reached_by_links(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_bytes(b"content")
    (tmp_path / "here").symlink_to(tmp_path / "there")
    fd, status = open_with_status(os, str(tmp_path / "here" / "file"), os.O_RDONLY)
    os.close(fd)
    assert status.st_size == 7
    with pytest.raises(NotRegular, match="here is a symbolic link"):
        demand_directory(os, str(tmp_path / "here"))
    demand_directory(os, str(tmp_path / "here" / ".." / "there"))


def test_an_error_that_is_the_systems_stays_its_own(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_regular(os, str(tmp_path / "none"), os.O_RDONLY)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(os, str(loop / "file"), os.O_RDONLY)


# ---- holes


def test_data_is_found_behind_holes(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.write_bytes(b"begin")
    os.truncate(path, 1 << 40)
    with open(path, "r+b") as file:
        file.seek(1 << 39)
        file.write(b"middle")
        file.flush()
        fd = file.fileno()
        assert data_from(os, fd, 3) == 3
        found = data_from(os, fd, 1 << 20)
        assert 1 << 20 < found <= 1 << 39
        assert data_from(os, fd, (1 << 39) + (1 << 20)) == 1 << 40, "the end"
        assert data_from(os, fd, 1 << 41) == 1 << 41, "behind it there is nothing to pass over"


def test_without_reported_holes_all_bytes_may_be_data() -> None:
    class Plain:
        def lseek(self, fd: int, position: int, how: int, /) -> int:
            raise OSError(errno.EINVAL, "no such question")

    assert data_from(Plain(), 0, 17) == 17
