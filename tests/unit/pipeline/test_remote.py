"""Journals in an object store with S3 on the loopback: a read has the same result as a read of local files."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.pipeline.places import _s3, access_of, normal, open_file
from tandemmq.pipeline.rows import rows
from tandemmq.pipeline.stores import NoJournal, journal_files
from tandemmq.pipeline.walk import JournalFile, walk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKET = "lake"
START_SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def settings(
    tmp_path_factory: pytest.TempPathFactory, require_service: Callable[..., None]
) -> Iterator[dict[str, str]]:
    """A server with an empty bucket; returns the settings with which Hadoop reaches it."""
    for name in ("moto", "flask_cors", "pyarrow"):
        require_service(importlib.util.find_spec(name), f"{name} is not installed")
    port = free_port()
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("wb") as text:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=text, stderr=text
        )
    told = {
        "fs.s3a.endpoint": f"http://127.0.0.1:{port}",
        "fs.s3a.access.key": "ours",
        "fs.s3a.secret.key": "a secret",
        "fs.s3a.endpoint.region": "us-east-1",
    }
    try:
        bucket = _system(told)
        end = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                bucket.create_dir(BUCKET)
                break
            except OSError:
                assert time.monotonic() < end, log.read_text()
                assert server.poll() is None, log.read_text()
                time.sleep(0.1)
        yield told
    finally:
        server.terminate()
        server.wait(20)


def _system(told: dict[str, str]) -> Any:
    from pyarrow.fs import S3FileSystem

    return S3FileSystem(**_s3(BUCKET, told, {}), allow_bucket_creation=True)


def put(told: dict[str, str], directory: Path, prefix: str) -> str:
    """Copy a directory into the bucket; returns its URL."""
    system = _system(told)
    for path in sorted(each for each in directory.rglob("*") if each.is_file()):
        with system.open_output_stream(f"{BUCKET}/{prefix}/{path.relative_to(directory)}") as stream:
            stream.write(path.read_bytes())
    return f"s3a://{BUCKET}/{prefix}"


def moved(found: list[JournalFile], here: Path, there: str) -> list[JournalFile]:
    """Return the same files as if they were at ``there``, whatever path leads to them."""
    return [
        replace(file, path=file.path.replace(str(here), there), store=file.store.replace(str(here), there), access=())
        for file in found
    ]


def test_a_remote_store_is_planned_and_walked_as_a_local_one(store: Path, settings: dict[str, str]) -> None:
    archive = store / "data-archive"
    archive.mkdir()
    (store / "db-1.log").rename(archive / "db-1.log")
    shutil.copytree(store, store.parent / "deep" / "one" / "two")
    access = access_of(settings)
    for directory, prefix in ((store, "walked"), (store.parent / "deep", "deep")):
        url = put(settings, directory, prefix)
        for is_tail_wanted in (False, True):
            local = journal_files([str(directory)], is_tail_wanted=is_tail_wanted)
            remote = journal_files([f"{url}/"], is_tail_wanted=is_tail_wanted, access=access)
            assert moved(remote, directory, url) == moved(local, directory, url)
        for here, there in zip(local, remote, strict=True):
            assert list(walk(there)) == list(walk(here))
    alone = journal_files([f"s3a://{BUCKET}/walked/db-2.log"], access=access)
    assert [(file.file, file.state) for file in alone] == [(2, "closed")]


def test_damage_of_a_remote_file_is_told(store: Path, settings: dict[str, str]) -> None:
    path = store / "db-1.log"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    url = put(settings, store, "damaged")
    local, remote = journal_files([str(store)])[0], journal_files([url], access=access_of(settings))[0]
    found = list(rows(remote, "batches"))
    assert [row[1:] for row in found] == [row[1:] for row in rows(local, "batches")]
    assert "bad_sum" in {row[6] for row in found}


def test_verify_names_what_the_damage_of_a_remote_file_concerns(
    store: Path, settings: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed: the extra local")
    from tandemmq.pipeline.jobs import verify
    from tandemmq.pipeline.jobs.tables import Sources
    from tandemmq.pipeline.local.session import LocalSession

    path = store / "db-1.log"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    url = put(settings, store, "concerned")
    concerned = []
    with LocalSession(tmp_path / "local") as session:
        for source in (str(store), url):
            sources = Sources((source,), access=access_of(settings))
            summary = verify.run(session, sources, str(tmp_path / "out"))  # type: ignore[arg-type]
            rows_of = session.read.parquet(summary.written["concerned"]).orderBy("offset").collect()
            concerned.append([tuple(row)[1:] for row in rows_of])
    assert concerned[0]
    assert concerned[1] == concerned[0]


def test_a_part_of_a_remote_file_is_asked_for_not_the_whole(store: Path, settings: dict[str, str]) -> None:
    url = put(settings, store, "ranges")
    source = open_file(f"{url}/db-2.log", access_of(settings))
    try:
        whole = (store / "db-2.log").read_bytes()
        assert source.size() == len(whole)
        assert source.read(100, 50) == whole[100:150]
        assert source.read(len(whole) - 3, 10) == whole[-3:]
        assert source.read(len(whole) + 3, 10) == b""
    finally:
        source.release()


def test_a_missing_remote_path_is_reported_with_its_name(settings: dict[str, str]) -> None:
    access = access_of(settings)
    with pytest.raises(NoJournal, match=f"at or below s3a://{BUCKET}/nothing"):
        journal_files([f"s3a://{BUCKET}/nothing"], access=access)
    with pytest.raises(NoJournal, match=r"s3a://nobucket/a cannot be listed: .*NO_SUCH_BUCKET"):
        journal_files(["s3a://nobucket/a"], access=access)
    with pytest.raises(NoJournal, match=r"not read through swift://.*s3a://, .*hdfs://, .*gs://, abfs://"):
        journal_files(["swift://container/a"])


@pytest.mark.skipif(shutil.which("hadoop") is not None, reason="there is a Hadoop here")
def test_hdfs_without_hadoop_says_what_is_missing() -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(
        NoJournal, match=r"hdfs://name:8020 cannot be reached: .*(libhdfs.*HADOOP_HOME|libjvm.*JAVA_HOME)"
    ):
        journal_files(["hdfs://name:8020/archive"])


def test_urls_lose_the_slashes_that_mean_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert normal("s3a://bucket//a/b/") == "s3a://bucket/a/b"
    assert normal("s3a://bucket/") == "s3a://bucket"
    assert normal("hdfs:///a/") == "hdfs:///a"
    assert normal("file:///a//b") == normal("file:/a/b") == "/a/b"
    assert normal("a") == str(tmp_path / "a")


def test_the_bucket_s_own_setting_wins_then_the_general_one_then_the_environment() -> None:
    general = {"fs.s3a.endpoint": "minio:9000", "fs.s3a.connection.ssl.enabled": "false"}
    own = {**general, "fs.s3a.bucket.lake.endpoint": "https://other"}
    environment = {"AWS_ENDPOINT_URL": "http://third", "AWS_REGION": "eu-central-1"}
    assert _s3("lake", {}, {}) == {}
    found = _s3("lake", {}, environment)
    assert (found["endpoint_override"], found["scheme"], found["region"]) == ("third", "http", "eu-central-1")
    found = _s3("lake", general, environment)
    assert (found["endpoint_override"], found["scheme"]) == ("minio:9000", "http")
    assert (_s3("lake", own, environment)["endpoint_override"], _s3("lake", own, {})["scheme"]) == ("other", "https")
    assert _s3("sea", own, {})["endpoint_override"] == "minio:9000"
    anonymous = {"fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"}
    assert _s3("lake", anonymous, {}) == {"anonymous": True}


def test_a_secret_is_not_shown(store: Path) -> None:
    file = replace(journal_files([str(store)])[0], access=access_of({"spark.hadoop.fs.s3a.secret.key": "hidden"}))
    assert "hidden" in str(file.access)
    assert "hidden" not in repr(file)


@pytest.mark.service
@pytest.mark.parametrize("table", ["records", "files"])
def test_spark_reads_the_same_there_and_here(
    table: str, store: Path, settings: dict[str, str], spark: SparkSession
) -> None:
    from pyspark.testing import assertDataFrameEqual

    url = put(settings, store, "spark")
    local = spark.read.format("tandemmq").options(table=table, follow="tail")
    remote = spark.read.format("tandemmq").options(table=table, follow="tail").options(**settings)
    both = [reader.load(path).drop("store", "path") for reader, path in ((local, str(store)), (remote, url))]
    assert both[0].count() > 0
    assertDataFrameEqual(*both)
    assert {row.store for row in remote.load(url).select("store").distinct().collect()} == {url}


@pytest.mark.service
def test_jobs_take_the_settings_of_the_session(
    store: Path, settings: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    from tandemmq.pipeline.jobs import composition, verify
    from tandemmq.pipeline.jobs.tables import Sources

    url = put(settings, store, "jobs")
    for name, value in settings.items():
        spark.conf.set(f"spark.hadoop.{name}", value)
    try:
        for job in (verify, composition):
            assert job.run(spark, Sources((url,)), str(tmp_path)).is_clean
        balance = spark.read.parquet(str(tmp_path / "balance")).collect()
        sizes = [(file.file, file.size, 0) for file in journal_files([str(store)], is_tail_wanted=True)]
        assert sorted((row.file, row.bytes, row.difference) for row in balance) == sizes
    finally:
        for name in settings:
            spark.conf.unset(f"spark.hadoop.{name}")
