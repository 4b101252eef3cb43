"""The start of a broker's process: the modules that it imports at once, and those that it imports later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port

_POSTPONED = """
import sys
from tandemmq.broker import run
from tandemmq.broker.core.selector import compile_selector, is_quick, prepare
from tandemmq.config.load import load

def broker(*parts):
    print(is_quick("colour = 'red'"), "lark" in sys.modules)
    prepare()
    print(is_quick("colour = 'red'"))
    from tandemmq.broker.core.selector import grammar
    made = grammar._made_parser.cache_info().misses
    for is_classic in (False, True):
        compile_selector("colour = 'red'", is_classic=is_classic)
    print(grammar._made_parser.cache_info().misses - made)
    sys.exit()

run.Broker = broker
run.run_broker(load(environ={}))
"""

#: Runs the command line; at the moment that ``wanted`` describes it prints the modules, and ends the broker.
_RUN = """
import os, signal, socket, sys, threading, time
from tandemmq.cli import main

port = int(sys.argv.pop(1))

def connected():
    try:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"CONNECT\\naccept-version:1.2\\nhost:x\\n\\n\\0")
            return client.recv(1000).startswith(b"CONNECTED")
    except OSError:
        return False

def ready():
    return hasattr(sys.modules.get("tandemmq.broker.wiring_admin"), "make_admin")

def watch():
    while not (connected if port else ready)():
        time.sleep(0.01)
    print(*list(sys.modules), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=watch, daemon=True).start()
main()
"""

#: What only some settings need, by the name of a module or a package.
_LIBRARIES = ["aiohttp", "aiomqtt", "kazoo", "ldap3", "opentelemetry", "prometheus_client", "rich", "sqlalchemy"]
_OURS = [
    "bench",
    "broker.admin.server",
    "broker.bridges.bridge",
    "broker.engine.tracing",
    "broker.protocols.mqtt.session",
    "broker.protocols.openwire",
    "broker.replication",
    "broker.security.logins",
    "client",
    "config.from_xml",
    "locker.kubernetes",
    "locker.sql",
    "locker.zookeeper",
    "pipeline",
    "simulator",
    "store.migration",
    "store.tools",
]
SPECIAL = {*_LIBRARIES, *(f"tandemmq.{each}" for each in _OURS)}


def test_a_selector_is_compiled_beside_the_loop_until_the_parsers_are_made() -> None:
    """In a separate process, because other tests have compiled some here."""
    done = subprocess.run([sys.executable, "-c", _POSTPONED], timeout=60, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False", "True", "0"]


def test_a_broker_imports_only_what_its_settings_need(tmp_path: Path) -> None:
    port = free_port()
    found = run(tmp_path, port, "--stomp", f"127.0.0.1:{port}", "--openwire", "off", "--admin", "off")
    assert "tandemmq.broker.protocols.stomp.session" in found
    assert found & SPECIAL == set()


@pytest.mark.parametrize(("option", "module"), [("--openwire", "openwire.conversation"), ("--mqtt", "mqtt.session")])
def test_no_client_waits_for_the_import_of_its_protocol(tmp_path: Path, option: str, module: str) -> None:
    port = free_port()
    others = ["--openwire", "off", "--admin", "off", option, f"127.0.0.1:{free_port()}"]
    found = run(tmp_path, port, "--stomp", f"127.0.0.1:{port}", *others)
    assert f"tandemmq.broker.protocols.{module}" in found


def test_a_standby_imports_all_that_a_master_needs(tmp_path: Path) -> None:
    """A failover must not wait for the import of the admin server and of the parsers of selectors."""
    port = free_port()
    words = ["run", "--data", str(tmp_path), "--name", "a", "--stomp", f"127.0.0.1:{port}"]
    command = [sys.executable, "-m", "tandemmq", *words, "--openwire", "off", "--admin", "off"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as master:
        try:
            assert master.stderr is not None
            assert any("(master)" in line for line in master.stderr)
            options = ["--name", "b", "--stomp", f"127.0.0.1:{free_port()}", "--openwire", "off"]
            found = run(tmp_path, 0, *options, "--admin", f"127.0.0.1:{free_port()}")
            assert {"aiohttp", "lark"} <= found
        finally:
            master.terminate()
            master.communicate(timeout=60)


def run(directory: Path, port: int, *options: str) -> set[str]:
    """Run a broker until it serves a client at ``port``, or for port 0 until it has imported the rest. Return the
    modules that it has imported then."""
    command = [sys.executable, "-c", _RUN, str(port), "run", "--data", str(directory), *options]
    done = subprocess.run(command, timeout=120, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())
