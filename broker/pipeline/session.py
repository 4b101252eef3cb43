"""A Spark session that listens on the loopback only, counts in UTC, and whose workers find this package.

A session that is there already (spark-submit, a notebook) is used as it is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
EXTRA: Final = "spark"
DEFAULT_MASTER: Final = "local[*]"
_LOOPBACK: Final = "127.0.0.1"
_JAVA_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


class NoSpark(Exception):
    """Spark cannot run here; the message says what to install."""


def session(
    master: str | None = None, conf: Mapping[str, str] | None = None, *, name: str = "tandemmq"
) -> SparkSession:
    """The active session, or a new one with this ``master`` and ``conf``, with the source "tandemmq" registered.

    Raises NoSpark when the extra or a Java is missing, or when a session is there and ``master`` asks for another.
    """
    try:
        import pyarrow  # noqa: F401
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NoSpark(f"{error.name} is not installed: pip install 'tandemmq[{EXTRA}]'") from error
    from broker.pipeline import register

    active = SparkSession.getActiveSession()
    if active is not None:
        if master is not None:
            raise NoSpark("a Spark session is active already, and has its master")
        register(active)
        return active
    check_java()
    settings = {**defaults(master or DEFAULT_MASTER), **(conf or {})}
    builder = SparkSession.builder.master(master or DEFAULT_MASTER).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    prepare_workers()
    made = builder.getOrCreate()
    register(made)
    return made


def defaults(master: str) -> dict[str, str]:
    """The settings of a session of ours, before those that a caller gives."""
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "true",
        "spark.sql.catalogImplementation": "in-memory",
    }
    if master.startswith("local"):
        settings |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    return settings


def prepare_workers() -> None:
    """Processes that Spark starts take this interpreter, and import this package from where it is imported here.

    It changes the environment, which is what they inherit. An interpreter that the user chose stays.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    room = str(Path(broker.__file__).resolve().parents[1])
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if room not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([room, *known])


def check_java() -> None:
    """Raises NoSpark unless there is a Java that Spark runs on."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    needed = f"Spark needs Java {JAVA_MIN} or newer"
    if java is None or not os.path.exists(java):
        raise NoSpark(f"{needed}, and there is {'none at ' + java if java else 'none'}: install one, or set JAVA_HOME")
    found = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)
    version = _JAVA_VERSION.search(found.stderr + found.stdout)
    if version is None:
        raise NoSpark(f"{needed}, and {java} does not say which it is")
    if int(version[1]) < JAVA_MIN:
        raise NoSpark(f"{needed}; {java} is Java {version[1]}")
