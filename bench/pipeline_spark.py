"""A Spark session on two threads that reads journals, in a separate process: prints its figures as JSON.

``python -m tandemmq.bench.pipeline_spark CASE DIRECTORY LAST ROUNDS SCRATCH``; see CASES.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tandemmq.bench.driver.process import cost, descendants, peak_bytes
from tandemmq.bench.pipeline import KEYS, MESSAGES, closed_files, decode_buffer
from tandemmq.pipeline.jobs import composition
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.session import session

SETTINGS = {
    "spark.driver.memory": "3g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    # so that a file of binaryFile is a separate batch; batches of the source are left as they are
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
}
WORKER = b"pyspark.daemon"
KEYS_SCHEMA = "command STRING, destination STRING"


def source(spark: SparkSession, directory: str, last: int) -> DataFrame:
    wanted = spark.read.format("tandemmq").schema(KEYS_SCHEMA).option("toFile", str(last))
    return wanted.load(directory).groupBy(*KEYS).count()


def binary_file(spark: SparkSession, directory: str, last: int) -> DataFrame:
    """Read without a data source: Spark reads the files, and passes their bytes to the same decoder."""
    files = {file.path: file for file in closed_files(Path(directory), last)}

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
                yield from decode_buffer(files[path.as_py().removeprefix("file:")], content.as_buffer())

    read = spark.read.format("binaryFile").load(list(files)).select("path", "content")
    return read.mapInArrow(decode, KEYS_SCHEMA).groupBy(*KEYS).count()


def seconds(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def aggregates(spark: SparkSession, directory: str, last: int, rounds: int, scratch: str) -> dict[str, object]:
    """Run both ways in turn, after one round that warms up."""
    ways = {"source": source, "binary_file": binary_file}
    counts = {name: sum(row["count"] for row in way(spark, directory, last).collect()) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            before = cpu_seconds()
            times[name].append(seconds(way(spark, directory, last).collect))
            cpu[name].append(cpu_seconds() - before)
    return {"records": counts, "seconds": times, "cpu_seconds": cpu}


def bodies(spark: SparkSession, directory: str, last: int, rounds: int, scratch: str) -> dict[str, object]:
    """Read all messages with their bodies, and discard them; measure the peak memory of a worker."""
    read = spark.read.format("tandemmq").options(table=MESSAGES, toFile=str(last)).load(directory)
    write = read.write.format("noop").mode("overwrite")
    write.save()
    times = [seconds(write.save) for _ in range(rounds)]
    return {"seconds": times, "worker_peak_bytes": max(map(peak_bytes, workers()))}


def composed(spark: SparkSession, directory: str, last: int, rounds: int, scratch: str) -> dict[str, object]:
    """Run the job composition over all files, and check that every byte of each is accounted for."""
    out = f"{scratch}/composition"
    sources = Sources((directory,), is_tail_wanted=True)
    taken = seconds(lambda: composition.run(spark, sources, out))
    balance = spark.read.parquet(f"{out}/balance").collect()
    on_disk = {str(path): path.stat().st_size for path in Path(directory).glob("db-*.log")}
    return {
        "seconds": taken,
        "files": len(balance),
        "bytes": sum(row["bytes"] for row in balance),
        "bytes_on_disk": sum(on_disk.values()),
        "files_that_differ": sum(row["difference"] != 0 for row in balance),
    }


def workers() -> Iterator[int]:
    """Yield the processes that run Python for Spark."""
    for pid in descendants(os.getpid()):
        try:
            if WORKER in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield pid
        except FileNotFoundError:
            continue


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants, including those that have ended."""
    return cost(os.getpid()).cpu_seconds


CASES = {"aggregates": aggregates, "bodies": bodies, "composition": composed}


def main() -> None:
    case, directory, last, rounds, scratch = sys.argv[1:]
    spark = session("local[2]", SETTINGS | {"spark.local.dir": f"{scratch}/spark"}, name="bench")
    try:
        print(json.dumps(CASES[case](spark, directory, int(last), int(rounds), scratch)))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
