"""A Spark driver that a test kills: it streams the messages of a store into Parquet, or prints the content.

stream_driver.py follow STORE LAKE        until it is killed
stream_driver.py finish STORE LAKE        all that is there now; then prints as JSON what lake and store hold
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from tandemmq.pipeline.session import session

LOG = Path(__file__).with_name("log4j2.properties")
# Maximum number of starts of a query.
STARTS_MAX = 6
COLUMNS = "store STRING, file INT, offset BIGINT, command STRING, message_id STRING, text STRING"


def until_its_end(
    start: Callable[[], StreamingQuery], wait: Callable[[StreamingQuery], object] = StreamingQuery.awaitTermination
) -> StreamingQuery:
    """Start a query and wait for its end. A Python worker has 10 s to connect to Spark (PythonWorkerFactory), which is
    not enough on a very busy machine: then the query is started again. ``wait`` raises the error of the query."""
    for left in reversed(range(STARTS_MAX)):
        query = start()
        try:
            wait(query)
            break
        except StreamingQueryException as error:
            if not left or "failed to connect back" not in str(error):
                raise
            print(f"the query is started again: {str(error)[:200]}", file=sys.stderr)
    return query


def main(act: str, store: str, lake: str) -> None:
    spark = session(
        "local[2]",
        {
            "spark.driver.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
            f"-Dlog4j2.configurationFile=file:{LOG}",
        },
    )
    options = {"table": "messages", "follow": "tail"}
    stream = spark.readStream.format("tandemmq").schema(COLUMNS).options(**options).load(store)
    writer = stream.writeStream.format("parquet").option("checkpointLocation", f"{lake}/checkpoint")
    trigger = {"processingTime": "100 milliseconds"} if act == "follow" else {"availableNow": True}
    until_its_end(lambda: writer.trigger(**trigger).start(f"{lake}/messages"))

    found = spark.read.parquet(f"{lake}/messages")
    read = spark.read.format("tandemmq").schema(COLUMNS).options(**options).load(store)
    contents = {
        name: sorted((row["message_id"], row["text"]) for row in frame.filter("command = 'ADD_MESSAGE'").collect())
        for name, frame in (("lake", found), ("store", read))
    }
    print(json.dumps(contents))


if __name__ == "__main__":
    main(*sys.argv[1:])
