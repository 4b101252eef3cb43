"""A disk that takes writes in part, or not at all: a checkpoint is there as a whole, or the one before it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.index import Index
from tandemmq.index.copy import copy
from tandemmq.index.errors import IndexFailed
from tests.support.crash.unwilling_disk import ENDS_WITH, MOODS, UnwillingDisk


@pytest.fixture(params=MOODS)
def mood(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_checkpoint_is_whole_or_the_index_has_failed(opened: Callable[..., Index], tools: Any, mood: str) -> None:
    disk = UnwillingDisk(mood, tools.plain)
    disk.is_unwilling = False
    index = opened(disk)
    tools.write(index, {b"a": b"1"})
    changes = {tools.key(n): b"x" * 20 for n in range(200)}
    disk.is_unwilling, disk.calls = True, 0
    if mood not in ENDS_WITH:
        tools.write(index, changes)
        index.close()
        assert dict(opened().scan()) == {b"a": b"1", **changes}
        return
    with pytest.raises(IndexFailed) as failure:
        tools.write(index, changes)
    assert failure.value.errno == ENDS_WITH[mood]
    disk.is_unwilling = False
    with pytest.raises(IndexFailed):
        tools.write(index, {b"a": b"2"})
    index.close()
    assert dict(opened().scan()) == {b"a": b"1"}


def test_a_new_index_is_whole_or_not_there(directory: str, tools: Any, mood: str) -> None:
    disk = UnwillingDisk(mood, tools.plain)
    if mood not in ENDS_WITH:
        Index.open(directory, disk).close()
        assert os.path.exists(f"{directory}/db.data")
        return
    with pytest.raises(OSError) as failure:  # noqa: PT011 its number tells
        Index.open(directory, disk)
    assert failure.value.errno == ENDS_WITH[mood]
    assert not os.path.exists(f"{directory}/db.data")


def test_a_copy_is_whole_or_not_there(
    directory: str, opened: Callable[..., Index], tools: Any, tmp_path: Any, mood: str
) -> None:
    changes = {tools.key(n): b"x" * 20 for n in range(200)}
    with opened() as index:
        tools.write(index, changes)
    target = str(tmp_path / "copy")
    if mood not in ENDS_WITH:
        assert copy(directory, target, UnwillingDisk(mood, tools.plain))
        with Index.open(target, tools.plain) as copied:
            assert dict(copied.scan()) == changes
        return
    with pytest.raises(OSError) as failure:  # noqa: PT011 its number tells
        copy(directory, target, UnwillingDisk(mood, tools.plain))
    assert failure.value.errno == ENDS_WITH[mood]
    assert not os.path.exists(f"{target}/db.data")
