"""Each job of the pipeline says what the clients of the broker know to be true."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

pytest.importorskip("duckdb", reason="duckdb is not installed: the extra local")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra local")

from tandemmq.pipeline.local.session import LocalSession
from tests.support.ledger.jobs import CHECKED, Case, check
from tests.support.ledger.stores import by_tandemmq
from tests.support.ledger.truth import Truth
from tests.support.prove import SEED
from tests.support.tree import ROOT, TESTS
from tests.unit.pipeline.conftest import spark, spark_installed  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS: Final = 120

# What is wrong today: a job, what its check says of it, and the fault.
KNOWN: Final = (
    ("latency", r"^states of .*got \['acked'\], expected \['(expired|poison)'\]", "expired counts as acknowledged"),
    ("latency", r"^(states of: \d+ differ|counts of .* (acked|gone):|sums of the windows)", "the same, in its sums"),
    ("latency", r"^(p\d+|max)_ms of .'queue'", "the same, in its percentiles"),
    ("latency", r"ActiveMQ\.DLQ.* was stored:", "a dead letter is as old as the message that it was"),
    ("replay", r"^fate \(unacknowledged\) of .'news'.*got send, expected acknowledged", "what came before a durable "
     "subscription was ended and made again is held for it"),
    ("replay", r"^fate \(unacknowledged\) of: \d+ differ", "the same, counted"),
)  # fmt: skip


@dataclass(frozen=True)
class Written:
    """A store, and what is true of it."""

    stores: tuple[str, ...]
    truth: Truth


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    print(f"TANDEMMQ_SEED={SEED}")
    directory = tmp_path_factory.mktemp("ledger") / "own"
    return Written((str(directory / "data"),), by_tandemmq(directory, "stomp", SEED, STEPS))


@pytest.fixture(scope="module")
def local(written: Written, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    out = tmp_path_factory.mktemp("local")
    with LocalSession(out) as session:
        yield case_of(session, written, out)


def case_of(session: Any, written: Written, out: Path) -> Case:
    return Case(session, written.stores, written.truth, out)


def judge(case: Case, job: str) -> None:
    """Fails for what is not known to be wrong."""
    found = check(case, job)
    known = {each: [why for name, text, why in KNOWN if name == job and re.search(text, each)] for each in found}
    new = [each for each, reasons in known.items() if not reasons]
    assert not new, "\n".join(new)
    if known:
        pytest.xfail("; ".join(dict.fromkeys(reason for reasons in known.values() for reason in reasons)))


@pytest.mark.thorough
@pytest.mark.parametrize("job", CHECKED)
def test_a_job_says_what_the_clients_did(local: Case, job: str) -> None:
    judge(local, job)


@pytest.mark.service
@pytest.mark.timeout(600)
@pytest.mark.parametrize("job", CHECKED)
def test_a_job_says_it_by_spark(written: Written, spark: SparkSession, tmp_path: Path, job: str) -> None:  # noqa: F811
    judge(case_of(spark, written, tmp_path), job)


def test_the_ledger_shares_no_code_with_the_product() -> None:
    """Its client ends with an error if it has loaded any; this loads all of its modules, but those that judge."""
    judging = {"jobs", "stores"}
    modules = [path.stem for path in (TESTS / "support" / "ledger").glob("*.py") if path.stem not in judging]
    assert {"stomp_client", "truth"} <= set(modules)
    text = "".join(f"import tests.support.ledger.{name}\n" for name in sorted(modules))
    text += "import sys; print([name for name in sys.modules if name.split('.')[0] == 'tandemmq'])"
    told = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
