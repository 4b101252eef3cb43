"""Each job of the pipeline says what the clients of the broker know to be true."""

from __future__ import annotations

import functools
import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

pytest.importorskip("duckdb", reason="duckdb is not installed: the extra local")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra local")

from tandemmq.pipeline.local.session import LocalSession
from tests.support.interop.java_programs import compiled
from tests.support.interop.jms.jvm import SOURCES, class_path
from tests.support.interop.jms.peers import MQTT
from tests.support.ledger.jobs import CHECKED, Case, check
from tests.support.ledger.stores import SETTINGS, by_activemq, by_set, by_tandemmq
from tests.support.ledger.truth import Truth
from tests.support.prove import SEED
from tests.support.services.zookeeper import zookeeper
from tests.support.tree import ROOT, TESTS
from tests.unit.pipeline.conftest import spark, spark_installed  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS: Final = 120
TOLD: Final = 20
MAVEN_SECONDS_MAX: Final = 300

# What is wrong today: a job, what its check says of it, and the fault.
KNOWN: Final = (
    ("latency", r"^states of .*got \['acked'\], expected \['(expired|poison)'\]", "expired counts as acknowledged"),
    ("latency", r"^states of .*'topic'.*got \['acked'\], expected None", "what a selector skipped is acknowledged"),
    ("latency", r"^states of .*'topic'.*got \['live'\], expected (None|\['deleted'\])", "a subscription that was ended "
     "and made again has what came before, where the oldest files are gone"),
    ("latency", r"^(counts of .* (enqueued|acked|gone):|sums of the windows)", "in sums, too"),
    ("latency", r"^(p\d+|max)_ms of .'(queue|topic)'", "in percentiles, too"),
    ("latency", r"^counts of .* unmatched:", "an acknowledgement that a compaction wrote again is unmatched"),
    ("latency", r"ActiveMQ\.DLQ.* was stored:", "a dead letter is as old as the message that it was"),
    ("replay", r"^fate \(unacknowledged\) of .'news'.*got send, expected acknowledged", "what came before a durable "
     "subscription was ended and made again is held for it"),
    ("replay", r"^fate \(unacknowledged\) of .'news'.*got acknowledged, expected send", "what waits for a durable "
     "subscription whose record a compaction moved is acknowledged"),
    ("replay", r"'ActiveMQ.MQTT.Session", "the records of a session of MQTT are messages"),
    ("duplicates", r"'ActiveMQ.MQTT.Session", "the records of a session of MQTT are messages"),
    ("duplicates", r"same_id", "adds of branches that were moved are there twice"),
    ("messages", r"^properties of .* (tiny|small|large)", "doubles are not as Java prints them"),
    ("archive", r"^properties of .* (tiny|small|large)", "doubles are not as Java prints them"),
)  # fmt: skip
SEVERAL: Final = """\
[[store.filtered_persistence_adapters]]
queue = "slow.>"
[[store.filtered_persistence_adapters]]
queue = "prices"
[[store.filtered_persistence_adapters]]
"""
NO_ARCHIVE: Final = SETTINGS.replace("archive_data_logs = true", "")

# Who wrote the stores -> the protocol of the client, how the broker is set up, whether all files are there, and whether
# CI tries all local jobs on it.
WRITERS: Final[dict[str, tuple[str, tuple[str, ...], bool, bool]]] = {
    "tandemmq-stomp": ("stomp", (SETTINGS,), True, False),
    "tandemmq-xa": ("jms", (SETTINGS,), True, True),
    "tandemmq-compacted": ("jms", (NO_ARCHIVE,), False, False),
    "tandemmq-several": ("jms", (SETTINGS + SEVERAL,), True, False),
    "tandemmq-mqtt": ("mqtt", (SETTINGS,), True, True),
    "tandemmq-set": ("jms", (), False, False),
    "activemq-stomp": ("stomp", (), True, False),
    "activemq-xa": ("jms", ("archive",), True, False),
    "activemq-compacted": ("jms", ("compact",), False, False),
    "activemq-several": ("jms", ("several",), True, True),
    "activemq-6-xa": ("jms", ("archive",), True, False),
    "activemq-6-compacted": ("stomp", ("compact",), False, False),
    "activemq-6-several": ("jms", ("several",), True, False),
}
LEFT: Final = (pytest.mark.prove, pytest.mark.proof_only)
# Jobs that CI runs by Spark, too.
SAMPLE: Final = ("latency", "duplicates", "replay")


@dataclass(frozen=True)
class Written:
    """Stores, and what is true of them."""

    stores: tuple[str, ...]
    truth: Truth
    is_whole: bool


@pytest.fixture(scope="session")
def java(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client for JMS, and LedgerBroker, compiled."""
    directory = tmp_path_factory.mktemp("classes")
    sources = (*sorted(SOURCES.glob("*.java")), TESTS / "support" / "ledger" / "java" / "LedgerBroker.java")
    compiled(require_service, directory, *sources, path=class_path(directory))
    return directory


def installed(classes: Path) -> str:
    """The class path of LedgerBroker with the ActiveMQ that is installed."""
    return ":".join([class_path(classes), *map(str, MQTT)])


@pytest.fixture(scope="session")
def activemq_6(
    java: Path, require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The class path of LedgerBroker with ActiveMQ 6, which Maven gets."""
    require_service(shutil.which("mvn"), "mvn is not installed: Debian's package maven")
    directory = tmp_path_factory.mktemp("activemq-6")
    pom = TESTS / "support" / "ledger" / "java" / "pom.xml"
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={directory}"]
    subprocess.run([*command, "-DincludeScope=runtime"], check=True, timeout=MAVEN_SECONDS_MAX)
    return f"{java}:{directory}/*"


@pytest.fixture(scope="session")
def writing(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[str], Written]:
    """`writing(writer)`: its stores, written once."""

    @functools.cache
    def write(writer: str) -> Written:
        print(f"TANDEMMQ_SEED={SEED}")
        protocol, options, is_whole, _ = WRITERS[writer]
        directory = tmp_path_factory.mktemp("ledger") / "broker"
        needs_java = writer.startswith("activemq") or protocol == "jms"
        classes = request.getfixturevalue("java") if needs_java else None
        if writer == "tandemmq-set":
            assert classes is not None, "made above"
            with zookeeper(request.getfixturevalue("require_service")) as server:
                truth = by_set(directory, protocol, SEED, STEPS, zookeeper=server, classes=classes)
        elif writer.startswith("tandemmq"):
            truth = by_tandemmq(directory, protocol, SEED, STEPS, settings=options[0], classes=classes)
        else:
            path = request.getfixturevalue("activemq_6") if "-6-" in writer else installed(classes)
            truth = by_activemq(directory, protocol, SEED, STEPS, *options, classes=classes, path=path)
        return Written((str((directory / "data").resolve()),), truth, is_whole)

    return write


def case_of(session: Any, written: Written, out: Path) -> Case:
    return Case(session, written.stores, written.truth, out, written.is_whole)


def judge(case: Case, job: str) -> None:
    """Fails for what is not known to be wrong."""
    found = check(case, job)
    known = {each: [why for name, text, why in KNOWN if name == job and re.search(text, each)] for each in found}
    new = [each for each, reasons in known.items() if not reasons]
    assert not new, "\n".join((f"{len(new)} differ", *new[:TOLD]))
    if known:
        pytest.xfail("; ".join(dict.fromkeys(reason for reasons in known.values() for reason in reasons)))


def _cases(sample: Callable[[str, str], bool]) -> list[Any]:
    """Each job for each writer; only a proof tries what is not in the sample."""
    found = []
    for writer, job in itertools.product(WRITERS, CHECKED):
        needs_java = writer.startswith("activemq") or WRITERS[writer][0] == "jms"
        marks = [pytest.mark.service] if needs_java else [pytest.mark.thorough]
        found.append(pytest.param(writer, job, marks=marks if sample(writer, job) else [*marks, *LEFT]))
    return found


@pytest.mark.parametrize(("writer", "job"), _cases(lambda writer, _: WRITERS[writer][3]))
def test_a_job_says_what_the_clients_did(
    writing: Callable[[str], Written], tmp_path: Path, writer: str, job: str
) -> None:
    written = writing(writer)
    with LocalSession(tmp_path) as session:
        judge(case_of(session, written, tmp_path), job)


@pytest.mark.service
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("writer", "job"), _cases(lambda writer, job: writer == "activemq-xa" and job in SAMPLE))
def test_a_job_says_it_by_spark(
    writing: Callable[[str], Written],
    spark: SparkSession,  # noqa: F811
    tmp_path: Path,
    writer: str,
    job: str,
) -> None:
    judge(case_of(spark, writing(writer), tmp_path), job)


def test_the_ledger_shares_no_code_with_the_product() -> None:
    """Its client ends with an error if it has loaded any; this loads all of its modules, but those that judge."""
    judging = {"jobs", "stores"}
    modules = [path.stem for path in (TESTS / "support" / "ledger").glob("*.py") if path.stem not in judging]
    assert {"stomp_client", "truth"} <= set(modules)
    text = "".join(f"import tests.support.ledger.{name}\n" for name in sorted(modules))
    text += "import sys; print([name for name in sys.modules if name.split('.')[0] == 'tandemmq'])"
    told = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
