"""A promotion that finds damage asks its authority whether others have what is damaged here."""

# proves: journal-reading, promotion

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tandemmq.journal.errors import JournalCorrupt
from tandemmq.store.authority import SHARED_VOLUME
from tests.support.store.noted_authority import NotedAuthority
from tests.support.store.standbys import standby_of
from tests.support.store.store_harness import Term


def test_damage_is_told_by_file_before_it_ends_a_promotion(tmp_path: Path) -> None:
    with Term(str(tmp_path)) as term:
        for _ in range(5):
            term.add_durably(1, body=b"x" * 2_000)
    shutil.rmtree(tmp_path / "index")
    with open(tmp_path / "db-1.log", "r+b") as file:
        file.seek(5_000)
        file.write(b"rotten")
    authority = NotedAuthority(SHARED_VOLUME, [])
    standby = standby_of(str(tmp_path), authority=authority)
    standby.fence(lambda: True)
    with pytest.raises(JournalCorrupt):
        standby.read()
    assert "damaged [1]" in authority.steps
    standby.close()
