"""Runs the STOMP test suites of others against this broker: ``python -m bench.suites KIND CHECKOUT``.

    stomp.py          github jasonrbriggs/stomp.py
    rabbitmq-stomp    github rabbitmq/rabbitmq-server (deps/rabbitmq_stomp/test/python_SUITE_data/src)

Nothing is fetched, and nothing of a checkout is kept: it is copied to a temporary directory, names that only their
broker has are put into those that every broker has (``/exchange/amq.fanout/x`` is a topic here), and run with pytest.
What was seen, and why what differs does, is told in docs/compatibility.md.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from bench.peers.ports import free_port

# Of stomp.py's files those that talk to a broker by plain STOMP; the others want TLS with names of their own, a
# websocket, IPv6 of a container, or no broker at all.
STOMP_PY = (
    "test_activemq", "test_basic", "test_context", "test_nonascii", "test_override_threading", "test_s10", "test_s11",
    "test_s12", "test_threading",
)  # fmt: skip
# Of RabbitMQ's those that are about STOMP, and not about its queues and rights.
RABBITMQ = (
    "parsing", "errors", "connect_disconnect", "ack", "reliability", "transactions", "destinations", "redelivered",
    "unsubscribe",
)  # fmt: skip
_EXCHANGES = re.compile(r"/exchange/amq\.(fanout|direct|topic)(/)?")
START_SECONDS_MAX = 30.0


def copy_stomp_py(checkout: Path, into: Path, port: int) -> list[Path]:
    shutil.copytree(checkout / "tests", into / "tests")
    os.environ.update(STD_HOST="127.0.0.1", STD_PORT=str(port), PYTHONPATH=str(checkout))  # its own client
    return [into / "tests" / f"{name}.py" for name in STOMP_PY]


def copy_rabbitmq(checkout: Path, into: Path, port: int) -> list[Path]:
    source = checkout / "deps/rabbitmq_stomp/test/python_SUITE_data/src"
    for file in source.glob("*.py"):
        text = _EXCHANGES.sub(lambda found: f"/topic/{found[1]}{'.' if found[2] else ''}", file.read_text())
        (into / file.name).write_text(text)
    for module in ("pika", "rabbitman"):  # what they look into RabbitMQ with
        (into / f"{module}.py").write_text("")
    os.environ.update(STOMP_PORT=str(port), AMQP_PORT="1", PYTHONPATH=str(into))
    return [into / f"{name}.py" for name in RABBITMQ]


KINDS = {"stomp.py": copy_stomp_py, "rabbitmq-stomp": copy_rabbitmq}


@click.command()
@click.argument("kind", type=click.Choice(sorted(KINDS)))
@click.argument("checkout", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("options", nargs=-1)
@click.option("--port", type=int, help="Of a broker that runs; else one is started.")
def main(kind: str, checkout: Path, options: tuple[str, ...], port: int | None) -> None:
    """Run the suite KIND that is at CHECKOUT; OPTIONS are pytest's, after ``--``."""
    with tempfile.TemporaryDirectory(prefix="tandemmq-suite.") as directory:
        into = Path(directory)
        broker = None
        if port is None:
            port = free_port()
            broker = subprocess.Popen(
                [sys.executable, "-m", "tandemmq", "run", "--data", str(into / "data"), "--name", "suite",
                 "--stomp", f"127.0.0.1:{port}", "--openwire", "off", "--admin", "off", "--log-level", "warning"]
            )  # fmt: skip
            _await_port(port)
        try:
            files = KINDS[kind](checkout, into, port)
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly",
                       "--rootdir", str(into), "-c", os.devnull, "--tb=line", *options, *map(str, files)]  # fmt: skip
            status = subprocess.run(command, check=False, cwd=into).returncode
        finally:
            if broker is not None:
                broker.terminate()
                broker.wait()
    sys.exit(status)


def _await_port(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    main()
