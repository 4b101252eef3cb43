"""An epoch has one writer: whoever comes late, or again, gets none."""

# proves: an-epoch-has-one-writer

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tandemmq.broker.replication.authority import SetAuthority
from tandemmq.journal.errors import Deposed
from tests.unit.broker.replication.test_term import EPOCH, Case


def of(term: Any) -> SetAuthority:
    return SetAuthority(cast(Any, SimpleNamespace(term=term)))


def test_an_epoch_has_one_writer(tmp_path: Path) -> None:
    case = Case(tmp_path)
    with pytest.raises(Deposed):
        of(None).first_file(4)
    with pytest.raises(Deposed):
        of(case.term).first_file(EPOCH)
    assert of(case.term).first_file(4) == EPOCH
    case.begin()
    with pytest.raises(Deposed):
        of(case.term).first_file(4)
    case.term.end()


def test_an_epoch_that_is_over_is_not_begun(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.term.depose()
    with pytest.raises(Deposed):
        of(case.term).first_file(4)
    case.term.end()
