"""The unit file, as systemd reads it, and what it expects of `tandemmq run`."""

import configparser
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tests.support import forked
from tests.support.acceptance.broker_process import WAIT_SECONDS_MAX, wait_until
from tests.support.acceptance.docker_image import SYSTEMD, base_image, built, demand_docker, run
from tests.support.acceptance.load import Books
from tests.support.acceptance.systemd_machine import Machine
from tests.support.acceptance.under_load import demand_kept, under_load
from tests.support.prove import IS_PROOF
from tests.support.tree import ROOT as TREE

UNIT = TREE / "deploy" / "tandemmq.service"
NOWHERE = ("--stomp", "127.0.0.1:0", "--openwire", "off", "--admin", "off")


@pytest.mark.service
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    # systemd wants the program to be there; which one it is says nothing about the unit.
    copy = tmp_path / "tandemmq.service"
    copy.write_text(UNIT.read_text().replace("/opt/tandemmq/bin/tandemmq", str(shutil.which("true"))))
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    about_us = [line for line in result.stderr.splitlines() if "tandemmq" in line]
    assert about_us == []


def test_a_standby_is_ready_and_watched_and_a_wrong_setting_is_not_repeated() -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert service["NotifyAccess"] == "main"
    assert int(service["WatchdogSec"]) > 0
    assert service["WatchdogSignal"] == "SIGKILL"  # wherever the process hangs, its lock must become free
    assert service["Restart"] == "always"
    assert service["RestartPreventExitStatus"] == "2"
    assert service["User"] != "root"


@contextmanager
def service(name: str, data: Path, folder: Path) -> Iterator[Callable[[str], str]]:
    """A broker as the unit starts it; ``heard(text)`` waits until it sends a notification with ``text``."""
    address = folder / f"notify-{name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(WAIT_SECONDS_MAX)
        with (folder / f"{name}.log").open("w") as output:
            process = forked.Popen(
                [sys.executable, "-m", "tandemmq", "run", f"--data={data}", f"--name={name}", *NOWHERE],
                env={**os.environ, "PYTHONPATH": str(TREE), "NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "3000000"},
                stdout=output,
                stderr=output,
            )

        def heard(text: str) -> str:
            lines: list[str] = []
            while not lines or text not in lines[-1]:
                try:
                    lines.append(manager.recv(4096).decode())
                except TimeoutError:
                    log = (folder / f"{name}.log").read_text()
                    pytest.fail(f"{name} never said {text!r}; it said {lines} and logged:\n{log}")
            return lines[-1]

        try:
            yield heard
            process.terminate()
            assert process.wait(WAIT_SECONDS_MAX) == 0
        finally:
            process.kill()
            process.wait()


@pytest.mark.promise("systemd")
def test_master_and_standby_tell_systemd_that_they_are_ready_and_alive(tmp_path: Path) -> None:
    with service("a", tmp_path / "data", tmp_path) as a:
        assert "STATUS=master" in a("READY=1")
        a("WATCHDOG=1")
        with service("b", tmp_path / "data", tmp_path) as b:
            assert "STATUS=standby" in b("READY=1")
            b("WATCHDOG=1")


# -- two machines with systemd -------------------------------------------------------------------------------------


@pytest.fixture
def machines(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, require_service: Callable[[object, str], None]
) -> Iterator[tuple[Machine, Machine]]:
    if not IS_PROOF:
        pytest.skip("TANDEMMQ_PROVE is not set")
    demand_docker(require_service)
    base = base_image("base-systemd", SYSTEMD)
    volume = f"tandemmq-test-{os.getpid()}"
    with built(base, tmp_path_factory.mktemp("context")) as image, ExitStack() as stack:
        run("docker", "volume", "create", volume)
        stack.callback(run, "docker", "volume", "rm", "--force", volume)
        made = []
        for name, port in (("one", free_port()), ("two", free_port())):
            made.append(Machine(image.name, name, volume, port, tmp_path))
            stack.callback(made[-1].remove)
        yield made[0], made[1]
        for machine in made:
            print(machine.journal())


@pytest.mark.service
@pytest.mark.prove
@pytest.mark.timeout(900)
def test_systemd_runs_a_pair_ends_one_that_hangs_and_hands_over_when_it_stops_one(
    machines: tuple[Machine, Machine],
) -> None:
    one, two = machines
    for machine, role in ((one, "master"), (two, "standby")):
        machine.systemctl("start", "tandemmq")  # returns when the unit is ready: a standby is, too
        machine.until_role(role)
        assert machine.shows("ActiveState") == "active"

    def hang(books: Books) -> None:
        one.systemctl("kill", "--signal=STOP", "tandemmq")
        two.until_role("master")
        one.until_role("standby")
        assert one.shows("NRestarts") == "1"

    def stop(books: Books) -> None:
        two.systemctl("stop", "tandemmq")
        one.until_role("master")
        assert (two.shows("ActiveState"), two.shows("ExecMainStatus")) == ("inactive", "0")

    books, (hung, stopped) = under_load([one.port, two.port], hang, stop)
    print(
        f"without a receipt: {hung:.2f} s until the watchdog of 4 s ended a stopped master, {stopped:.3f} s at a stop"
    )
    demand_kept(books)

    two.put("/etc/tandemmq/tandemmq.toml", "[broker]\nnam = 'two'\n")
    two.systemctl("start", "--no-block", "tandemmq")
    wait_until(lambda: two.shows("ActiveState") == "failed", "a wrong setting ends it for good")
    assert (two.shows("ExecMainStatus"), two.shows("NRestarts")) == ("2", "0")
