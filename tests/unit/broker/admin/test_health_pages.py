"""The pages of health: the answers for each cause."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tandemmq.broker.admin.server import HEALTH_PAGES
from tandemmq.broker.admin.status import Report, problems, set_problems, set_warnings
from tests.support.tree import ROOT

pytestmark = pytest.mark.promise("health")

NOW = 100.0
WELL: dict[str, Any] = {"is_whole": True, "problem": "", "zookeeper": None}


def status(
    role: str = "master",
    *,
    storage: float = NOW,
    lock: float = NOW,
    is_overdue: bool = False,
    part: dict[str, Any] = WELL,
    damaged: int = 0,
    damaged_files: int = 0,
    full: str = "",
    archive: str | None = None,
    files: tuple[str, ...] = (),
) -> dict[str, Any]:
    """``storage``, ``lock``: when they showed life last, in seconds by the clock that is at NOW."""
    mastership: Any = SimpleNamespace(
        storage_seen_alive=lambda: storage, lock_seen_alive=lambda: lock, is_release_overdue=is_overdue
    )
    locker: Any = SimpleNamespace(where="the lock", settings=SimpleNamespace(lock_keep_alive_period_seconds=1.0))
    store: Any = SimpleNamespace(
        is_full=bool(full), full_reason=full, archive_problem=archive, figures=SimpleNamespace(damaged=damaged)
    )
    report: Any = SimpleNamespace(
        warnings=(), files=lambda: list(files), scrubbed=lambda: {"damaged_journal_files": damaged_files}
    )
    warnings = Report._warnings(report, store) + set_warnings(part)
    found = problems(mastership, locker, NOW) + set_problems(part)
    return {"role": role, "epoch": 3, "problems": found, "warnings": warnings}


CAUSES: dict[str, dict[str, Any]] = {
    "none: master": status(),
    "none: standby": status("standby"),
    "a promotion reads the journal": status("starting"),
    "demoted, not yet a standby": status("demoted"),
    "the storage thread shows no life for 10 s": status(storage=NOW - 10.1),
    "the lock does not answer for 10 s": status(lock=NOW - 10.1),
    "the release of the lock is not answered": status("standby", is_overdue=True),
    "a node of a set must be restarted": status(
        "standby", part=WELL | {"problem": "this node takes no part until it is started again"}
    ),
    "an internal error in a node of a set": status("standby", part=WELL | {"problem": "BUG: KeyError()"}),
    "a node of a set has another history (FORK)": status("standby", part=WELL | {"problem": "FORK: db-3.log"}),
    "a node of a set lacks files": status("standby", part=WELL | {"is_whole": False}),
    "two nodes of a set have copies of one disk": status(part=WELL | {"twins": "store 5e is used by two nodes"}),
    "a set without its directory": status(part=WELL | {"zookeeper": "no answer"}),
    "messages are damaged": status(damaged=1),
    "a sealed journal file is damaged": status(damaged_files=1),
    "the disk is at its reserve": status(full="the disk is at its reserve"),
    "the archive cannot be written": status(archive="the archive cannot be written"),
    "a certificate expired or expires soon; a changed file is wrong": status(files=("users are not changed",)),
}


def table() -> dict[str, tuple[int, ...]]:
    """Causes and answers, as docs/operations.md has them."""
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8").partition("| cause |")[2]
    rows = [line.strip("| ").split(" | ") for line in text.partition("\n\n")[0].splitlines()[2:]]
    return {cause: tuple(map(int, codes[:3])) for cause, *codes in rows}


def test_each_cause_has_the_answers_of_the_table() -> None:
    found = {
        cause: tuple(200 if is_well(said) else 503 for is_well in HEALTH_PAGES.values())
        for cause, said in CAUSES.items()
    }
    assert found == table()
    for cause, said in CAUSES.items():
        is_silent = cause.startswith(("none", "a promotion", "demoted"))
        assert bool(said["problems"] or said["warnings"]) is not is_silent, cause
