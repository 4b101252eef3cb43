"""Who is no member of a set writes nothing into the directory of one."""

# proves: directory-of-a-set-is-refused

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.store.membership import PROMISE_FILE, BelongsToSet, demand_no_set
from tandemmq.store.tools.offline import OfflineStore


def test_the_directory_of_a_member_is_refused_with_the_command_that_ends_it(tmp_path: Path) -> None:
    demand_no_set(str(tmp_path))
    (tmp_path / PROMISE_FILE).write_bytes(b"")
    with pytest.raises(BelongsToSet, match=f"tandemmq replication leave {tmp_path}"):
        demand_no_set(str(tmp_path))


def test_a_membership_that_was_ended_is_none(tmp_path: Path) -> None:
    (tmp_path / f"{PROMISE_FILE}.left").write_bytes(b"")
    demand_no_set(str(tmp_path))


def test_an_offline_store_leaves_it_as_it_is(tmp_path: Path) -> None:
    (tmp_path / PROMISE_FILE).write_bytes(b"")
    with pytest.raises(BelongsToSet):
        OfflineStore(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [PROMISE_FILE]
