"""Unmodified clients of other projects with a pair of brokers whose master is killed, and records of what they sent and
received.

    python -m tests.support.interop.real_clients                       all of them, three kills each: `make clients`
    python -m tests.support.interop.real_clients stompjs-ws camel-4    these
    python -m tests.support.interop.real_clients --build autopaho      install and compile only

A program of clients/ sends and receives numbers as the documentation of its client library recommends. Its arguments
are the addresses of both brokers, separated by commas, and the destination. It sends until its standard input ends.
books.py describes the lines of its standard output.

Installed and compiled programs stay in the directory that TANDEMMQ_CLIENTS names.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Final

from tandemmq.bench.peers import programs
from tandemmq.bench.peers.ports import free_port
from tandemmq.bench.peers.server import PeerMissing
from tests.support.acceptance.broker_process import BrokerProcess, serving, wait_until
from tests.support.interop.books import Books
from tests.support.security.authority import Authority

PROGRAMS: Final = Path(__file__).with_name("clients")
KILLS: Final = 3
#: Number of messages that are confirmed and received before each kill and after the last one.
MESSAGES: Final = 300
SECONDS_MAX: Final = 120.0
QUEUE: Final = "/queue/clients"
#: By scheme of a client's addresses: the connector of the broker, and the destination as the client names it. If a
#: connector needs a client certificate, it is in {tls}.
CONNECTORS: Final[Mapping[str, tuple[str, str]]] = {
    "stomp": ("stomp://127.0.0.1:{port}", QUEUE),
    "ws": ("ws://127.0.0.1:{port}", QUEUE),
    "wss": ("wss://127.0.0.1:{port}", QUEUE),
    "mqtt": ("mqtt://127.0.0.1:{port}", "clients/numbers"),
    "mqtts": ("mqtt+ssl://127.0.0.1:{port}?needClientAuth=true", "clients/numbers"),
    "amqp": ("amqp://127.0.0.1:{port}", "clients"),
    "amqps": ("amqp+ssl://127.0.0.1:{port}", "clients"),
    "tcp": ("tcp://127.0.0.1:{port}", "clients"),
    "ssl": ("ssl://127.0.0.1:{port}?needClientAuth=true", "clients"),
}
PASSWORD: Final = "secret"


@dataclass(frozen=True, slots=True)
class Client:
    """``sources``: files of clients/. The commands of ``build`` run in a directory with copies of them, which is
    {build} in ``run``; {tls} contains root.pem, client.pem, client.p12 and trust.p12. ``scheme``: that of its
    addresses. Unless ``is_once``, a message may be stored twice."""

    name: str
    version: str
    scheme: str
    sources: tuple[str, ...]
    build: tuple[str, ...]
    run: str
    is_once: bool = True
    replaced: tuple[str, str] = ("", "")

    @property
    def missing(self) -> list[str]:
        """Return the programs for installation, compilation and run that are missing on this machine."""
        words = [command.split()[0] for command in (*self.build, self.run or self.build[0])]
        return sorted({word for word in words if not word.startswith("{") and which(word) is None})


def node(
    name: str,
    version: str,
    scheme: str,
    program: str,
    *packages: str,
    arguments: str = "",
    before: str = "",
    is_once: bool = True,
) -> Client:
    install = f"npm install --silent --no-fund --no-audit --prefix . {' '.join(packages)}"
    run = f"{before} node {{build}}/{program} {arguments}"
    return Client(name, version, scheme, (program,), (install,), run, is_once)


def go(name: str, version: str, package: str, *, scheme: str = "mqtt", is_once: bool = True) -> Client:
    program = f"{name}.go"
    commands = ("go mod init clients", f"go get {package}@{version}", "go build -mod=mod -o client .")
    return Client(name, version.removeprefix("v"), scheme, (program,), commands, "{build}/client", is_once)


def java(
    name: str,
    version: str,
    profile: str,
    *programs: str,
    scheme: str = "tcp",
    settings: str = "",
    options: str = "",
    is_once: bool = True,
    replaced: tuple[str, str] = ("", ""),
) -> Client:
    """Return a Java client. The last of its programs is the one that runs."""
    copy = f"mvn -q -B -P {profile} {settings} dependency:copy-dependencies -DoutputDirectory=lib"
    files = tuple(f"{each}.java" for each in programs)
    build = (copy, f"javac -nowarn -encoding UTF-8 -cp lib/* -d classes {' '.join(files)}")
    usual = "-Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp {build}/classes:{build}/lib/*"
    run = f"java {usual} {options} {programs[-1]}"
    return Client(name, version, scheme, ("pom.xml", *files), build, run, is_once, replaced)


STOMPJS: Final = "@stomp/stompjs@7.5.0"
MQTTJS: Final = "mqtt@5.16.0"
TRUST: Final = "env NODE_EXTRA_CA_CERTS={tls}/root.pem"
JAVA_TLS: Final = " ".join(
    f"-Djavax.net.ssl.{store}Store={{tls}}/{file}.p12 -Djavax.net.ssl.{store}StorePassword={PASSWORD}"
    for store, file in (("trust", "trust"), ("key", "client"))
)
CLIENTS: Final[Mapping[str, Client]] = {
    client.name: client
    for client in (
        node("stompjs-tcp", "7.5.0", "stomp", "stompjs.js", STOMPJS, "@stomp/tcp-wrapper@1.0.1"),
        node("stompjs-ws", "7.5.0", "ws", "stompjs.js", STOMPJS, "ws@8.23.0"),
        node("stompjs-wss", "7.5.0", "wss", "stompjs.js", STOMPJS, "ws@8.23.0", before=TRUST),
        node("stompit", "1.0.0", "stomp", "stompit.js", "stompit@1.0.0"),
        node("webstomp", "1.2.6", "ws", "webstomp.js", "webstomp-client@1.2.6", "ws@8.23.0"),
        node("mqttjs-3.1.1", "5.16.0", "mqtt", "mqttjs.js", MQTTJS, arguments="4"),
        node("mqttjs-5", "5.16.0", "mqtt", "mqttjs.js", MQTTJS, arguments="5"),
        node(
            "mqttjs-5-tls", "5.16.0", "mqtts", "mqttjs.js", MQTTJS, arguments="5",
            before=f"{TRUST} CERTIFICATE={{tls}}/client.pem",
        ),
        node(
            "nestjs", "12.1.1", "mqtt", "nestjs.js", MQTTJS, "@nestjs/core@12.5.1", "@nestjs/common@12.5.1",
            "@nestjs/microservices@12.1.1", "reflect-metadata@0.2.2", "rxjs@7.8.2",
        ),
        Client(
            "chromium", "stompjs 7.5.0", "ws", ("page.html", "stompjs.js", "chromium.py"),
            (f"npm install --silent --no-fund --no-audit --prefix . {STOMPJS}",),
            f"{sys.executable} {{build}}/chromium.py",
        ),
        Client(
            "net-stomp", "0.61", "stomp", ("net-stomp.pl",), ("perl -M'Net::Stomp 0.61' -e 1",),
            "perl {build}/net-stomp.pl",
        ),
        Client(
            "paho-c", "1.3.12", "mqtt", ("paho-c.c",), ("cc -o client paho-c.c -lpaho-mqtt3a",), "{build}/client"
        ),
        Client(
            "qpid-proton", "0.40.0", "amqp", ("qpid-proton.py",),
            (
                f"{sys.executable} -m venv venv",
                f"{sys.executable} -m pip --python venv/bin/python install --quiet python-qpid-proton==0.40.0",
            ),
            "{build}/venv/bin/python {build}/qpid-proton.py", is_once=False,
        ),
        Client(
            "uamqp", "1.6.11", "amqps", ("uamqp-client.py",),
            (
                f"{sys.executable} -m venv venv",
                f"{sys.executable} -m pip --python venv/bin/python install --quiet uamqp==1.6.11",
            ),
            "{build}/venv/bin/python {build}/uamqp-client.py {tls}/root.pem", is_once=False,
        ),
        Client(
            "proton-cpp", "0.37.0", "amqp", ("proton-cpp.cpp",),
            ("c++ -std=c++17 -O1 -o client proton-cpp.cpp -lqpid-proton-cpp -lpthread",), "{build}/client",
            is_once=False,
        ),
        node("rhea", "3.0.5", "amqp", "rhea.js", "rhea@3.0.5", is_once=False),
        go("go-amqp", "v1.7.0", "github.com/Azure/go-amqp", scheme="amqp", is_once=False),
        go("autopaho", "v0.23.0", "github.com/eclipse/paho.golang/autopaho"),
        go("paho-go", "v1.5.1", "github.com/eclipse/paho.mqtt.golang", is_once=False),
        Client(
            "rumqttc", "0.25.0", "mqtt", ("Cargo.toml", "rumqttc.rs"), ("cargo build --quiet",),
            "{build}/target/debug/client", is_once=False,
        ),
        Client(
            "fe2o3-amqp", "0.18.4", "amqp", ("fe2o3.toml", "fe2o3-amqp.rs"),
            ("mv fe2o3.toml Cargo.toml", "cargo build --quiet"), "{build}/target/debug/client", is_once=False,
        ),
        java(
            "activemq-5.17", "5.17.6", "jms", "Jms", settings="-Dactivemq=5.17.6", replaced=("jakarta.jms", "javax.jms")
        ),
        java("activemq-6.3", "6.3.1", "jms", "Jms", settings="-Dactivemq=6.3.1"),
        java(
            "activemq-6.3-tls", "6.3.1", "jms", "Jms", scheme="ssl", settings="-Dactivemq=6.3.1", options=JAVA_TLS
        ),
        java(
            "qpid-jms-1", "1.13.0", "qpid-jms", "QpidJms", scheme="amqp", settings="-Dqpid=1.13.0",
            replaced=("jakarta.jms", "javax.jms"),
        ),
        java("qpid-jms", "2.7.0", "qpid-jms", "QpidJms", scheme="amqp", settings="-Dqpid=2.7.0"),
        java("qpid-jms-shared", "2.7.0", "qpid-jms", "QpidJmsShared", scheme="amqp", settings="-Dqpid=2.7.0"),
        java(
            "qpid-jms-transacted", "2.7.0", "qpid-jms", "QpidJmsTransacted", scheme="amqp", settings="-Dqpid=2.7.0",
            is_once=False,  # a commit whose answer is lost may have succeeded; repeated, it stores the message twice
        ),
        java("qpid-spring", "6.2.19", "qpid-spring", "QpidSpring", scheme="amqp"),
        java("spring-3.5", "3.5.7", "spring", "Spring", settings="-Dboot=3.5.7"),
        java("spring-4.0", "4.0.7", "spring", "Spring", settings="-Dboot=4.0.7"),
        java("spring-relay", "3.5.7", "relay", "Relay", scheme="stomp", settings="-Dboot=3.5.7"),
        java("camel-4", "4.22.0", "camel", "Camel"),
        java("narayana", "7.3.3", "narayana", "Narayana"),
        java("jca", "activemq-ra 6.3.1", "jca", "Narayana", "Jca"),
    )
}  # fmt: skip
IN_CI: Final = ("stompjs-ws", "mqttjs-5", "activemq-6.3")
#: Clients whose compilation takes longer than the test.
IN_PROOFS: Final = (
    "autopaho", "qpid-proton", "qpid-jms", "qpid-jms-transacted", "qpid-spring", "rhea", "go-amqp",
)  # fmt: skip


def built(client: Client) -> Path:
    """Install the program of ``client``; return its directory. Raises PeerMissing."""
    if client.missing:
        raise PeerMissing(f"not installed: {', '.join(client.missing)}")
    return programs.built(client.name, client.sources, *client.build, beside=PROGRAMS, replaced=client.replaced)


class Program:
    """A running program of a client, and its records."""

    def __init__(self, client: Client, build: Path, addresses: str, directory: Path) -> None:
        self.books = Books()
        self._errors = directory / "errors"
        run = client.run.format(build=build, tls=directory)
        command = [*shlex.split(run), addresses, CONNECTORS[client.scheme][1]]
        with open(self._errors, "w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=directory
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def goes_on(self) -> None:
        """Wait until MESSAGES more are confirmed, and as many received."""
        confirmed, received = len(self.books.confirmed), len(self.books.received)

        def went_on() -> bool:
            more = len(self.books.confirmed) - confirmed, len(self.books.received) - received
            return min(more) >= MESSAGES

        self._wait(went_on, f"{MESSAGES} more messages are confirmed and received")

    def finish(self) -> None:
        """Wait until all sent messages are confirmed, and all confirmed ones received."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._wait(lambda: self.books.is_done, "nothing waits for a confirmation")
        self._wait(lambda: not self.books.lost, "all confirmed messages are received")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            code = self._process.poll()
            assert code is None, f"the program ended with {code}: {self._errors.read_text()[-4000:]}"
            return condition()

        try:
            wait_until(is_so, what, SECONDS_MAX)
        except AssertionError as error:
            notes = [*self.books.notes[-5:], self._errors.read_text()[-2000:]]
            raise AssertionError("\n".join([str(error), line_of(self.books), *notes])) from None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{") and line.endswith("\n"):  # some libraries print other lines; a kill may cut a line
                self.books.add(line)


def pair(scheme: str, directory: Path) -> tuple[list[BrokerProcess], list[int]]:
    """Start two brokers with one directory. Return them, and the ports of their only connectors."""
    uri, _ = CONNECTORS[scheme]
    encryption = ""
    if scheme in ("ssl", "mqtts", "wss", "amqps"):
        authority = Authority(directory, "root")
        encryption = f'[tls]\ncertificate = "{authority.certificate("broker")}"\nca = "{authority.root}"\n'
        own, password = authority.certificate("client"), f"pass:{PASSWORD}"
        authority.openssl("pkcs12", "-export", "-in", str(own), "-passout", password, "-out", f"{directory}/client.p12")
    if scheme == "ssl":
        trust = f"keytool -importcert -noprompt -file root.pem -keystore trust.p12 -storepass {PASSWORD}"
        subprocess.run(shlex.split(trust), cwd=directory, capture_output=True, check=True)
    brokers, ports = [], []
    for name in "ab":
        ports.append(free_port())
        settings = directory / f"{name}.toml"
        settings.write_text(f'[[connectors]]\nuri = "{uri.format(port=ports[-1])}"\n{encryption}')
        brokers.append(BrokerProcess(directory / "data", name, "--config", str(settings)))
        brokers[-1].leaves_stomp_to_settings = True
    return brokers, ports


def play(client: Client, build: Path, directory: Path, kills: int = KILLS) -> Books:
    """Run a client during ``kills`` kills of the master; return its records. Raises AssertionError if it does not
    continue."""
    brokers, ports = pair(client.scheme, directory)
    with serving(*brokers) as (master, standby):
        program = Program(client, build, ",".join(f"{client.scheme}://127.0.0.1:{port}" for port in ports), directory)
        try:
            program.goes_on()
            for _ in range(kills):
                master.kill()
                standby.wait_role("master")
                program.goes_on()
                master.start()
                master.wait_role("standby")
                master, standby = standby, master
            program.finish()
            wait_until(lambda: not prepared(master), "no branch is prepared: the recovery finishes them", SECONDS_MAX)
        finally:
            program.end()
    return program.books


def prepared(broker: BrokerProcess) -> list[dict[str, object]]:
    request = urllib.request.Request(f"http://127.0.0.1:{broker.admin}/api/v1/transactions")
    request.headers.update(broker.authorization)
    with urllib.request.urlopen(request) as answer:
        return [row for row in json.load(answer)["items"] if row["state"] == "prepared"]


COLUMNS: Final = ("sent", "confirmed", "received", "lost", "doubled", "again")


def line_of(books: Books) -> str:
    counts = (books.sent, len(books.confirmed), len(books.received), len(books.lost), len(books.doubled), books.again)
    return " ".join(f"{count:>9}" for count in counts)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="real_clients", description="Real clients, and kills of the master.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CLIENTS)}; all of them without one")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--build", action="store_true", help="install and compile only")
    parser.add_argument("--ci", action="store_true", help="those that CI runs, as far as their tools are installed")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - CLIENTS.keys():
        parser.error(f"no client {', '.join(sorted(unknown))}")
    in_ci = [name for name in IN_CI if not CLIENTS[name].missing] if options.ci else []
    chosen = [CLIENTS[name] for name in (*options.names, *in_ci) or CLIENTS]
    if options.ci and options.build:
        programs.activemq_6()  # for tests/interop
    is_good = True
    print(f"{'client':16} {'version':18} {'kills':>5} {' '.join(f'{name:>9}' for name in COLUMNS)}")
    for client in chosen:
        name = f"{client.name:16} {client.version:18}"
        try:
            build = built(client)
            if options.build:
                print(name, "is built", flush=True)
                continue
            with tempfile.TemporaryDirectory(prefix="tandemmq-client-") as directory:
                books = play(client, build, Path(directory), options.kills)
            problems = books.problems(is_once=client.is_once)
            print(name, f"{options.kills:>5}", line_of(books), *problems, flush=True)
        except (AssertionError, PeerMissing) as error:
            problems = [str(error)]
            print(name, f"FAILED: {error}", flush=True)
        is_good = is_good and not problems
    return 0 if is_good else 1


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM):  # so that brokers and programs end, too
        signal.signal(each, lambda number, frame: sys.exit(128 + number))
    sys.exit(main(sys.argv[1:]))
