"""`tandemmq config check` and `config show`, and the options that they share with `run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tandemmq.cli.config import config


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(config, arguments, env={"TANDEMMQ_CONFIG": None, **environment})


def test_right_settings_are_said_to_be_right() -> None:
    result = invoke("check", "--name", "a", "--openwire", "off")
    assert result.exit_code == 0
    assert result.stdout == "settings are right: broker a, stomp on 127.0.0.1:61613\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("--set", "store.checkpoint_interval=soon"),
            "store.checkpoint_interval = 'soon' (from --set): expected a time",
        ),
        (("--set", "nonsense"), "section.key=value"),
        (("--config", "/none.toml"), "cannot be read"),
        (("--stomp", "61613"), "--stomp = '61613': expected HOST:PORT"),
        (("--openwire", "61616"), "--openwire = '61616': expected HOST:PORT"),
        (("--set", "locker.type=database"), "locker.data_source = '': expected an SQLAlchemy URL"),
        (("--set", "locker.type=zoo"), "'zoo' is unknown"),
    ],
)
@pytest.mark.parametrize("command", ["check", "show"])
def test_wrong_settings_are_said_on_stderr_with_exit_code_2(
    command: str, arguments: tuple[str, ...], expected: str
) -> None:
    result = invoke(command, *arguments)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert result.stdout == ""


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("[broker]\nname = 'from-file'")
    assert "broker from-file" in invoke("check", TANDEMMQ_CONFIG=str(tmp_path / "t.toml")).stdout


def test_show_prints_what_holds_and_where_it_was_read() -> None:
    result = invoke("show", "--data", "d", TANDEMMQ_BROKER__STOMP_NACK="requeue")
    assert result.exit_code == 0
    assert 'directory = "d"  # --data' in result.stdout
    assert 'stomp_nack = "requeue"  # environment TANDEMMQ_BROKER__STOMP_NACK' in result.stdout


def test_show_prints_json_for_machines() -> None:
    shown = json.loads(invoke("show", "--json", "--set", "locker.lock_keep_alive_period=1s").stdout)
    assert shown["locker"]["lock_keep_alive_period"] == 1_000
    assert shown["connectors"] == [{"uri": "stomp://127.0.0.1:61613"}, {"uri": "openwire://127.0.0.1:61616"}]
