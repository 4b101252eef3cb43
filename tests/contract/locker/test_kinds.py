"""Kinds of lock by name."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.locker.contract import LockRequest, UnknownLocker
from tandemmq.locker.kinds import create, names
from tandemmq.locker.memory import MemoryLocker
from tandemmq.locker.none import Unlocked
from tandemmq.locker.shared_file import SharedFileLocker


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Install a distribution that brings a kind of lock, by its entry points."""

    def install(points: str) -> None:
        site: Path = tmp_path_factory.mktemp("site")
        (site / "foreign_lock.py").write_text(
            "from tandemmq.locker.memory import MemoryLocker\nclass Foreign(MemoryLocker): kind = 'f'\n"
        )
        info = site / "foreign_lock-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-lock\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tandemmq.lockers]\n{points}\n")
        monkeypatch.setattr(sys, "path", [*sys.path, str(site)])

    return install


def test_built_in_kinds_are_found_by_name(request_for: Callable[..., LockRequest]) -> None:
    assert isinstance(create("shared-file", request_for()), SharedFileLocker)
    assert isinstance(create("memory", request_for()), MemoryLocker)


def test_a_kind_of_another_distribution_is_found_by_its_entry_point(
    installed: Callable[[str], None], request_for: Callable[..., LockRequest]
) -> None:
    installed("foreign = foreign_lock:Foreign")
    assert create("foreign", request_for()).kind == "f"
    assert "foreign" in names()


def test_our_names_cannot_be_taken(installed: Callable[[str], None], request_for: Callable[..., LockRequest]) -> None:
    installed("shared-file = foreign_lock:Foreign")
    assert isinstance(create("shared-file", request_for()), SharedFileLocker)


def test_a_kind_that_cannot_be_loaded_says_which(
    installed: Callable[[str], None], request_for: Callable[..., LockRequest]
) -> None:
    installed("broken = foreign_lock_that_is_not_there:X")
    with pytest.raises(UnknownLocker, match=r"'broken' .* cannot be loaded: No module named"):
        create("broken", request_for())


def test_an_unknown_kind_says_what_there_is(request_for: Callable[..., LockRequest]) -> None:
    with pytest.raises(UnknownLocker, match=r"there is .*memory, shared-file.*; did you mean 'shared-file'"):
        create("sharedfile", request_for())


def test_without_use_lock_everybody_owns_and_it_is_said_to_be_unsafe(request_for: Callable[..., LockRequest]) -> None:
    a, b = (create("shared-file", request_for(name, use_lock=False)) for name in ("a", "b"))
    for locker in (a, b):
        assert isinstance(locker, Unlocked)
        assert not locker.keep_alive()
        assert locker.acquire(threading.Event())
        assert locker.keep_alive()
        assert locker.proof().valid_for_seconds == math.inf
        assert "use_lock is false" in str(locker.unsafe)
    a.announce(2, "http://a:1")
    holder = a.holder()
    assert holder is not None
    assert (holder.name, holder.epoch, holder.admin) == ("a", 2, "http://a:1")
    a.release()
    assert not a.keep_alive()
    assert b.keep_alive()


def test_a_shared_file_with_keep_alive_is_not_called_unsafe(request_for: Callable[..., LockRequest]) -> None:
    assert create("shared-file", request_for()).unsafe is None
