"""The unit file, as systemd reads it."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "deploy" / "tandemmq.service"


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
    assert service["Restart"] == "always"
    assert service["RestartPreventExitStatus"] == "2"
    assert service["User"] != "root"
