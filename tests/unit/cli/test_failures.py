"""Ends of commands: exit codes 0 to 3, one line, and JSON if it was requested."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tandemmq.bench.peers.ports import free_port
from tandemmq.cli import main
from tandemmq.cli.failures import DEBUG, Failed, Unreachable, exit_code_of

COMMAND = [sys.executable, "-m", "tandemmq"]
#: They run on, or print what is for another program: there is nothing that JSON would say better.
WITHOUT_JSON: set[str] = {"run", "completion", "man"}
#: What a command needs beside its options, where it is not to fail before it asks a broker.
NEEDED = {
    "send": ["orders", "x"],
    "receive": ["orders"],
    "replication add": ["n2"],
    "replication remove": ["n2"],
    "store compact": [],
    "queues create": ["orders"],
    "queues delete": ["orders"],
    "queues purge": ["orders"],
    "queues pause": ["orders"],
    "queues resume": ["orders"],
    "topics create": ["prices"],
    "topics delete": ["prices"],
    "browse": ["orders"],
    "move": ["orders", "parked", "--all"],
    "copy": ["orders", "parked", "--all"],
    "retry": ["orders", "--all"],
    "connections close": ["c-1"],
    "subscriptions delete": ["me", "all"],
    "tasks stop": ["1"],
}


def leaves(group: click.Group = main, name: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for each in group.list_commands(context):
        command = group.get_command(context, each)
        assert command is not None
        path = f"{name} {each}".strip()
        if isinstance(command, click.Group):
            yield from leaves(command, path)
        else:
            yield path, command


COMMANDS = dict(leaves())


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


# ---- all commands


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_answers_a_program(name: str) -> None:
    assert ("--json" in options(COMMANDS[name])) == (name not in WITHOUT_JSON)


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_usage_is_2_and_told_to_a_program_as_json(name: str) -> None:
    words = name.split()
    told = run(*words, "--no-such-option")
    assert (told.exit_code, told.stdout) == (2, "")
    assert "no-such-option" in told.stderr.lower()
    asked = run(*words, "--no-such-option", "--json")
    answer = json.loads(asked.stdout)
    assert (asked.exit_code, answer["code"], asked.stderr) == (2, 2, "")
    assert "no-such-option" in answer["error"].lower()


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, command in COMMANDS.items()
        if options(command) & {"--admin", "--url"} and "--stomp" not in options(command)
    ],
)
def test_a_missing_broker_gives_exit_code_3(name: str) -> None:
    port = free_port()
    admin = ["--admin", f"http://127.0.0.1:{port}"]
    url = ["--url", f"failover:(stomp://127.0.0.1:{port})?startupMaxReconnectAttempts=1"]
    where = url if "--url" in options(COMMANDS[name]) else admin
    done = run(*name.split(), *NEEDED.get(name, []), *where)
    assert (done.exit_code, done.stdout) == (3, ""), done.output
    assert str(port) in done.stderr
    done = run(*name.split(), *NEEDED.get(name, []), *where, "--json")
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["code"]) == (3, 3)
    assert str(port) in answer["error"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_reader_that_goes_away_is_no_traceback(name: str) -> None:
    """The command runs in a child whose output is a pipe without a reader, without the cost of a new interpreter."""
    reader, writer = os.pipe()
    os.close(reader)
    said_reader, said_writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        os.dup2(said_writer, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        try:
            main([*name.split(), "--help"])
        except SystemExit as end:
            sys.stderr.flush()
            os._exit(int(end.code or 0))
        os._exit(99)
    os.close(writer)
    os.close(said_writer)
    with open(said_reader) as said:
        text = said.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert text == ""


# ---- each way to end


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (Failed("no room"), 1, "no room"),
        (Unreachable("nobody at 8161"), 3, "nobody at 8161"),
        (click.UsageError("either or"), 2, "either or"),
        (click.Abort(), 1, "interrupted"),
        (KeyboardInterrupt(), 1, "interrupted"),
        (PermissionError(13, "Permission denied", "/srv/db-1.log"), 1, "/srv/db-1.log: Permission denied"),
        (ZeroDivisionError("division by\nzero"), 1, "a bug: ZeroDivisionError: division by zero (at test_failures.py:"),
    ],
)
def test_an_error_of_a_command_gives_an_exit_code_and_a_line(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise error

    assert exit_code_of(command, []) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert f"Error: {said}" in told.err
    assert "Traceback" not in told.err
    assert exit_code_of(command, ["x", "--json"]) == code
    told = capsys.readouterr()
    answer = json.loads(told.out)
    assert answer["code"] == code
    assert answer["error"].startswith(said)
    assert told.err == ""


def test_figures_of_a_failure_stand_beside_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise Failed("two are missing", sent=3)

    exit_code_of(command, ["--json"])
    assert json.loads(capsys.readouterr().out) == {"error": "two are missing", "code": 1, "sent": 3}


@pytest.mark.parametrize(("ended", "code"), [(0, 0), (None, 0), (1, 1), (3, 3), (130, 1), (-1, 1), ("a word", 1)])
def test_no_other_code_leaves(ended: object, code: int) -> None:
    def command() -> None:
        raise SystemExit(ended)

    assert exit_code_of(command, []) == code


def test_the_traceback_of_a_bug_is_shown_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEBUG, "1")
    exit_code_of(lambda: 1 // 0, [])
    assert "Traceback" in capsys.readouterr().err


def test_json_as_the_argument_of_a_command_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise Failed("no")

    exit_code_of(command, ["send", "q", "--", "--json"])
    assert capsys.readouterr().out == ""


# ---- as processes


#: Output is buffered until it is written, like the default.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["doctor", "errors"], 1, "Error: No space left on device\n"),
        (["store", "why", "/nowhere", "--json"], 2, "there is no directory /nowhere\n"),
    ],
)
def test_a_full_disk_below_the_output_is_told(arguments: list[str], code: int, said: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            timeout=60,
            check=False,
        )
    assert done.returncode == code
    assert done.stderr.endswith(said)
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_trouble(closed: str) -> None:
    """uvloop aborts where its own descriptor is 2."""
    command = f"{sys.executable} -m tandemmq receive q --url stomp://127.0.0.1:1 {closed}"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False
    )
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


def test_head_ends_a_command_quietly() -> None:
    """The pipe is closed while more is written than it holds, and the interpreter has nothing to add at its end."""
    with subprocess.Popen(
        [*COMMAND, "doctor", "errors"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        assert (command.stderr.read(), command.wait(60)) == (b"", 1)


def test_control_c_is_1_and_one_line(tmp_path: Path) -> None:
    """The signal comes while the command waits for the other host."""
    with subprocess.Popen(
        [*COMMAND, "doctor", "storage", str(tmp_path), "--listen", f"127.0.0.1:{free_port()}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdout is not None
        assert "listening" in command.stdout.readline()
        command.send_signal(signal.SIGINT)
        out, said = command.communicate(timeout=60)
    assert (command.returncode, out) == (1, "")
    assert said.split("\n") in (["Error: interrupted", ""], ["", "Error: interrupted", ""])
