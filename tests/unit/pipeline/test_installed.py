"""From an installed wheel, whose rooms are not on the path of a fresh process, the workers find the package too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tandemmq.pipeline.rows import rows as records
from tandemmq.pipeline.stores import journal_files
from tests.support.tree import ROOT as TREE

# As in a notebook: the data source, a job as a function, and the command in a session that is there.
SCRIPT = """
import json, os, sys
import tandemmq
from tandemmq.pipeline.jobs import composition
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.session import session

store, out = sys.argv[1:]
paths = os.environ.get("PYTHONPATH")
quick = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
}
spark = session("local[1]", quick)
assert os.environ.get("PYTHONPATH") == paths, "the process's own environment stays as it was"
rows = spark.read.format("tandemmq").load(store).count()
worker = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("tandemmq").__file__).collect()[0]
summary = composition.run(spark, Sources((store,)), out)
assert summary.is_clean, summary.findings
from tandemmq.cli import main
main(["pipeline", "dlq", store, "--out", out], standalone_mode=False)
print(json.dumps([rows, tandemmq.__file__, worker]))
"""


@pytest.mark.service
@pytest.mark.prove
@pytest.mark.proof_only  # a second Java, beside that of the other tests
@pytest.mark.timeout(300)
def test_workers_find_the_package_of_a_wheel(store: Path, tmp_path: Path, spark_installed: None) -> None:
    site = tmp_path / "site"
    # As the wheel lays it out (tests/unit/test_packaging.py).
    shutil.copytree(TREE / "tandemmq", site / "tandemmq", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(store), str(tmp_path / "out")],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows, driver, worker = json.loads(done.stdout.splitlines()[-1])
    assert rows == sum(len(list(records(file, "records"))) for file in journal_files([str(store)], is_tail_wanted=True))
    assert "There are no dead letters." in (tmp_path / "out" / "dlq.html").read_text()
    assert driver == worker == str(site / "tandemmq" / "__init__.py")
