"""The results of each job of the pipeline agree with the records of the broker's clients."""

from __future__ import annotations

import itertools
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

pytest.importorskip("duckdb", reason="duckdb is not installed: the extra local")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra local")

from tandemmq.pipeline.local.session import LocalSession
from tests.interop.pipeline.conftest import Write
from tests.support.ledger.case import Case
from tests.support.ledger.jobs import CHECKED, check
from tests.support.ledger.writers import WRITERS, Written, needs_java
from tests.support.prove import SEED, rounds
from tests.support.tree import ROOT, TESTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Stories of each writer; a proof has several.
ROUNDS: Final = rounds(1, 3)
# A proof tries all writers; CI all jobs on the first of these stores, and each job on one of the others.
SAMPLE: Final = tuple(name for name, writer in WRITERS.items() if writer.is_sample)
TOLD: Final = 20

# What is wrong today: a job, what its check says of it, and the fault.
KNOWN: Final[tuple[tuple[str, str, str], ...]] = ()


def judge(session: Any, written: Written, out: Path, job: str) -> None:
    """Fails for what is not known to be wrong."""
    case = Case(session, written.stores, written.truth, out, written.is_whole, written.is_own)
    found = check(case, job)
    known = {each: [why for name, text, why in KNOWN if name == job and re.search(text, each)] for each in found}
    new = [each for each, reasons in known.items() if not reasons]
    assert not new, "\n".join((f"{len(new)} differ", *new[:TOLD]))
    if known:
        pytest.xfail("; ".join(dict.fromkeys(reason for reasons in known.values() for reason in reasons)))


def is_in_sample(writer: str, job: str) -> bool:
    first, *others = SAMPLE
    return writer in (first, random.Random(f"{SEED} {job}").choice(others))


def cases(is_in_sample: Callable[[str, str], bool]) -> list[Any]:
    """Each writer, round and job. Only a proof tries what is not in the sample."""
    found = []
    for writer, round, job in itertools.product(WRITERS, range(ROUNDS), CHECKED):
        marks = [pytest.mark.prove, pytest.mark.service if needs_java(writer) else pytest.mark.thorough]
        if round or not is_in_sample(writer, job):
            marks.append(pytest.mark.proof_only)
        found.append(pytest.param(writer, round, job, marks=marks))
    return found


@pytest.mark.parametrize(("writer", "round", "job"), cases(is_in_sample))
def test_a_job_says_what_the_clients_did(write: Write, tmp_path: Path, writer: str, round: int, job: str) -> None:
    written = write(writer, round)
    with LocalSession(tmp_path) as session:
        judge(session, written, tmp_path, job)


@pytest.mark.service
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("writer", "round", "job"), cases(lambda writer, job: False))
def test_a_job_says_it_by_spark(
    write: Write, spark: SparkSession, tmp_path: Path, writer: str, round: int, job: str
) -> None:
    judge(spark, write(writer, round), tmp_path, job)


def test_the_ledger_shares_no_code_with_the_product() -> None:
    """The client of the ledger ends with an error if it has loaded any product module; this test loads all of its
    modules, except those that judge."""
    judging = {"case", "jobs", "lives", "stores", "writers"}
    modules = [path.stem for path in (TESTS / "support" / "ledger").glob("*.py") if path.stem not in judging]
    assert {"__main__", "stomp_client", "truth"} <= set(modules)
    text = "".join(f"import tests.support.ledger.{name}\n" for name in sorted(modules))
    text += "import sys; print([name for name in sys.modules if name.split('.')[0] == 'tandemmq'])"
    told = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
