"""Run test suites of other projects against this broker: ``python -m tandemmq.bench.suites KIND CHECKOUT``.

    stomp.py          github jasonrbriggs/stomp.py
    rabbitmq-stomp    github rabbitmq/rabbitmq-server (deps/rabbitmq_stomp/test/python_SUITE_data/src)
    activemq-stomp    github apache/activemq (activemq-stomp/target/test-classes)
    activemq-jms      github apache/activemq (activemq-unit-tests/target/test-classes)
    joram             github apache/activemq-artemis (tests/joram-tests/target/test-classes)

Nothing is fetched, and nothing of a checkout is kept. Python suites are copied to a temporary directory, names that
only their broker has are replaced by those that every broker has (``/exchange/amq.fanout/x`` is a topic here), and run
with pytest. The tests of Java suites must be compiled already, by the instructions of the suite; where they use a
broker of their own process, they get one outside (``bench.outside``): this one, or with ``--broker activemq`` ActiveMQ
5.17. docs/compatibility.md lists the results, and the reasons of the differences.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from tandemmq.bench.outside import suite
from tandemmq.bench.peers.server import TandemMQ

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


KINDS = {"stomp.py": copy_stomp_py, "rabbitmq-stomp": copy_rabbitmq}


@click.command()
@click.argument("kind", type=click.Choice(sorted([*KINDS, *suite.KINDS])))
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
        if kind in suite.KINDS:
            outcomes = suite.run(kind, checkout, jars, into, which, only, jobs)
            if results is not None:
                suite.write(outcomes, results)
            click.echo(suite.table(outcomes))
            sys.exit(any(outcome.state in ("failed", "hung") for outcome in outcomes))
        with ExitStack() as running:
            if port is None:
                port = running.enter_context(TandemMQ(into / "broker", broker="suite")).port
            files = KINDS[kind](checkout, into, port)
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly",
                       "--rootdir", str(into), "-c", os.devnull, "--tb=line", *options, *map(str, files)]  # fmt: skip
            status = subprocess.run(command, check=False, cwd=into).returncode
    sys.exit(status)


if __name__ == "__main__":
    main()
