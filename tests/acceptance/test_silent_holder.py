"""A master that is stopped as a whole keeps the lock in a file. Its standby says so, and for how long."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandemmq.cli import main
from tests.support.acceptance.broker_process import BrokerProcess, wait_until


@pytest.mark.promise("silent-holder-is-reported")
def test_the_standby_tells_of_a_master_that_is_stopped(tmp_path: Path) -> None:
    master, standby = (BrokerProcess(tmp_path / "data", name) for name in ("a", "b"))
    try:
        master.start().wait_role("master")
        standby.start().wait_role("standby")
        assert "holder_silent_seconds" not in (standby.status() or {})
        master.kill(signal.SIGSTOP)
        status = wait_until(
            lambda: found if (found := standby.status()) and "holder_silent_seconds" in found else None, "it is silent"
        )
        assert status["holder_silent_seconds"] >= 3.0
        assert "the holder has been silent for " in status["reason"]
        assert any(warning.startswith("a (") for warning in status["warnings"])
        words = ["lock", "status", "--admin", f"http://127.0.0.1:{standby.admin}"]
        assert "the holder has shown no sign of life for " in CliRunner().invoke(main, words).stdout
        told = CliRunner().invoke(main, [*words, "--json"])
        assert json.loads(told.stdout)["holder_silent_seconds"] >= 3.0
        standby.wait_log("has been silent for ")
        master.kill(signal.SIGCONT)  # it goes on, or knows that it slept too long and lets go
        wait_until(lambda: "holder_silent_seconds" not in (standby.status() or {}), "somebody is heard")
    finally:
        master.stop()
        standby.stop()
