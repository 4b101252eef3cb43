"""Run compiled Java tests, class by class, against brokers that they start outside (``bench.outside.brokers``)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tandemmq.bench.peers.ports import free_port

JAVA = Path(__file__).parent / "java"
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


# Classes that need no broker (codecs, filters, JNDI, transports by themselves), or that only load one.
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
    # Over TLS and by auto:// (not supported) the same tests run again; the load tests only load.
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
        raise SystemExit(f"{classes} is not there: compile the tests of the suite first, as it tells")
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
    """Return whether the access flags, which stand behind the constants of a class file, say abstract."""
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
