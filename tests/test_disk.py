"""The loops that read and write files to the end: whole, or an error, after no more calls than there are bytes."""

from __future__ import annotations

import ast
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "crash"))

from unwilling_disk import ENDS_WITH, MOODS, UnwillingDisk

from tandemmq.disk import read_fully, write_fully

TREE = Path(__file__).parents[1]
ROOMS = ("tandemmq", "broker", "store", "journal", "index", "locker", "config")
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
def test_whatever_a_call_takes_all_is_written_and_nothing_beside(data: bytes, offset: int, steps: list[int]) -> None:
    before = b"\xaa" * 300
    for given_as in (bytes, bytearray, memoryview):
        memory = Memory(before, steps)
        write_fully(memory, 0, given_as(data), offset)
        assert memory.content == before[:offset] + data + before[offset + len(data) :]
        assert memory.calls <= len(data)


@given(st.binary(max_size=200), st.integers(0, 220), st.integers(0, 220), STEPS)
def test_whatever_a_call_gives_all_is_read_that_the_file_has(
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
        with pytest.raises(OSError, match=r"took no byte|" + os.strerror(ENDS_WITH[mood])) as failure:
            write_fully(disk, file, data, 3)
        assert failure.value.errno == ENDS_WITH[mood]
    assert disk.calls <= len(data)


def test_a_write_that_takes_nothing_says_where_and_how_much(file: int) -> None:
    with pytest.raises(OSError, match="took no byte of 4 at offset 11") as failure:
        write_fully(UnwillingDisk("half, then nothing"), file, b"1234567", 8)
    assert failure.value.errno == errno.EIO


def test_nothing_to_write_asks_the_disk_for_nothing(file: int) -> None:
    disk = UnwillingDisk("nothing")
    write_fully(disk, file, b"", 0)
    assert disk.calls == 0


def test_no_other_place_writes_to_files_by_the_verbs_that_may_write_in_part() -> None:
    found = [
        f"{path.relative_to(TREE)}:{node.lineno}"
        for room in ROOMS
        for path in (TREE / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITING_CALLS
    ]
    assert [place.partition(":")[0] for place in found] == ["tandemmq/disk.py"], found
