"""`tandemmq config check` and `config show`, and the options that they share with `run`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.start_checks import demand
from tandemmq.cli import main
from tandemmq.cli.config import config
from tandemmq.config.changes import changed_at_once, changed_for_the_next_start
from tandemmq.config.errors import SettingsError
from tandemmq.config.load import Flags, load
from tandemmq.config.section import count, milliseconds, show_milliseconds, show_size, size
from tandemmq.config.settings import Settings
from tests.support.tree import ROOT


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(config, arguments, env={"TANDEMMQ_CONFIG": None, **environment})


def test_right_settings_are_said_to_be_right() -> None:
    result = invoke("check", "--name", "a", "--openwire", "off")
    assert result.exit_code == 0
    # Notes may follow: what is to be known of the volume, and of ports that are in use.
    assert result.stdout.splitlines()[0] == "settings are valid: broker a, stomp on 127.0.0.1:61613"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
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


def test_the_file_may_be_an_argument_which_wins_over_the_environment(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("[broker]\nname = 'from-file'")
    assert "broker from-file" in invoke("check", str(tmp_path / "t.toml"), TANDEMMQ_CONFIG="/none.toml").stdout
    assert 'name = "from-file"' in invoke("show", str(tmp_path / "t.toml")).stdout
    assert invoke("check", str(tmp_path / "t.toml"), "--config", "x").exit_code == 2


NOT_STARTED = """
store.directory = "{plain}"
security.users_file = "/none/users"
connectors = [
    {{uri = "ssl://127.0.0.1:7001"}}, {{uri = "stomp://0.0.0.0:7002"}}, {{uri = "mqtt://localhost:7002"}},
    {{uri = "stomp://host.invalid:7003"}}, {{uri = "stomp://127.0.0.1:7004"}},
]
admin.uri = "http://127.0.0.1:7004"
"""


def test_check_names_all_that_stops_run_and_run_the_same(tmp_path: Path) -> None:
    plain, file = tmp_path / "plain", tmp_path / "t.toml"
    plain.touch()
    file.write_text(NOT_STARTED.format(plain=plain))
    checked = invoke("check", str(file))
    for text in (
        "mqtt://localhost:7002': refused: connectors[1].uri = 'stomp://0.0.0.0:7002' has this port",
        f"store.directory = '{plain}': {plain} is not a directory",
        "ssl needs a certificate",
        "/none/users: cannot be read",
        "host.invalid cannot be resolved",
        "admin.uri = 'http://127.0.0.1:7004'",
    ):
        assert text in checked.stderr
    with pytest.raises(SettingsError) as refused:
        demand(load(file, {}))
    others = {
        line for line in checked.stderr[7:].splitlines() if "is not a directory" in line
    }  # reported when those are correct
    assert (checked.exit_code, others | set(str(refused.value).splitlines())) == (
        2,
        set(checked.stderr[7:].splitlines()),
    )
    with pytest.raises(OSError, match="is not a directory"):
        demand(load(None, {}, [f"store.directory={plain}"]))


def test_check_names_each_file_that_the_broker_cannot_use(
    tmp_path: Path, require_program: Callable[[object, str], None]
) -> None:
    command = [sys.executable, "-m", "tandemmq", "config", "check", "--data", str(tmp_path)]
    if os.geteuid() == 0:  # whom no mode keeps out: root without the right to what others own
        require_program(shutil.which("setpriv"), "no setpriv in the path")
        command[:0] = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    (tmp_path / "index").mkdir()
    for name in ("lock", "db-1.log", "db-2.log", "db-3.log"):
        (tmp_path / name).touch()
    # An older file that can only be read is right.
    refused = {"index": 0, "lock": 0o400, "db-1.log": 0, "db-3.log": 0o400}
    for name, mode in {**refused, "db-2.log": 0o400}.items():
        (tmp_path / name).chmod(mode)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = {
        name for name in ("index", "lock", "db-1.log", "db-2.log", "db-3.log") if f"{tmp_path / name}" in done.stderr
    }
    assert (done.returncode, found) == (2, set(refused))
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").mkdir()
    assert f"{tmp_path / 'lock'} cannot be locked: is a directory" in invoke("check", "--data", str(tmp_path)).stderr


def test_check_creates_and_locks_nothing(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        uri = f"stomp://127.0.0.1:{other.getsockname()[1]}"
        (tmp_path / "t.toml").write_text(
            f'connectors = [{{uri = "{uri}"}}]\nstore.directory = "{tmp_path / "data"}"\n'
            f'logging = {{target = "file", file = "{tmp_path / "log"}"}}\n'
        )
        checked = invoke("check", str(tmp_path / "t.toml"))
    # The broker itself may run with these settings.
    assert (checked.exit_code, f"{uri}: cannot bind" in checked.stdout) == (0, True)
    assert os.listdir(tmp_path) == ["t.toml"]


def test_show_prints_what_holds_and_where_it_was_read() -> None:
    result = invoke("show", "--data", "d", TANDEMMQ_BROKER__STOMP_NACK="requeue")
    assert result.exit_code == 0
    assert 'directory = "d"  # --data' in result.stdout
    assert 'stomp_nack = "requeue"  # environment TANDEMMQ_BROKER__STOMP_NACK' in result.stdout
    assert 'cleanup_interval = "1s"  # default' in result.stdout


def test_show_prints_json_for_machines() -> None:
    shown = json.loads(invoke("show", "--json", "--set", "locker.lock_keep_alive_period=1s").stdout)
    assert shown["locker"]["lock_keep_alive_period"] == 1_000
    assert shown["origins"] == {"locker.lock_keep_alive_period": "--set"}
    assert [each["uri"] for each in shown["connectors"]] == ["stomp://127.0.0.1:61613", "openwire://127.0.0.1:61616"]


def test_all_that_is_wrong_is_told_at_once_each_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(
        "[store]\ncheckpoint_intervall = '5s'\nmemory_limt = 1\n[broker]\nstomp_nack = 'perhaps'\n"
        "[[connectors]]\nuri = 'gopher://x:1'\n[nowhere]\nx = 1\n[locker]\nlock_keep_alive_period = 'soon'\n"
    )
    arguments = ("--config", str(file), "--set", "store.journal_max_file_length=big", "--set", "nonsense")
    told = invoke("check", *arguments, "--name", "", TANDEMMQ_LOCKER__TYP="x")
    assert (told.exit_code, told.stdout) == (2, "")
    expected = {
        "store.checkpoint_intervall": (str(file), "store.checkpoint_interval"),
        "broker.stomp_nack": (str(file), None),
        "connectors[0].uri": (str(file), None),
        "nowhere": (str(file), None),
        "locker.lock_keep_alive_period": (str(file), None),
        "locker.typ": ("environment TANDEMMQ_LOCKER__TYP", "locker.type"),
        "store.journal_max_file_length": ("--set", None),
        "--set": (None, None),
        "--name": (None, None),
    }
    for key, (_, near) in expected.items():
        assert f"{key} =" in told.stderr or f"{key} (from" in told.stderr
        assert near is None or f"Did you mean {near}?" in told.stderr
    with pytest.raises(SettingsError) as wrong:
        load(file, {"TANDEMMQ_LOCKER__TYP": "x"}, ["store.journal_max_file_length=big", "nonsense"], Flags(name=""))
    facts = {str(each.facts()["key"]): each.facts() for each in wrong.value.all}
    assert {key: (facts[key]["source"], facts[key]["near"]) for key in expected} == expected
    assert len(told.stderr.splitlines()) == len(facts) == len(wrong.value.all)
    assert "section.key=value" in str(facts["--set"]["expected"])


def test_a_program_gets_a_list_of_what_is_wrong() -> None:
    wrong = [
        "--set", "security.ldap.connection_password=5", "--set", "store.checkpoint_interval=soon", "--set", "a.b=1",
    ]  # fmt: skip
    done = CliRunner().invoke(main, ["config", "check", *wrong, "--json"])
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["code"]) == (2, 2)
    assert {each["key"] for each in answer["errors"]} >= {"store.checkpoint_interval", "a.b"}
    assert all(set(each) == {"key", "value", "expected", "source", "near"} for each in answer["errors"])


# ---- Of settings that were read again, it is named what a broker that runs cannot take over


BEFORE = """
[broker]
name = "a"
queue_prefetch = 5
[[destinations]]
queue = "A.>"
queue_prefetch = 5
[[destinations]]
topic = "B.>"
"""


@pytest.mark.parametrize(
    ("after", "changes"),
    [
        (BEFORE, []),
        (
            BEFORE.replace("5", "6", 1) + '[logging]\nlevel = "debug"\nloggers = {"broker.net" = "error"}\n',
            [
                "broker.queue_prefetch is 6 now, and was 5",
                "logging.level is 'debug' now, and was 'info'",
                "logging.loggers.broker.net is 'error' now, and was None",
            ],
        ),
        (BEFORE.replace("topic", "memory_limit = 70000\ntopic"), []),
        (
            BEFORE.replace('A.>"\nqueue_prefetch = 5', 'A.>"\nqueue_prefetch = 7'),
            ["destinations[queue A.>].queue_prefetch is 7 now, and was 5"],
        ),
    ],
)
def test_changes_that_apply_at_once_are_named_with_their_values(
    read: Callable[[str], Settings], after: str, changes: list[str]
) -> None:
    assert changed_at_once(read(BEFORE), read(after)) == changes


@pytest.mark.parametrize(
    ("after", "keys"),
    [
        (BEFORE.replace("5", "6") + "durable_topic_prefetch = 1\nqueue_browser_prefetch = 2\n", []),
        (BEFORE + "memory_limit = 70000\n", ["destinations[topic B.>].memory_limit"]),
        (BEFORE + '[[destinations]]\nqueue = "C"\n', ["destinations[queue C]"]),
        (BEFORE.replace("B.>", "D.>"), ["destinations[topic B.>]", "destinations[topic D.>]"]),
        (BEFORE.replace('"a"', '"b"\nmemory_limit = 20000000'), ["broker.memory_limit", "broker.name"]),
        (BEFORE + '[store]\ncheckpoint_interval = "7s"\n', ["store.checkpoint_interval"]),
        (BEFORE + '[[connectors]]\nuri = "stomp://127.0.0.1:1"\n', ["connectors"]),
    ],
)
def test_changes_that_apply_at_the_next_start_are_named(
    read: Callable[[str], Settings], after: str, keys: list[str]
) -> None:
    assert sorted(changed_for_the_next_start(read(BEFORE), read(after))) == keys


# ---- Times and sizes as operators write them


@pytest.mark.parametrize(
    ("read", "values"),
    [
        (milliseconds, {5000: 5000, "5000": 5000, "250ms": 250, "5s": 5000, "1.5s": 1500, " 5 S ": 5000}),
        (milliseconds, {"2min": 120_000, "1h": 3_600_000}),
        (size, {1024: 1024, "1024": 1024, "64kb": 65_536, "32mb": 1 << 25, "32 MB": 1 << 25, "1MiB": 1 << 20}),
        (size, {"0.5kb": 512}),
    ],
)
def test_times_and_sizes_are_read(read: Callable[[object], int], values: dict[object, int]) -> None:
    assert {text: read(text) for text in values} == values


@pytest.mark.parametrize(
    "text", ["", "soon", "5 parsecs", "-1", -1, "1.5", 1.5, True, None, "5s5s", "s", "1e3", [], "٣s"]
)
@pytest.mark.parametrize("read", [milliseconds, size, count])
def test_an_invalid_value_is_refused_with_the_expected_form(read, text: object) -> None:
    with pytest.raises(ValueError, match=r"^a (time|size|whole number)"):
        read(text)


@pytest.mark.parametrize("text", ["5s", "1kb"])
def test_a_count_has_no_unit(text: str) -> None:
    with pytest.raises(ValueError, match="a whole number"):
        count(text)


@given(st.integers(0, 1 << 50))
def test_shown_settings_can_be_loaded_again(value: int) -> None:
    assert milliseconds(show_milliseconds(value)) == value
    assert size(show_size(value)) == value
