"""Entry point for ``spark-submit``: use the session that it prepared, then run the job that the arguments name.

spark-submit --master yarn --py-files tandemmq-pipeline.zip submit.py composition /archive --out /reports/monday
"""

from __future__ import annotations


def main() -> None:
    """Run ``tandemmq pipeline`` with the arguments of the process, in spark-submit's session; ends the process."""
    from pyspark.sql import SparkSession

    from tandemmq.cli.pipeline import pipeline

    # All times in results are UTC, whatever the cluster's setting.
    spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    try:
        pipeline(prog_name="submit.py")
    finally:
        spark.stop()
