"""Programs of a fair comparison, fetched and compiled when they are needed, and kept.

They stay in the directory that TANDEMMQ_CLIENTS names. Maven, Go and pip fetch what they need with their own settings.
A program whose sources or commands change is built again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from shutil import rmtree, which
from typing import Final

from tandemmq.bench.peers.server import TREE, PeerMissing

SOURCES: Final = Path(__file__).with_name("programs")
DIRECTORY: Final = "TANDEMMQ_CLIENTS"
NATS: Final = "2.15.3"
ARTEMIS: Final = "2.40.0"
_UNPACK: Final = "mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.8.1:unpack -DoutputDirectory=."
#: No broker runs these, so another commit of them needs no new installation.
_NOT_PRODUCT: Final = ("bench", "docs", "tests", "CHANGELOG.md")


def activemq_6() -> Path:
    """Return the jars of ActiveMQ 6.3.1: its broker and its JMS client."""
    return (
        built("bench-activemq-6", ("pom.xml",), "mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib") / "lib"
    )


def artemis() -> Path:
    """Return the distribution of Artemis."""
    command = f"{_UNPACK} -Dartifact=org.apache.activemq:apache-artemis:{ARTEMIS}:zip:bin"
    return built("bench-artemis", (), command) / f"apache-artemis-{ARTEMIS}"


def nats_server() -> Path:
    """Return the program nats-server."""
    command = f"go install github.com/nats-io/nats-server/v2@v{NATS}"
    return built("bench-nats", (), command, environment={"GOBIN": "."}) / "nats-server"


def qpid_jms() -> Path:
    """Return the jars of Qpid JMS."""
    command = "mvn -q -B -f qpid.xml dependency:copy-dependencies -DoutputDirectory=lib"
    return built("bench-qpid-jms", ("qpid.xml",), command) / "lib"


def jms_load(jars: Path, client: str, package: str = "jakarta.jms") -> str:
    """Return the class path of JmsLoad with the JMS client in ``jars``; ``package``: that of its interfaces."""
    command = f"javac -nowarn -cp {jars}/* -d . JmsLoad.java"
    directory = built(f"bench-jms-{client}", ("JmsLoad.java",), command, replaced=("jakarta.jms", package))
    return f"{directory}:{jars}/*"


def stomp_load() -> Path:
    compiler = "gcc" if which("gcc") else "cc"
    return built("bench-stomp", ("stomp_load.c",), f"{compiler} -O2 -o stomp_load stomp_load.c") / "stomp_load"


def amqp_load() -> Path:
    command = "g++ -std=c++17 -O2 -o amqp_load amqp_load.cpp -lqpid-proton-cpp -lpthread"
    return built("bench-amqp", ("amqp_load.cpp",), command) / "amqp_load"


def go_load() -> Path:
    """Return the load of MQTT and of JetStream."""
    packages = "github.com/eclipse/paho.mqtt.golang@v1.5.1 github.com/nats-io/nats.go@v1.55.0"
    commands = ("go mod init load", f"go get {packages}", "go build -mod=mod -o load .")
    return built("bench-go", ("load.go",), *commands) / "load"


def installed(compile_: bool) -> str:
    """Return the Python of a new environment with the result of ``pip install .``: compiled, or plain."""
    name = "bench-compiled" if compile_ else "bench-plain"
    commands = (
        f"{sys.executable} -m venv own",
        f"own/bin/python -m pip install --quiet --disable-pip-version-check {TREE}",
        f"own/bin/python -c 'from tandemmq.compiled import is_compiled; assert is_compiled() is {compile_}'",
    )
    environment = {"TANDEMMQ_COMPILE": str(int(compile_)), "PYTHONPATH": ""}
    return str(built(name, (), *commands, environment=environment, version=_product()) / "own/bin/python")


def _product() -> str:
    """Return a hash that changes when a file of the product does."""
    others = [f":!{each}" for each in _NOT_PRODUCT]
    text = b"".join(
        subprocess.run(["git", *command, "--", ".", *others], cwd=TREE, capture_output=True, check=True).stdout
        for command in (["ls-files", "-s"], ["diff", "HEAD"])
    )
    return hashlib.sha256(text).hexdigest()


def built(
    name: str,
    sources: tuple[str, ...],
    *commands: str,
    beside: Path = SOURCES,
    environment: Mapping[str, str] | None = None,
    replaced: tuple[str, str] = ("", ""),
    version: str = "",
) -> Path:
    """Run ``commands`` in a directory with copies of the ``sources``, files of the directory ``beside``. Return it.

    Nothing runs if the same was built before. Raises PeerMissing if a program is not installed or a command fails; the
    message is its output."""
    root = Path(os.environ.get(DIRECTORY) or Path(tempfile.gettempdir(), "tandemmq-clients"))
    root.mkdir(parents=True, exist_ok=True)
    directory = root / name
    texts = {source: (beside / source).read_text().replace(*replaced) for source in sources}
    recipe = repr((commands, texts, version))
    with (root / f"{name}.lock").open("w") as lock:  # another run may need the same
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = directory / "built"
        if stamp.exists() and stamp.read_text() == recipe:
            return directory
        rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for source, text in texts.items():
            (directory / source).write_text(text)
        own = {
            **os.environ,
            **{key: str(directory) if value == "." else value for key, value in (environment or {}).items()},
        }
        for command in commands:
            words = shlex.split(command)
            if which(words[0]) is None and not (directory / words[0]).exists():
                raise PeerMissing(f"{words[0]} is not installed")
            done = subprocess.run(
                words, cwd=directory, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )
            if done.returncode:
                raise PeerMissing(f"{command}\n{done.stdout[-4000:]}")
        stamp.write_text(recipe)
    return directory
