"""`tandemmq send` and `tandemmq receive`, as a user types them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from tandemmq.bench.peers.ports import free_port
from tandemmq.bench.peers.server import HOST, Server
from tandemmq.cli import main
from tests.support import forked

COMMAND = [sys.executable, "-m", "tandemmq"]


def run(*arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    return forked.run([*COMMAND, *arguments], input=input, timeout=60)


def url(server: Server) -> str:
    return f"failover:(stomp://{HOST}:{server.port})?maxReconnectDelay=50"


def test_numbered_bodies_are_sent_and_printed_in_order(broker: Server) -> None:
    sent = run("send", "cli.numbered", "hello", "--count", "3", "--rate", "50", "--url", url(broker))
    received = run("receive", "/queue/cli.numbered", "--count", "3", "--url", url(broker))

    assert sent.returncode == 0, sent.stderr
    assert "3 sent and confirmed" in sent.stderr
    assert received.returncode == 0, received.stderr
    assert received.stdout == "hello 1\nhello 2\nhello 3\n"


def test_lines_of_stdin_become_messages_with_headers(broker: Server) -> None:
    options = ("--header", "colour: red", "--priority", "7", "--json", "--url", url(broker))
    sent = run("send", "queue://cli.lines", *options, input="a\nb")
    received = run("receive", "cli.lines", "--count", "2", "--json", "--url", url(broker))

    assert json.loads(sent.stdout)["sent"] == 2
    messages = [json.loads(line) for line in received.stdout.splitlines()]
    assert [message["body"] for message in messages] == ["a", "b"]
    assert {(message["headers"]["colour"], message["headers"]["priority"]) for message in messages} == {("red", "7")}


def test_looking_without_acknowledging_leaves_the_message(broker: Server) -> None:
    run("send", "cli.look", "still here", "--url", url(broker))

    looked = run("receive", "cli.look", "--count", "1", "--no-ack", "--url", url(broker))
    taken = run("receive", "cli.look", "--count", "1", "--url", url(broker))

    assert looked.stdout == taken.stdout == "still here\n"


def test_no_message_in_time_is_a_failure_only_if_some_were_asked_for(broker: Server) -> None:
    assert run("receive", "cli.none", "--timeout", "0.2", "--url", url(broker)).returncode == 0
    assert run("receive", "cli.none", "--timeout", "0.2", "--count", "1", "--url", url(broker)).returncode == 1


def test_a_refused_message_does_not_count_as_sent(broker: Server) -> None:
    wrong = ("send", "cli.refused", "x", "--header", "expires:soon", "--url", url(broker))
    refused = run(*wrong, "--count", "3", "--json")
    answer = json.loads(refused.stdout)
    assert (refused.returncode, answer["code"], answer["sent"], answer["refused"]) == (1, 1, 0, 3)
    assert "expires" in answer["error"]
    assert "0 sent and confirmed, 1 refused" in run(*wrong).stderr


@pytest.mark.parametrize("command", [("send", "a", "x"), ("receive", "a")])
def test_no_broker_is_exit_code_3(command: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(main, [*command, "--url", f"stomp://{HOST}:{free_port()}"])

    assert ended.exit_code == 3
    assert "no broker reachable" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("send", "a", "x", "--url", "failover:()"),
        ("send", "a", "x", "--header", "novalue"),
        ("send", "a", "x", "--file", "-"),
        ("send", "a", "--file", "-", "--count", "2"),
        ("send", "a", "x", "--header", "receipt:1"),
        ("send", "a", "x", "--header", "tandemmq-send-id:of one message", "--count", "2"),
        ("send", "a", "x", "--ca-file", "/nowhere.pem"),
        ("send", "a", "x", "--passcode", "a", "--passcode-file", "/dev/null"),
        ("send", "a", "x", "--login", "a", "--passcode-file", "/nowhere"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(main, arguments, input="").exit_code == 2


def test_control_c_ends_receive_cleanly(broker: Server) -> None:
    """A new interpreter, as in a terminal."""
    with subprocess.Popen(
        [*COMMAND, "receive", "cli.endless", "--url", url(broker)], stderr=subprocess.PIPE, text=True
    ) as receiver:
        assert receiver.stderr is not None
        assert "connected" in receiver.stderr.readline()
        receiver.send_signal(signal.SIGINT)
        rest = receiver.stderr.read()

    assert receiver.returncode == 0
    assert "Traceback" not in rest


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--count", "5"), 1)])
def test_a_reader_that_goes_away_ends_receive_quietly(broker: Server, options: tuple[str, ...], code: int) -> None:
    queue = f"cli.cut.{code}"
    assert run("send", queue, "x", "--url", url(broker)).returncode == 0
    command = [*COMMAND, "receive", queue, "--quiet", "--url", url(broker), *options]
    reading, writing = os.pipe()
    os.close(reading)  # before the client starts: a message that it can write counts as received
    with forked.Popen(command, stdout=writing, stderr=subprocess.PIPE, text=True) as receiver:
        os.close(writing)
        assert receiver.stderr is not None
        said = receiver.stderr.read()
    assert (receiver.returncode, said) == (code, "Error: 0 of 5 received\n" if code else "")
    assert run("receive", queue, "--count", "1", "--url", url(broker)).stdout == "x\n", "it was not acknowledged"


def test_control_c_ends_send_and_says_how_far_it_came(broker: Server) -> None:
    command = [*COMMAND, "send", "cli.interrupted", "--url", url(broker)]
    with forked.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sender:
        assert sender.stdin is not None
        assert sender.stderr is not None
        sender.stdin.write("one\ntwo\n")
        sender.stdin.flush()
        assert "connected" in sender.stderr.readline()
        received = run("receive", "cli.interrupted", "--count", "2", "--url", url(broker))
        sender.send_signal(signal.SIGINT)
        rest = sender.stderr.read()

    assert received.stdout == "one\ntwo\n", "a line is sent when it is whole, not when the input ends"
    assert "interrupted – 2 sent and confirmed" in rest
    assert "Traceback" not in rest


@pytest.mark.thorough
def test_a_silent_input_does_not_stop_the_heart_beats(broker: Server) -> None:
    fast = f"{url(broker)}&nested.wireFormat.maxInactivityDuration=600"
    with forked.Popen(
        [*COMMAND, "send", "cli.silent", "--url", fast], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as sender:
        assert sender.stdin is not None
        time.sleep(3)  # five intervals; the broker hangs up after two
        output = sender.communicate("late\n", timeout=60)[1]

    assert sender.returncode == 0, output
    assert "lost" not in output
