"""A Spark driver that a test kills: it streams the messages of a store into Parquet, or prints the content.

stream_driver.py follow STORE LAKE        until it is killed
stream_driver.py finish STORE LAKE        all that is there now; then prints as JSON what lake and store hold
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tandemmq.pipeline.session import session

LOG = Path(__file__).with_name("log4j2.properties")
COLUMNS = "store STRING, file INT, offset BIGINT, command STRING, message_id STRING, text STRING"


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
    writer.trigger(**trigger).start(f"{lake}/messages").awaitTermination()

    found = spark.read.parquet(f"{lake}/messages")
    read = spark.read.format("tandemmq").schema(COLUMNS).options(**options).load(store)
    contents = {
        name: sorted((row["message_id"], row["text"]) for row in frame.filter("command = 'ADD_MESSAGE'").collect())
        for name, frame in (("lake", found), ("store", read))
    }
    print(json.dumps(contents))


if __name__ == "__main__":
    main(*sys.argv[1:])
