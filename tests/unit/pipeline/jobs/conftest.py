"""Tables of a journal that a test makes by hand, and a store of an old ActiveMQ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tandemmq.journal.format import encode_batch
from tandemmq.pipeline.engine import LOCAL, SPARK
from tandemmq.pipeline.local.session import LocalSession
from tandemmq.store.records.commands import encode_producer_audit
from tests.support.pipeline.frames import frames_of
from tests.support.pipeline.pipeline_journals import add
from tests.support.samples import is_chosen
from tests.unit.pipeline.conftest import SECONDS_MAX

#: Of the tests with a session of Spark CI runs about so many, and a proof all.
SPARK_SHARE_IN_CI: Final = 0.25


def by_spark(name: str) -> list[pytest.MarkDecorator]:
    """The marks of a test or case of this name that Spark computes."""
    left = [] if is_chosen(name, SPARK_SHARE_IN_CI) else [pytest.mark.proof_only]
    return [pytest.mark.service, pytest.mark.prove, *left]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A query runs by DuckDB, and by Spark."""
    if "engine" in metafunc.fixturenames:
        marks = [*by_spark(metafunc.function.__name__), pytest.mark.timeout(SECONDS_MAX)]
        cases = [LOCAL, pytest.param(SPARK, marks=marks)]
        metafunc.parametrize("engine", cases, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            for mark in by_spark(item.name):
                item.add_marker(mark)


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A session."""
    if request.param == SPARK:
        yield request.getfixturevalue("spark")
    else:
        pytest.importorskip("duckdb", reason="duckdb is not installed: the extra local")
        with LocalSession(tmp_path / "engine") as session:
            yield session


@pytest.fixture
def frame(engine: Any) -> Callable[..., Any]:
    """Rows as a table of either engine."""
    return frames_of(engine)


@pytest.fixture
def audited(tmp_path: Path) -> Path:
    """Write three files of an old ActiveMQ: at each checkpoint the audit of all producers, which grows, and sometimes a
    message that is not consumed."""
    directory = tmp_path / "audited"
    directory.mkdir()
    checkpoint = 0
    for file in (1, 2, 3):
        content = b""
        while len(content) < 256 << 10:
            checkpoint += 1
            if checkpoint % 20 == 1:
                content += encode_batch([add(checkpoint, b"x" * 1500)])[0][:-5]
            content += encode_batch([encode_producer_audit(bytes(2000 + 100 * checkpoint))])[0][:-5]
        (directory / f"db-{file}.log").write_bytes((content + b"-qMa4").ljust(320 << 10, b"\0"))
    return directory
