"""The log of a real broker: its settings change while the broker runs, and it never blocks the broker."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.acceptance.broker_process import BrokerProcess, serving, tandemmq, wait_until
from tests.support.tree import ROOT

SETTINGS = """
[security.ldap]
connection_password = "not-for-the-log"
[logging]
format = "json"
target = "file"
file = "{file}"
"""


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.promise("log-changes-at-runtime")
def test_levels_and_target_change_while_it_runs_and_each_change_is_told(tmp_path: Path) -> None:
    settings, first, second = tmp_path / "settings.toml", tmp_path / "first.log", tmp_path / "second.log"
    settings.write_text(SETTINGS.format(file=first))
    with serving(BrokerProcess(tmp_path / "data", "a", "--config", str(settings))) as (broker,):
        admin = f"http://127.0.0.1:{broker.admin}"
        events = [line.get("event") for line in lines_of(first)]
        assert events[0] == "started"
        assert "role-changed" in events

        refused = tandemmq("log-level", "brokr.net", "debug", "--admin", admin)
        assert refused.returncode == 1
        assert "there is no logger 'brokr.net'" in refused.stderr
        set_so = tandemmq("log-level", "broker.net", "debug", "--admin", admin, "--json")
        assert json.loads(set_so.stdout)["levels"] == {"tandemmq": "info", "tandemmq.broker.net": "debug"}
        wait_until(lambda: any(line.get("event") == "log-level-set" for line in lines_of(first)), "it is told")

        settings.write_text(SETTINGS.format(file=second) + 'level = "warning"\n[store]\ncheckpoint_interval = "7s"\n')
        broker.kill(signal.SIGHUP)
        wait_until(lambda: "restart-needed" in second.read_text() if second.exists() else False, "they are taken over")
        told = lines_of(second)
        messages = "\n".join(line["message"] for line in told)
        assert "logging.level is 'warning' now, and was 'info'" in messages
        assert f"logging.file is {str(second)!r} now, and was {str(first)!r}" in messages
        assert "store.checkpoint_interval was changed and applies from the next start" in messages
        shown = tandemmq("log-level", "--admin", admin)
        assert shown.stdout.split() == ["logger", "level", "tandemmq", "warning"]

        settings.write_text(SETTINGS.format(file=second).replace('"json"', '"jsno"'))
        broker.kill(signal.SIGHUP)
        wait_until(lambda: lines_of(second)[-1].get("event") == "settings-refused", "what is wrong is refused")
        assert broker.terminate() == 0
        assert "not-for-the-log" not in first.read_text() + second.read_text() + broker.log.read_text()


def test_a_broker_whose_stderr_nobody_reads_goes_on(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "a")
    command = [
        sys.executable, "-m", "tandemmq", "run", "--data", broker.data, "--name", "a", "--openwire", "off",
        "--admin", f"127.0.0.1:{broker.admin}", "--stomp", f"127.0.0.1:{broker.stomp}",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT)
    assert process.stderr is not None
    fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4_096)
    broker.process = process
    try:
        broker.log.touch()
        broker.wait_role("master")
        url = f"http://127.0.0.1:{broker.admin}/log-level?logger=store&level=info"
        headers = broker.authorization | {"Content-Type": "application/json"}
        for _ in range(60):  # each a line, and together more than the pipe holds
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers, method="POST"), timeout=30):
                pass
        assert (broker.status() or {})["role"] == "master"
        broker.kill(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0
        assert said.count(b"the level of logger store is info") == 60
    finally:
        broker.stop()
