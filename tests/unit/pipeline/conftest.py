"""Journals to read, and one Spark session for all tests of the pipeline."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tandemmq.pipeline.session import NoSpark, check_java, session
from tests.support.pipeline.pipeline_journals import write_store
from tests.support.tree import TESTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG4J = TESTS / "support" / "pipeline" / "log4j2.properties"
# The first test that asks for Spark waits for its Java, too; a query that a time limit interrupts spoils the session
# for all tests behind it.
SECONDS_MAX = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))


@pytest.fixture(scope="session")
def spark_installed(require_service: Callable[..., None]) -> None:
    """PySpark, and a Java that it runs on."""
    for name in ("pyspark", "pyarrow"):
        require_service(importlib.util.find_spec(name), f"{name} is not installed")
    try:
        check_java()
    except NoSpark as error:
        require_service(False, str(error))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_installed: None) -> Iterator[SparkSession]:
    """A session on two threads of this machine, that listens on the loopback only."""
    scratch = tmp_path_factory.mktemp("spark")
    made = session(
        "local[2]",
        {
            "spark.driver.memory": "768m",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.warehouse.dir": f"{scratch}/warehouse",
            "spark.local.dir": f"{scratch}/local",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
            f"-Dlog4j2.configurationFile=file:{LOG4J}",
        },
        name="tests",
    )
    yield made
    made.stop()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of this broker with several files."""
    directory = tmp_path / "store"
    write_store(directory, 300)
    return directory
