"""What shells complete."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandemmq.cli import COMMANDS, main
from tests.support.tree import ROOT


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_lines_for_a_shell_are_printed(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert f"_TANDEMMQ_COMPLETE={shell}_complete" in done.stdout
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", set(COMMANDS)),
        ("st", {"status", "store"}),
        ("store reb", {"rebuild-index"}),
        ("send --pas", {"--passcode", "--passcode-file"}),
        ("completion z", {"zsh"}),
        ("bench wa", {"waiting"}),
    ],
)
def test_a_shell_that_asks_is_answered(line: str, expected: set[str]) -> None:
    words = ["tandemmq", *line.split(" ")]
    asked = {
        "_TANDEMMQ_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = CliRunner().invoke(main, [], prog_name="tandemmq", env=asked)
    assert {each.partition(",")[2] for each in done.stdout.split()} == expected
    assert done.exit_code == 0


def test_bash_itself_completes(tmp_path: Path, require_program: Callable[[object, str], None]) -> None:
    require_program(shutil.which("bash"), "no bash in the path")
    program = tmp_path / "tandemmq"  # as pip installs it
    program.write_text(f"#!{sys.executable}\nfrom tandemmq.__main__ import main\nmain()\n")
    program.chmod(0o755)
    script = """
        eval "$(tandemmq completion bash)"
        COMP_WORDS=(tandemmq lock s) COMP_CWORD=2
        _tandemmq_completion tandemmq s lock
        echo "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    command = ["bash", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["status"], done.stderr
