"""Journals that a test wrote are closed when it is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.replication.source_journal import SourceJournal


@pytest.fixture(autouse=True)
def sources() -> Iterator[None]:
    yield
    while SourceJournal.opened:
        SourceJournal.opened.pop().writer.close()
