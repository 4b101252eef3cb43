"""A Spark session that listens only on the loopback address, uses UTC, and whose workers find this package.

An existing session (spark-submit, a notebook) is used as it is.
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
# Spark's own progress bars on stderr, one for each long stage.
PROGRESS: Final = "spark.ui.showConsoleProgress"
_LOOPBACK: Final = "127.0.0.1"
# Up to this many bytes of journals, Java's start and Spark's planning take the time, not the rows. So: few tasks, no
# generated code for each query, no adaptive plans, and only Java's quick compiler.
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
# A standalone master that is silent for this long is reported; Spark would try for a minute.
_MASTER_SECONDS: Final = 5.0
_SILENCE_SECONDS: Final = 2.0
# Logs errors only, and none that a failing job reports anyway.
LOG4J: Final = Path(__file__).with_name("log4j2.properties")


class NoSpark(Exception):
    """Spark cannot run here; the message names what to install."""


def session(
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    *,
    name: str = "tandemmq",
    bytes: int | None = None,
) -> SparkSession:
    """Return the active session, or a new one with this ``master`` and ``conf``, with the source "tandemmq" registered.
    ``bytes``: amount to read; a local session for little data starts and answers faster. None: any amount.

    Raises NoSpark when the extra or a Java is missing, or when a session is active and ``master`` is given.
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
    """Return the settings of our sessions, before those of the caller."""
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
            if "-XX:" not in chosen:  # two collectors at once end Java
                settings["spark.driver.extraJavaOptions"] = _SMALL_JAVA
    return settings


def silence(spark: SparkSession) -> None:
    """Turn off Java's log; also while the connection of the calling thread waits for Java."""
    asking = Thread(target=spark.sparkContext.setLogLevel, args=("OFF",), daemon=True)
    asking.start()
    asking.join(_SILENCE_SECONDS)


def environment_of_java(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for the start of Java, which its children inherit: this interpreter, the
    loopback address if ``master`` is local, a quiet log. The user's choices stay, in the environment or in
    ``settings``.
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
    """Set these variables, and restore them at the end."""
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
    """Raise NoSpark for an invalid master, and for a standalone one that accepts no connection."""
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
    """Raise NoSpark unless there is a Java that Spark runs on."""
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
