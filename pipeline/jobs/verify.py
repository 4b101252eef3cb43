"""Check all checksums in parallel: list damage and the messages in it, and archived files that differ from their
manifests.

A torn tail and bytes after the end of a file are listed, but are not damage: no receipt was sent for them.

The messages that damaged bytes name are listed if they can still be read. This part needs no Spark:

    | control record 28, perhaps damaged | record | record | ... the first that does not fit ends it

The result is not certain: a checksum shows that a byte is wrong, but not which.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from tandemmq.journal.format import CONTROL_SIZE, RECORD_HEADER, RECORD_HEADER_SIZE, USER_RECORD
from tandemmq.pipeline import columns
from tandemmq.pipeline.columns import ADD_MESSAGE, REMOVE_MESSAGE, UPDATE_MESSAGE
from tandemmq.pipeline.engine import F
from tandemmq.pipeline.jobs import gaps, handed_over
from tandemmq.pipeline.jobs.summary import Summary
from tandemmq.pipeline.jobs.tables import Results, Sources, head, only_row
from tandemmq.pipeline.places import Access, open_file
from tandemmq.pipeline.table import size
from tandemmq.store.records.commands import AddMessage, RemoveMessage, UpdateMessage, decode
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.message import SCHEMES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# Maximum number of bytes that are read of one place; a batch is shorter.
PLACE_BYTES_MAX: Final = 64 << 20
_NAMES: Final = {AddMessage: ADD_MESSAGE, UpdateMessage: UPDATE_MESSAGE, RemoveMessage: REMOVE_MESSAGE}


class Named(NamedTuple):
    """A record within damage that names a message."""

    offset: int
    length: int
    command: str
    destination_type: str
    destination: str
    message_id: str


def named(path: str, start: int, stop: int, access: Access = ()) -> list[Named]:
    """Return the records between ``start``, where a batch begins, and ``stop`` that name messages. ``access``: settings
    to reach a remote path. Raises FileNotFoundError, NotRegular, NoPlace, OSError."""
    source = open_file(path, access)
    try:
        content = source.read(start, min(stop - start, PLACE_BYTES_MAX))
    finally:
        source.release()
    return list(_named(content, start))


def _named(content: bytes, start: int) -> Iterator[Named]:
    at = CONTROL_SIZE
    while at + RECORD_HEADER_SIZE <= len(content):
        size, kind = RECORD_HEADER.unpack_from(content, at)
        if size < RECORD_HEADER_SIZE or at + size > len(content):
            return
        if kind == USER_RECORD and size > RECORD_HEADER_SIZE:
            found = _read(content[at + RECORD_HEADER_SIZE : at + size])
            if found is not None:
                yield Named(start + at, size, *found)
        at += size


def _read(payload: bytes) -> tuple[str, str, str, str] | None:
    try:
        command = decode(payload)
    except RecordDamaged:
        return None
    name = _NAMES.get(type(command))
    if name is None:
        return None
    named = command.add if isinstance(command, UpdateMessage) else command
    assert isinstance(named, AddMessage | RemoveMessage), "_NAMES has only these commands"
    return name, SCHEMES[named.destination.kind], named.destination.name, named.message_id


DAMAGE: Final = (columns.BAD_SUM, columns.GAP)
UNPROMISED: Final = (columns.TORN, columns.BEHIND_THE_END)
# Maximum number of damaged places whose messages are listed.
PLACES_MAX: Final = 1000
CONCERNED_COLUMNS: Final = (*columns.PLACE, "length", "command", *columns.NAME, "message_id")


def damage(batches: DataFrame) -> DataFrame:
    """Return store, file, start, stop, status, detail, is_damage of all stretches that do not count, in order.
    ``is_damage``: the bytes were confirmed to clients."""
    return (
        batches.where(F.col("status").isin(*DAMAGE, *UNPROMISED))
        .select(
            "store",
            "file",
            F.col("batch").alias("start"),
            (F.col("batch") + F.col("length")).alias("stop"),
            "status",
            F.col("status").isin(*DAMAGE).alias("is_damage"),
            "detail",
        )
        .orderBy("store", "file", "start")
    )


def unreadable(records: DataFrame) -> DataFrame:
    """Return the records of sound batches that cannot be decoded, with the columns of ``concerned``."""
    return records.where(~F.col("is_sound")).select(*CONCERNED_COLUMNS)


def concerned(spark: SparkSession, damage: DataFrame, files: DataFrame, access: Access = ()) -> DataFrame:
    """Return the records within damage that name a message and can still be read (``salvage``).

    At most PLACES_MAX places are read, on the driver.
    """
    places = (
        damage.where("is_damage")
        .join(files.select("store", "file", "path"), ["store", "file"])
        .orderBy("store", "file", "start")
        .limit(PLACES_MAX)
        .collect()
    )
    rows = [
        (place.store, place.file, *record)
        for place in places
        for record in named(place.path, place.start, place.stop, access)
    ]
    kinds = dict(columns.COLUMNS[columns.RECORDS])
    return spark.createDataFrame(rows, ", ".join(f"`{name}` {kinds[name]}" for name in CONCERNED_COLUMNS))


def checked(batches: DataFrame) -> DataFrame:
    """Return store, files, batches, sound, unsummed, damaged, damaged_bytes: one row for each store, in order."""

    def of(*statuses: str) -> Column:
        return F.col("status").isin(*statuses)

    return (
        batches.groupBy("store")
        .agg(
            F.countDistinct("file").alias("files"),
            F.count_if(of(columns.OK, columns.UNSUMMED, columns.BAD_SUM)).alias("batches"),
            F.count_if(of(columns.OK)).alias("sound"),
            F.count_if(of(columns.UNSUMMED)).alias("unsummed"),
            F.count_if(of(*DAMAGE)).alias("damaged"),
            F.sum(F.when(of(*DAMAGE), F.col("length")).otherwise(0)).alias("damaged_bytes"),
        )
        .orderBy("store")
    )


def run(spark: SparkSession, sources: Sources, out: str) -> Summary:
    """Write ``checked``, ``damage``, ``concerned`` and ``manifests`` below ``out``. The summary is not clean if there
    is damage, or if a file is missing."""
    sources = sources.fixed(spark)
    batches = sources.read(spark, columns.BATCHES).cache()
    results = Results(spark, out)
    of_stores = results.write(checked(batches), "checked").orderBy("store")
    places = results.write(damage(batches), "damage").orderBy("store", "file", "start")
    batches.unpersist()
    files = sources.read(spark, columns.FILES, ("store", "file", "path"))
    within = concerned(spark, places, files, sources.access_in(spark))
    lost = unreadable(sources.read(spark, columns.RECORDS, (*CONCERNED_COLUMNS, "is_sound")))
    messages = results.write(within.unionByName(lost), "concerned").orderBy("store", "file", "offset")
    manifests = results.write(handed_over.handed_over(spark, sources), "manifests")
    archived, changed = manifests.agg(F.count("*"), F.count_if("is_damage")).collect()[0]
    tables = [
        head(of_stores, "Checked", "store files batches sound unsummed damaged damaged_bytes"),
        head(places, "Bytes that do not count", "store file start stop status detail"),
        head(messages, "Records within damage", "store file offset command destination message_id"),
    ]
    if archived:
        others = manifests.where(F.col("status") != handed_over.AS_HANDED_OVER).orderBy("path")
        tables.append(head(others, "Archived files that differ from their manifests", "path status detail"))
    sums = only_row(of_stores.agg(*map(F.sum, ("batches", "unsummed", "damaged", "damaged_bytes"))))
    left_out = gaps.of_files(spark, sources)
    told = (
        *findings(*(number or 0 for number in sums)),
        *gaps.remarks(left_out, "their content is lost, unless a copy has it"),
        *handed_over.findings(archived, changed),
    )
    return Summary(
        "verify",
        told,
        tuple(tables),
        is_clean=not (sums[2] or changed) and left_out.is_certain,
        written=results.written,
        reached=sources.reached,
    )


def findings(batches: int, unsummed: int, damaged: int, damaged_bytes: int) -> tuple[str, ...]:
    """Return the findings."""
    if damaged:
        first = f"{damaged:,} places are damaged, {size(damaged_bytes)} in all."
    else:
        first = f"No damage: {batches:,} batches were checked."
    if unsummed:
        return first, f"{unsummed:,} batches are whole but have no checksum: ActiveMQ before 5.9 wrote none."
    return (first,)
