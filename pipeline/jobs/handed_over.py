"""Check of archived files: each file is compared with its manifest."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tandemmq.pipeline.engine import F
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.manifests import manifest_of, mistrusted
from tandemmq.pipeline.places import Access, open_file, place_of
from tandemmq.store.maintenance.manifest import CHUNK_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AS_HANDED_OVER: Final = "as_handed_over"
CHANGED: Final = "changed"
CHANGED_BEHIND: Final = "changed_behind_the_end"  # a deposed master wrote after the end; this does not count
MISTRUSTED: Final = "mistrusted"
DAMAGE: Final = (CHANGED, MISTRUSTED)

COLUMNS: Final = "store STRING, file INT, path STRING, status STRING, is_damage BOOLEAN, detail STRING"
_DIGESTED: Final = "store STRING, file INT, path STRING, counted BIGINT, counted_sha256 STRING, sha256 STRING"
# Maximum number of tasks that read at the same time, independent of the cluster.
TASKS_MAX: Final = 256


def handed_over(spark: SparkSession, sources: Sources) -> DataFrame:
    """Return store, file, path, status (see above), is_damage, detail: one row for each manifest, unordered."""
    access = sources.access_in(spark)
    rows = []
    directories: dict[str, str] = {}
    for file in sources.files(access):
        directories[posixpath.dirname(file.path)] = file.store
        manifest = manifest_of(place_of(file.path, access), file.path, file.size)
        if manifest is not None:
            rows.append((file.store, file.file, file.path, manifest.counted, manifest.counted_sha256, manifest.sha256))
    wrong = []
    for directory, store in sorted(directories.items()):
        place = place_of(directory, access)
        for path, why in mistrusted(place, directory, place.entries(directory)):
            wrong.append((store, None, path, MISTRUSTED, True, why))

    def read_digests(path: str, counted: int) -> list[str]:
        return list(_digests(path, counted, access))

    digests = F.udf(read_digests, "ARRAY<STRING>", useArrow=False)
    found = (
        spark.createDataFrame(rows, _DIGESTED)
        .repartition(max(1, min(len(rows), TASKS_MAX)), "path")
        .withColumn("found", digests("path", "counted"))
    )
    counted_is = F.col("found")[0] == F.col("counted_sha256")
    whole_is = F.col("found")[1] == F.col("sha256")
    read = found.select(
        "store",
        "file",
        "path",
        F.when(whole_is, AS_HANDED_OVER).when(counted_is, CHANGED_BEHIND).otherwise(CHANGED).alias("status"),
        (~counted_is).alias("is_damage"),
        F.when(~whole_is, F.concat(F.lit("its SHA-256 is "), F.col("found")[1])).alias("detail"),
    )
    return read.unionByName(spark.createDataFrame(wrong, COLUMNS))


def findings(manifests: int, damaged: int) -> tuple[str, ...]:
    """Return the findings; empty if no file has a manifest."""
    if damaged:
        return (f"{damaged:,} archived files differ from their manifests.",)
    return (f"{manifests:,} archived files match their manifests.",) if manifests else ()


def _digests(path: str, counted: int, access: Access) -> Iterator[str]:
    """Yield the SHA-256 of the bytes that count, then the SHA-256 of all bytes. Only one chunk is in memory."""
    source = open_file(path, access)
    try:
        digest, at = hashlib.sha256(), 0
        for stop in (counted, source.size()):
            while at < stop and (data := source.read(at, min(CHUNK_BYTES, stop - at))):
                digest.update(data)
                at += len(data)
            yield digest.hexdigest()
    finally:
        source.release()
