"""Journals as a stream through a real Spark: triggers, checkpoints, errors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.pipeline.growing_store import GrowingStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

# A Spark that starts takes its time where much else runs.
pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]

WAIT_SECONDS_MAX = 120.0
SCHEMA = "store STRING, file INT, offset BIGINT, message_id STRING, text STRING"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GrowingStore]:
    made = GrowingStore(tmp_path / "stores" / "a")
    yield made
    made.close()


def filled(store: GrowingStore, files: int) -> None:
    for _ in range(files):
        store.add(5)
        store.rotate()


class Lake:
    """Messages of all stores below a directory, on their way into Parquet with a checkpoint."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.stores = root / "stores"
        self.out = str(root / "out")
        self.checkpoint = root / "checkpoint"

    def start(self, trigger: dict[str, Any], **options: str) -> StreamingQuery:
        stream = (
            self.spark.readStream.format("tandemmq")
            .schema(SCHEMA)
            .options(table="messages", **options)
            .load(str(self.stores))
        )
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).start(self.out)

    def fill(self, **options: str) -> StreamingQuery:
        """Read all present messages in one query."""
        from tests.support.pipeline.stream_driver import until_its_end  # needs PySpark

        return until_its_end(lambda: self.start({"availableNow": True}, **options))

    @property
    def ids(self) -> list[str]:
        return [row["message_id"] for row in self.read().select("message_id").collect()]

    def read(self) -> DataFrame:
        return self.spark.read.schema(SCHEMA).parquet(self.out)

    def offsets(self) -> list[dict[str, Any]]:
        """Return the offsets of each batch, from the checkpoint."""
        files = sorted(self.checkpoint.glob("offsets/[0-9]*"), key=lambda path: int(path.name))
        found = [json.loads(path.read_text().splitlines()[-1]) for path in files]
        assert all(isinstance(offsets, dict) for offsets in found)
        return found


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    yield Lake(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


def test_each_run_reads_the_files_since_the_last_one(lake: Lake, store: GrowingStore) -> None:
    filled(store, 3)
    query = lake.fill(maxFilesPerTrigger="1")
    assert [offsets["stores"][str(store.directory)]["file"] for offsets in lake.offsets()] == [2, 3, 4]
    progress = query.recentProgress[0]
    assert progress["numInputRows"] == 5
    assert json.loads(progress["sources"][0]["latestOffset"])["stores"][str(store.directory)]["file"] == 4
    assert sorted(lake.ids) == sorted(store.ids)
    filled(store, 1)
    other = GrowingStore(store.directory.parent / "b", 100)
    filled(other, 1)
    other.close()
    lake.fill()
    lake.fill()
    assert sorted(lake.ids) == sorted(store.ids + other.ids)
    assert lake.read().filter("text is null").count() == 0
    (batch,) = (
        lake.spark.read.format("tandemmq")
        .option("table", "messages")
        .load(str(lake.stores))
        .selectExpr("count(*)")
        .collect()
    )
    assert batch[0] == len(store.ids + other.ids)


def test_a_batch_whose_end_was_not_noted_is_taken_again_and_stored_once(lake: Lake, store: GrowingStore) -> None:
    filled(store, 2)
    lake.fill(maxFilesPerTrigger="1")
    last = max(lake.checkpoint.glob("commits/[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink()
    filled(store, 1)
    store.archive(2)
    lake.fill(maxFilesPerTrigger="1")
    assert last.exists()
    assert sorted(lake.ids) == sorted(store.ids)


def test_a_live_tail_is_followed(lake: Lake, store: GrowingStore) -> None:
    from tests.support.pipeline.stream_driver import until_its_end  # needs PySpark

    def wait_for_all(query: StreamingQuery) -> None:
        end = time.monotonic() + WAIT_SECONDS_MAX
        while store.ids and (not Path(lake.out).exists() or len(lake.ids) < len(store.ids)):
            if not query.isActive:
                query.awaitTermination()  # raises its error
            assert time.monotonic() < end, query.recentProgress
            time.sleep(0.05)

    def follow(query: StreamingQuery) -> None:
        wait_for_all(query)  # of the query before
        for _ in range(len(store.ids) // 3, 2):
            store.add(3)
            wait_for_all(query)
            store.rotate()
        query.stop()

    until_its_end(lambda: lake.start({"processingTime": "100 milliseconds"}, follow="tail"), follow)
    store.add(2)
    lake.fill(follow="tail")
    assert sorted(lake.ids) == sorted(store.ids)


def test_a_file_that_is_gone_stops_the_query_or_is_counted(lake: Lake, store: GrowingStore) -> None:
    filled(store, 1)
    lake.fill()
    filled(store, 2)
    store.remove(2)
    query = lake.start({"availableNow": True})
    with pytest.raises(Exception, match=r"db-2\.log of .* was deleted before this stream had read it.*archive_data_lo"):
        query.awaitTermination()
    query = lake.fill(failOnDataLoss="false")
    assert (
        json.loads(query.recentProgress[0]["sources"][0]["endOffset"])["stores"][str(store.directory)]["skipped"] == 1
    )
    assert sorted(lake.ids) == sorted(store.ids[:5] + store.ids[10:])
