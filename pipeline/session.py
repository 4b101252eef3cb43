"""Spark session of the jobs: it listens only on the loopback address, uses UTC, and lets its workers import this
package.

An existing session (spark-submit, a notebook) is used without changes.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

from tandemmq.pipeline.failures import cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
EXTRA: Final = "spark"
DEFAULT_MASTER: Final = "local[*]"
# Setting for Spark's progress bars on stderr, one for each long stage.
PROGRESS: Final = "spark.ui.showConsoleProgress"
_LOOPBACK: Final = "127.0.0.1"
# Limit of the journal bytes for a session that is tuned for little data: then the start of Java and Spark's planning
# take most of the time, not the rows. The tuning: few tasks, no generated code, no adaptive plans, and only Java's fast
# compiler.
SMALL_BYTES: Final = 128 << 20
_SMALL: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
_SMALL_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_JAVA_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_MASTER: Final = re.compile(r"local(\[[^]]+\])?|local-cluster\[[^]]+\]|yarn|spark://.+|k8s://.+")
_STANDALONE: Final = "spark://"
# Time limit for the connection to a standalone master. Spark itself would try for a minute.
_MASTER_SECONDS: Final = 5.0
_SILENCE_SECONDS: Final = 2.0
# Log configuration: only errors, without those that a failing job reports anyway.
LOG4J: Final = Path(__file__).with_name("log4j2.properties")


class NoSpark(Exception):
    """Spark cannot be used; the message states what to install."""


def session(
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    *,
    name: str = "tandemmq",
    bytes: int | None = None,
) -> SparkSession:
    """Return the active session, or a new one with this ``master`` and ``conf``; the source "tandemmq" is registered.
    ``bytes``: size of the data to read; for little data, a local session is tuned to start and answer faster. None:
    unknown.

    Raises NoSpark if the extra ``spark`` or Java is missing, or if ``master`` is given although a session is active.
    """
    try:
        import pyarrow  # noqa: F401
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NoSpark(f"{error.name} is not installed: pip install 'tandemmq[{EXTRA}]'") from error
    from tandemmq.pipeline import register

    active = SparkSession.getActiveSession()
    if active is not None:
        if master is not None:
            raise NoSpark("a Spark session is active already, and has its master")
        register(active)
        return active
    master = master or DEFAULT_MASTER
    check_master(master)
    check_java()
    settings = {**defaults(master, bytes), **(conf or {})}
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with environment(environment_of_java(master, settings)):
        try:
            made = builder.getOrCreate()
        except (Py4JError, PySparkException) as error:
            raise NoSpark(f"Spark did not start: {cause(error)}") from error
    register(made)
    return made


def defaults(master: str, bytes: int | None = None) -> dict[str, str]:
    """Return the default settings of a new session. Settings of the caller override them."""
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        PROGRESS: str(sys.stderr is not None and sys.stderr.isatty()).lower(),
        "spark.sql.catalogImplementation": "in-memory",
    }
    if master.startswith("local"):
        settings |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
        if bytes is not None and bytes <= SMALL_BYTES:
            settings |= _SMALL
            chosen = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {os.environ.get('JAVA_TOOL_OPTIONS', '')}"
            if "-XX:" not in chosen:  # Java ends if two garbage collectors are chosen
                settings["spark.driver.extraJavaOptions"] = _SMALL_JAVA
    return settings


def silence(spark: SparkSession) -> None:
    """Turn off Java's log. This uses another thread, because the connection of the calling thread may wait for Java."""
    asking = Thread(target=spark.sparkContext.setLogLevel, args=("OFF",), daemon=True)
    asking.start()
    asking.join(_SILENCE_SECONDS)


def environment_of_java(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for Java and its child processes: this interpreter, the loopback address if
    ``master`` is local, and a quiet log. Values that the user has set, in the environment or in ``settings``, are not
    overridden.
    """
    wanted = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if master.startswith("local"):
        wanted["SPARK_LOCAL_IP"] = _LOOPBACK
    wanted = {name: value for name, value in wanted.items() if name not in os.environ}
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    given = (options, os.environ.get("JAVA_TOOL_OPTIONS", ""), settings.get("spark.driver.extraJavaOptions", ""))
    if not any("log4j" in words for words in given) and "SPARK_CONF_DIR" not in os.environ:
        wanted["SPARK_SUBMIT_OPTS"] = f'{options} "-Dlog4j2.configurationFile={LOG4J.as_uri()}"'.strip()
    return wanted


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables within this context, and restore the former values at the end."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def check_master(master: str) -> None:
    """Raise NoSpark for an invalid master, and for a standalone master that accepts no connection."""
    if not _MASTER.fullmatch(master):
        raise NoSpark(
            f"{master!r} is no master of Spark: local[*], local[4], spark://host:7077, yarn, k8s://https://host:443"
        )
    if not master.startswith(_STANDALONE):
        return
    failed = []
    for address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_MASTER_SECONDS).close()
            return
        except (OSError, ValueError) as error:
            failed.append(f"{address}: {error}")
    raise NoSpark(f"no master of Spark answers at {master} ({'; '.join(failed)})")


def check_java() -> None:
    """Raise NoSpark unless a Java version that Spark supports is installed."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    needed = f"Spark needs Java {JAVA_MIN} or newer"
    if java is None or not os.path.exists(java):
        raise NoSpark(f"{needed}, and there is {'none at ' + java if java else 'none'}: install one, or set JAVA_HOME")
    found = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)
    version = _JAVA_VERSION.search(found.stderr + found.stdout)
    if version is None:
        raise NoSpark(f"{needed}, and {java} does not show its version")
    if int(version[1]) < JAVA_MIN:
        raise NoSpark(f"{needed}; {java} is Java {version[1]}")
