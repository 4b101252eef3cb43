"""`tandemmq simulate`: output and exit codes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from tandemmq.cli import main
from tandemmq.journal.writer import JournalWriter
from tests.support.compiled import REPLACES_A_METHOD


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--faults", "kill"], ["calm", "seed 7:", "receipts"]),
        (["--faults", "none", "--trace"], ["master {", "receipt send"]),
    ],
)
def test_one_seed_tells_its_figures_and_a_trace_what_brokers_did(arguments: list[str], told: list[str]) -> None:
    result = simulate("--seed", "7", "--seconds", "5", *arguments)
    assert result.exit_code == 0, result.output
    assert [words for words in told if words not in result.output] == []


@REPLACES_A_METHOD
def test_a_broken_promise_ends_with_1_and_names_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync_nothing(self: JournalWriter) -> None:
        self._is_dirty = False
        if self._end_marker is not None:
            self._write_end_marker()

    monkeypatch.setattr(JournalWriter, "sync", sync_nothing)
    result = simulate("--seeds", "1..5", "--faults", "kill", "--json")
    assert result.exit_code == 1
    answer = json.loads(result.output)
    assert answer["seeds"] == 5
    assert {"seed", "problems", "faults"} == set(answer["broken"][0])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--faults", "kil"], "kil unknown; known kinds: nfs-pause"),
        (["--seed", "1", "--seeds", "1..2"], "not both"),
        (["--seeds", "5..1"], "expected A..B"),
        (["--set", "store.journal_disk_sync_strategy=periodic"], "the promises are made for 'always'"),
        (["--set", "locker.type=memory"], "only shared-file, lease-database can be simulated"),
        (["--set", "store.directry=x"], "directry"),
    ],
)
def test_what_cannot_be_meant_ends_with_2(arguments: list[str], expected: str) -> None:
    result = simulate(*arguments)
    assert result.exit_code == 2, result.output
    assert expected in result.output
