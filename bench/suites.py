"""Run test suites of other projects against this broker: ``python -m tandemmq.bench.suites KIND CHECKOUT``.

    stomp.py          github jasonrbriggs/stomp.py
    rabbitmq-stomp    github rabbitmq/rabbitmq-server (deps/rabbitmq_stomp/test/python_SUITE_data/src)
    activemq-stomp    github apache/activemq (activemq-stomp/target/test-classes)
    activemq-jms      github apache/activemq (activemq-unit-tests/target/test-classes)
    joram             github apache/activemq-artemis (tests/joram-tests/target/test-classes)

Nothing is fetched, and nothing of a checkout is kept. Python suites are copied to a temporary directory, names that
only their broker has are replaced by those that every broker has (``/exchange/amq.fanout/x`` is a topic here), and run
with pytest. The tests of Java suites must be compiled already, by the instructions of the suite. They run class by
class. If a test starts a broker in its own process, it gets one in another process instead (``bench.outside``): this
broker, or with ``--broker activemq`` ActiveMQ 5.17. docs/compatibility.md lists the results, and the reasons of the
differences.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from tandemmq.bench.peers.ports import free_port
from tandemmq.bench.peers.server import TandemMQ

# ---- Java suites

JAVA = Path(__file__).parent / "outside/java"
LIBRARIES = Path("/usr/share/activemq/lib")
TESTING = [Path("/usr/share/java") / name for name in ("junit4.jar", "hamcrest-all.jar")]
CLASS_SECONDS_MAX = 420.0  # the longest needs 300 s with any broker
_OPENED = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.util", "java.text")]
_JVM = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *_OPENED]

# References of a test class that looks into the broker, or replaces a part of it.
_INNER = re.compile(
    rb"org/apache/activemq/(network|proxy|store/(?!PersistenceAdapter[^F]|kahadb/KahaDBPersistenceAdapter|memory/MemoryPersistenceAdapter)|plugin|broker/(jmx|ft|cluster|view|interceptors|inteceptors|scheduler"
    rb"|util/(?!TimeStamping)|region/(?!policy)|TransportConnection;)|jaas|util/osgi|transport/(http|mqtt|amqp|ws|multicast|discovery"
    rb"|fanout|nio|auto)|ra/|partition|spring|xbean|pool|security/(?!Simple|Authori[sz]ation|Authentication|TempDest))"
    rb"|org/springframework|org/apache/directory|org/apache/derby|org/jmock|org/mockito|org/apache/commons/dbcp"
)


# Classes that need no broker (codecs, filters, JNDI, transports by themselves), and load tests.
_OTHER = re.compile(
    r"\.(command|filter|jndi|management|memory|openwire\.v\d+|peer|selector|tcp|udp|util|vm|perf|soaktest|load|memtest"
    r"|config|tool)\.|(Soak|Load|Perf\w*|\w*Ssl\w*)Test$"
)


@dataclass(frozen=True)
class Kind:
    """A suite: the place of its classes, the choice of those to run, and our classes that go with them."""

    classes: str
    chosen: Callable[[str, bytes], bool]
    ours: tuple[str, ...] = ("shadow",)
    properties: tuple[str, ...] = ()


def _is_stomp(name: str, code: bytes) -> bool:
    # The classes for TLS and auto:// (not supported) repeat the same tests; load tests check no behaviour.
    return not re.search(r"(SSL|Ssl|Auth|Auto|Load|Support)", name.rpartition(".")[2])


def _is_jms(name: str, code: bytes) -> bool:
    return not _INNER.search(code) and not _OTHER.search(name)


KINDS = {
    "activemq-stomp": Kind("activemq-stomp/target/test-classes", _is_stomp),
    "activemq-jms": Kind("activemq-unit-tests/target/test-classes", _is_jms),
    "joram": Kind(
        "tests/joram-tests/target/test-classes",
        lambda name, code: ".conform." in name,
        ("shadow", "joram"),
        ("-Djoram.provider=outside.properties",),
    ),
}


@dataclass
class Outcome:
    """Outcome of one test: passed, failed, hung, ignored, or n/a, and why."""

    kind: str
    where: str
    test: str
    state: str
    why: str


@dataclass
class Run:
    directory: Path
    classes: Path
    jars: list[Path]
    port: int
    kind: Kind
    tests: str = ""
    outcomes: list[Outcome] = field(default_factory=list)

    def path(self, *ours: str) -> str:
        own = [self.directory / "ours" / each for each in ours]
        return ":".join(
            map(str, [*own, self.classes, *self.jars, *TESTING, f"{LIBRARIES}/*", f"{LIBRARIES}/optional/*"])
        )


def run(
    kind: str, checkout: Path, jars: Sequence[Path], directory: Path, broker: str, only: str, jobs: int
) -> list[Outcome]:
    """Return the outcomes against `broker`, tandemmq or activemq, of the tests that match `only`: CLASS#TEST."""
    text = KINDS[kind]
    only, _, tests = only.partition("#")
    classes = checkout / text.classes
    if not classes.is_dir():
        raise SystemExit(f"{classes} is not there: compile the tests of the suite first, by its instructions")
    running = Run(directory, classes, list(jars), free_port(), text, tests)
    _compile(running)
    peer = ["java", "-Xmx384m", *_JVM, "-cp", running.path("peer"), "OutsideActiveMQ"]
    command = [sys.executable, "-m", "tandemmq.bench.outside.brokers", str(running.port), broker, str(directory), *peer]
    with (directory / "brokers.log").open("w") as log:
        brokers = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
    try:
        assert brokers.stdout is not None
        brokers.stdout.readline()  # it listens
        with ThreadPoolExecutor(jobs) as pool:
            for outcomes in pool.map(lambda name: list(_class(kind, running, name)), _chosen(running, only)):
                running.outcomes += outcomes
                for outcome in outcomes:
                    if outcome.state in ("failed", "hung"):
                        print(f"{outcome.state} {outcome.where}.{outcome.test}: {outcome.why[:300]}", flush=True)
    finally:
        os.killpg(brokers.pid, signal.SIGKILL)
        brokers.wait()
    return running.outcomes


def _compile(running: Run) -> None:
    """Compile our classes: java/*, each to its own directory."""
    for part in ("shadow", "peer", *running.kind.ours[1:]):
        source, target = JAVA / part, running.directory / "ours" / part
        shutil.copytree(source, target)
        sources = [str(file) for file in source.rglob("*.java")]
        path = running.path("shadow") if part != "peer" else running.path()
        subprocess.run(
            ["javac", "-nowarn", "-proc:none", "-Xlint:none", "-d", str(target), "-cp", path, *sources], check=True
        )


def _chosen(running: Run, only: str) -> list[str]:
    found = []
    for file in sorted(running.classes.rglob("*Test.class")):
        name = str(file.relative_to(running.classes))[: -len(".class")].replace("/", ".")
        code = b"".join(part.read_bytes() for part in [file, *file.parent.glob(f"{file.stem}$*.class")])
        if re.search(only, name) and running.kind.chosen(name, code) and not _is_abstract(file.read_bytes()):
            found.append(name)
    return found


def _is_abstract(code: bytes) -> bool:
    """Return whether the access flags, which are after the constants of a class file, say abstract."""
    place, count, index = 10, int.from_bytes(code[8:10], "big"), 1
    while index < count:
        tag = code[place]
        if tag == 1:
            place += 3 + int.from_bytes(code[place + 1 : place + 3], "big")
        else:
            place += 4 if tag == 15 else 3 if tag in (7, 8, 16, 19, 20) else 9 if tag in (5, 6) else 5
        index += 2 if tag in (5, 6) else 1
    return bool(int.from_bytes(code[place : place + 2], "big") & 0x0400)


def _class(kind: str, running: Run, name: str) -> Iterator[Outcome]:
    """Run a class in its own JVM and temporary directory."""
    where = running.directory / "work" / name
    where.mkdir(parents=True)
    command = [
        "java", "-Xmx768m", *_JVM, *running.kind.properties,
        f"-Doutside.port={running.port}", f"-Doutside.directory={where / 'brokers'}", f"-Dbasedir={where}",
        "-cp", running.path(*running.kind.ours), "outside.Runner", name, running.tests,
    ]  # fmt: skip
    with (where / "log").open("w") as log:
        jvm = subprocess.Popen(
            command, cwd=where, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
    timer = threading.Timer(CLASS_SECONDS_MAX, jvm.kill)
    timer.start()
    short = name.rpartition(".")[2]
    begun, is_whole = "", False
    try:
        assert jvm.stdout is not None
        for line in jvm.stdout:
            if line == "#end\n":
                is_whole = True
                continue
            state, test, why = line.rstrip("\n").split("\t")
            begun = test if state == "start" else ""
            if state != "start":
                yield Outcome(kind, name, test, state, why)
        if not is_whole:
            yield Outcome(kind, name, begun or "(class)", "hung", f"{short} did not end in {CLASS_SECONDS_MAX:.0f} s")
    finally:
        timer.cancel()
        jvm.kill()
        jvm.wait()
        shutil.rmtree(where / "brokers", ignore_errors=True)


def table(outcomes: Sequence[Outcome]) -> str:
    counted = Counter(outcome.state for outcome in outcomes)
    classes = len({outcome.where for outcome in outcomes})
    return f"{classes} classes, {len(outcomes)} tests: " + ", ".join(
        f"{count} {state}" for state, count in sorted(counted.items())
    )


def write(outcomes: Sequence[Outcome], file: Path) -> None:
    file.write_text("".join(json.dumps(asdict(outcome)) + "\n" for outcome in outcomes))


# ---- Python suites

# The files of stomp.py that talk to a broker by plain STOMP; the others need TLS with other host names, a websocket,
# IPv6 of a container, or no broker at all.
STOMP_PY = (
    "test_activemq", "test_basic", "test_context", "test_nonascii", "test_override_threading", "test_s10", "test_s11",
    "test_s12", "test_threading",
)  # fmt: skip
# The files of RabbitMQ about STOMP, not about its queues and rights.
RABBITMQ = (
    "parsing", "errors", "connect_disconnect", "ack", "reliability", "transactions", "destinations", "redelivered",
    "unsubscribe",
)  # fmt: skip
_EXCHANGES = re.compile(r"/exchange/amq\.(fanout|direct|topic)(/)?")


def copy_stomp_py(checkout: Path, into: Path, port: int) -> list[Path]:
    shutil.copytree(checkout / "tests", into / "tests")
    os.environ.update(STD_HOST="127.0.0.1", STD_PORT=str(port), PYTHONPATH=str(checkout))  # its own client
    return [into / "tests" / f"{name}.py" for name in STOMP_PY]


def copy_rabbitmq(checkout: Path, into: Path, port: int) -> list[Path]:
    source = checkout / "deps/rabbitmq_stomp/test/python_SUITE_data/src"
    for file in source.glob("*.py"):
        text = _EXCHANGES.sub(lambda found: f"/topic/{found[1]}{'.' if found[2] else ''}", file.read_text())
        (into / file.name).write_text(text)
    for module in ("pika", "rabbitman"):  # modules that inspect RabbitMQ
        (into / f"{module}.py").write_text("")
    os.environ.update(STOMP_PORT=str(port), AMQP_PORT="1", PYTHONPATH=str(into))
    return [into / f"{name}.py" for name in RABBITMQ]


PYTHON = {"stomp.py": copy_stomp_py, "rabbitmq-stomp": copy_rabbitmq}


# ---- the command


@click.command()
@click.argument("kind", type=click.Choice(sorted([*PYTHON, *KINDS])))
@click.argument("checkout", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("options", nargs=-1)
@click.option("--port", type=int, help="Port of a running broker. Default: start one.")
@click.option(
    "--broker",
    "which",
    type=click.Choice(["tandemmq", "activemq"]),
    default="tandemmq",
    help="Java suites: the broker to test.",
)
@click.option("--only", default="", help="Java suites: CLASS#TEST, regular expressions for both.")
@click.option("--jars", type=click.Path(path_type=Path), multiple=True, help="Java suites: further jars.")
@click.option("--jobs", default=2, show_default=True, help="Java suites: classes at once.")
@click.option("--results", type=click.Path(path_type=Path), help="Java suites: file for the outcome of each test.")
def main(
    kind: str, checkout: Path, options: tuple[str, ...], port: int | None, which: str, only: str,
    jars: tuple[Path, ...], jobs: int, results: Path | None,
) -> None:  # fmt: skip
    """Run the suite KIND at CHECKOUT; OPTIONS are pytest's, after ``--``."""
    with tempfile.TemporaryDirectory(prefix="tandemmq-suite.") as directory:
        into = Path(directory)
        if kind in KINDS:
            outcomes = run(kind, checkout, jars, into, which, only, jobs)
            if results is not None:
                write(outcomes, results)
            click.echo(table(outcomes))
            sys.exit(any(outcome.state in ("failed", "hung") for outcome in outcomes))
        with ExitStack() as running:
            if port is None:
                port = running.enter_context(TandemMQ(into / "broker", broker="suite")).port
            files = PYTHON[kind](checkout, into, port)
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly",
                       "--rootdir", str(into), "-c", os.devnull, "--tb=line", *options, *map(str, files)]  # fmt: skip
            status = subprocess.run(command, check=False, cwd=into).returncode
    sys.exit(status)


if __name__ == "__main__":
    main()
