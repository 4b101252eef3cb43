"""The checksums of everything, in parallel: what is damaged, and which messages it concerns.

A torn tail and what stands behind an end are no damage: nobody was promised what stands there. They are listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from broker.pipeline.columns import BAD_SUM, BATCHES, BEHIND_THE_END, GAP, OK, RECORDS, TORN, UNSUMMED
from broker.pipeline.jobs.summary import Summary
from broker.pipeline.jobs.tables import head, read, write
from broker.pipeline.table import size

DAMAGE: Final = (BAD_SUM, GAP)
UNPROMISED: Final = (TORN, BEHIND_THE_END)


def damage(batches: DataFrame) -> DataFrame:
    """store, file, start, stop, status, detail of everything that does not count, in its order; ``is_damage`` says
    whether it was once promised to somebody."""
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


def concerned(records: DataFrame) -> DataFrame:
    """The records that can be read within damage, with their commands, destinations and message ids, in order.

    What they say is not sure: the checksum of their batch is wrong, or they cannot be decoded.
    """
    columns = ("store", "file", "offset", "length", "command", "destination_type", "destination", "message_id")
    return records.where(~F.col("is_sound")).select(*columns).orderBy("store", "file", "offset")


def checked(batches: DataFrame) -> DataFrame:
    """store, files, batches, sound, unsummed, damaged, damaged_bytes: one row for each store, in order."""

    def of(*statuses: str) -> Column:
        return F.col("status").isin(*statuses)

    return (
        batches.groupBy("store")
        .agg(
            F.countDistinct("file").alias("files"),
            F.count_if(of(OK, UNSUMMED, BAD_SUM)).alias("batches"),
            F.count_if(of(OK)).alias("sound"),
            F.count_if(of(UNSUMMED)).alias("unsummed"),
            F.count_if(of(*DAMAGE)).alias("damaged"),
            F.sum(F.when(of(*DAMAGE), F.col("length")).otherwise(0)).alias("damaged_bytes"),
        )
        .orderBy("store")
    )


def run(spark: SparkSession, sources: Sequence[str], out: str) -> Summary:
    """Write ``checked``, ``damage`` and ``concerned`` below ``out``. Not clean when there is damage."""
    batches = read(spark, sources, BATCHES).cache()
    written = {
        "checked": write(checked(batches), out, "checked"),
        "damage": write(damage(batches), out, "damage"),
    }
    batches.unpersist()
    written["concerned"] = write(concerned(read(spark, sources, RECORDS)), out, "concerned")
    of_stores = spark.read.parquet(written["checked"]).orderBy("store")
    places = spark.read.parquet(written["damage"]).orderBy("store", "file", "start")
    messages = spark.read.parquet(written["concerned"]).orderBy("store", "file", "offset")
    tables = (
        head(
            of_stores,
            "Checked",
            ("store", "files", "batches", "sound", "unsummed", "damaged", "damaged_bytes"),
        ),
        head(places, "What does not count", ("store", "file", "start", "stop", "status", "detail")),
        head(
            messages,
            "Records within damage",
            ("store", "file", "offset", "command", "destination", "message_id"),
        ),
    )
    sums = of_stores.agg(F.sum("batches"), F.sum("unsummed"), F.sum("damaged"), F.sum("damaged_bytes")).first()
    assert sums is not None, "an aggregate without groups has one row"
    return Summary("verify", findings(*(number or 0 for number in sums)), tables, is_clean=not sums[2], written=written)


def findings(batches: int, unsummed: int, damaged: int, damaged_bytes: int) -> tuple[str, ...]:
    """What was found, in sentences."""
    if damaged:
        first = f"{damaged:,} places are damaged, {size(damaged_bytes)} in all."
    else:
        first = f"No damage: {batches:,} batches were checked."
    if unsummed:
        return first, f"{unsummed:,} batches are whole but have no checksum: ActiveMQ before 5.9 wrote none."
    return (first,)
