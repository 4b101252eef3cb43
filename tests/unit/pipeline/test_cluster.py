"""Jobs in a cluster: separate executors, which get this package only from a zip, and jobs by ``spark-submit``."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tandemmq.cli import main
from tandemmq.pipeline.package import ZIP_NAME, package
from tandemmq.pipeline.rows import rows as records
from tandemmq.pipeline.stores import journal_files
from tests.support.tree import ROOT as TREE

HERE = Path(__file__).parent
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Two workers of one core and 1 GiB each, in processes of their own.
CLUSTER = "local-cluster[2,1,1024]"
#: Says where the package stands, here and in the executors; the package's own script follows.
WHERE = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
where = spark.sparkContext.parallelize(range(8), 8).map(lambda _: __import__("tandemmq").__file__).distinct().collect()
import tandemmq

print("WHERE", tandemmq.__file__, *where)
"""
SECONDS_MAX = 240


def test_the_zip_has_the_package_alone_and_is_the_same_each_time(tmp_path: Path) -> None:
    archive, script = package(tmp_path / "one")
    with zipfile.ZipFile(archive) as found:
        names = set(found.namelist())
    assert {f"tandemmq/{name}" for name in ("__init__.py", "cli/pipeline/__init__.py", "journal/scan.py")} <= names
    assert not [name for name in names if name.endswith(".pyc") or not name.startswith("tandemmq/")]
    compile(script.read_text(), str(script), "exec")
    again = CliRunner().invoke(main, ["pipeline", "package", "--out", str(tmp_path / "two")])
    assert again.exit_code == 0, again.output
    assert f"--py-files {tmp_path}/two/{ZIP_NAME} {tmp_path}/two/submit.py" in again.output
    assert (tmp_path / "two" / ZIP_NAME).read_bytes() == archive.read_bytes()


def test_workers_need_nothing_but_the_zip_arrow_and_numpy(tmp_path: Path) -> None:
    if importlib.util.find_spec("pyarrow") is None:
        pytest.skip("pyarrow is not installed")
    archive, _ = package(tmp_path)
    ask = (
        "import sys\n"
        "for name in ('click', 'rich', 'crcmod', 'portalocker', 'uvloop', 'aiohttp', 'pydantic', 'pyspark'):\n"
        "    sys.modules[name] = None\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import tandemmq.pipeline.arrow, tandemmq.pipeline.stores\n"
        "print(tandemmq.__file__)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", ask, str(archive)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert output.returncode == 0, output.stderr
    assert output.stdout.strip() == f"{archive}/tandemmq/__init__.py"


@pytest.mark.prove
@pytest.mark.proof_only
@pytest.mark.service
@pytest.mark.thorough  # a Java for the driver and the cluster, one for each executor
@pytest.mark.timeout(SECONDS_MAX + 60)
def test_a_job_is_submitted_to_executors_that_have_the_zip_alone(
    store: Path, tmp_path: Path, spark_installed: None
) -> None:
    archive, submit = package(tmp_path / "package")
    script, out = tmp_path / "where.py", tmp_path / "out"
    script.write_text(WHERE + submit.read_text())

    printed = spark_submit(
        tmp_path, archive, str(script), "composition", str(store), "--tail", "--out", str(out), "--json"
    )
    where = next(line for line in printed.splitlines() if line.startswith("WHERE")).split()[1:]
    assert len(where) > 1
    assert all(path.endswith(f"/{ZIP_NAME}/tandemmq/__init__.py") for path in where)
    found = json.loads((out / "composition.json").read_text())
    assert found["is_clean"] is True
    assert json.dumps(found, indent=2) in printed
    assert (out / "composition.html").is_file()
    balance = pyarrow_rows(out / "balance")
    files = journal_files([str(store)], is_tail_wanted=True)
    assert sorted((row["file"], row["bytes"]) for row in balance) == [(file.file, file.size) for file in files]


def pyarrow_rows(directory: Path) -> list[dict[str, Any]]:
    from pyarrow import parquet

    rows: list[dict[str, Any]] = parquet.read_table(directory).to_pylist()
    return rows


def spark_submit(scratch: Path, archive: Path, *arguments: str) -> str:
    """Run it with the zip in a cluster of this machine; returns what was printed."""
    # A separate home, because executors of a local cluster leave their logs in it.
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = scratch / "spark"
    home.mkdir()
    for entry in Path(spec.origin).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON"))}
    environment |= {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": f"{scratch}/scratch",
        "spark.driver.extraJavaOptions": f"{QUICK} -Dlog4j2.configurationFile=file:{HERE}/log4j2.properties",
        "spark.executor.extraJavaOptions": QUICK,
    }
    words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    done = subprocess.run(
        [f"{home}/bin/spark-submit", "--master", CLUSTER, *words, "--py-files", str(archive), *arguments],
        cwd=scratch,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert list((home / "work").iterdir()), "there were executors of their own"
    return done.stdout


# ---- From an installed wheel, whose rooms are not on the path of a fresh process, the workers find the package too


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
