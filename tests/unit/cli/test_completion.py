"""Completion in shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tandemmq.broker.process.log import DEFAULT, LEVELS
from tandemmq.cli import COMMANDS, main
from tandemmq.cli.man import contexts, name_of, page
from tandemmq.cli.output import Column, lines
from tests.support.tree import ROOT

HEAVY = {"aiohttp", "asyncio", "pydantic", "rich", "tandemmq.client", "tandemmq.store"}


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
        ("log-level store ", {*LEVELS, DEFAULT}),
        ("bench wa", {"waiting"}),
    ],
)
def test_a_shell_that_asks_is_answered(line: str, expected: set[str]) -> None:
    words = ["tandemmq", *line.split(" ")]
    asked = {"_TANDEMMQ_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
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


# ---- Manual pages: one for each command, made of what the command says


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("man") / "man1"
    done = CliRunner().invoke(main, ["man", "--to", str(directory)])
    assert done.exit_code == 0, done.output
    return directory


@pytest.mark.parametrize("context", list(contexts(main)), ids=name_of)
def test_each_command_has_a_page_that_names_it_and_its_options(written: Path, context: click.Context) -> None:
    text = (written / f"{name_of(context)}.1").read_text().replace("\\-", "-")
    assert text.startswith(f'.TH "{name_of(context).upper()}" 1')
    assert f"\\fB{context.command_path}\\fR" in text
    for parameter in context.command.get_params(context):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.opts[0] in text
    if isinstance(context.command, click.Group):
        assert all(f"\n\\fB{name}\\fR\n" in text for name in context.command.list_commands(context))


def test_there_is_no_page_of_anything_else(written: Path) -> None:
    assert {path.stem for path in written.iterdir()} == {name_of(context) for context in contexts(main)}


def test_one_page_is_printed() -> None:
    done = CliRunner().invoke(main, ["man", "store", "why"])
    assert done.stdout.startswith('.TH "TANDEMMQ\\-STORE\\-WHY" 1')
    assert CliRunner().invoke(main, ["man", "store", "nothing"]).exit_code == 2


def test_the_text_of_a_command_contains_no_troff_request() -> None:
    @click.command("odd", help="First.\n\n.so /etc/passwd \\fB and 'x'")
    def odd() -> None:
        pass

    assert "\\&.so /etc/passwd \\efB and 'x'" in page(click.Context(odd, info_name="odd"))


def test_groff_has_nothing_to_say_against_them(written: Path, require_program: Callable[[object, str], None]) -> None:
    require_program(shutil.which("groff"), "no groff in the path")
    pages = sorted(map(str, written.iterdir()))
    done = subprocess.run(
        ["groff", "-man", "-Kutf8", "-ww", "-z", *pages], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# ---- The one table of all commands: fitted to a terminal, whole in a pipe


QUEUES = [Column("queue"), Column("messages", is_number=True), Column("mode"), Column("remark")]
LONG = "orders." + "x" * 200
ROWS = [[LONG, 1234567, "normal", "nobody reads it, and it grows all the time"], ["b", 5, None, "-"]]


def test_a_pipe_gets_each_row_whole_on_one_line() -> None:
    head, first, second = lines(QUEUES, ROWS, None)
    assert head.split() == ["queue", "messages", "mode", "remark"]
    assert first == f"{LONG}  1,234,567  normal  nobody reads it, and it grows all the time"
    assert second.split() == ["b", "5", "-"]


def test_columns_stand_below_each_other_two_spaces_apart() -> None:
    columns = [Column("a"), Column("bb", is_number=True), Column("c")]
    assert lines(columns, [["xxx", 10000, "y"], ["z", 1, "w"]], None) == [
        "a        bb  c",
        "xxx  10,000  y",
        "z         1  w",
    ]  # fmt: skip


def test_on_a_terminal_the_last_text_is_cut_first_and_numbers_never() -> None:
    row = [["orders", 1234567, "normal", "nobody reads it"]]
    assert lines(QUEUES, row, 38)[1] == "orders  1,234,567  normal  nobody rea…"
    assert lines(QUEUES, row, 80)[1] == "orders  1,234,567  normal  nobody reads it"


def test_of_two_long_texts_the_first_stays_whole() -> None:
    columns = [Column("queue"), Column("remark")]
    assert lines(columns, [["orders.of.today", "nobody reads it"]], 27, has_head=False) == [
        "orders.of.today  nobody re…"
    ]


def test_columns_that_do_not_fit_are_omitted_from_the_end() -> None:
    for width in range(24, 90):
        shown = lines(QUEUES, ROWS, width)
        assert max(map(len, shown)) <= width
        assert "1,234,567" in shown[1]
        assert shown[1].startswith("orders.")
    assert [line[-1] for line in lines(QUEUES, ROWS, 24)] == ["…"] * 3
    assert "mode" not in lines(QUEUES, ROWS, 24)[0]


def test_a_queue_name_of_a_client_moves_no_cursor() -> None:
    assert lines([Column("queue")], [["a\x1b[2Jb\nc"]], None, has_head=False) == ["a�[2Jb�c"]


def test_wide_characters_take_two_cells() -> None:
    table = lines([Column("queue"), Column("n", is_number=True)], [["注文", 1], ["abcd", 2]], None, has_head=False)
    assert table == ["注文  1", "abcd  2"]
    cut = lines([Column("queue"), Column("n", is_number=True)], [["注文注文注文", 1]], 11, has_head=False)
    assert cut == ["注文注 …  1"]  # half a character is none


def test_commands_of_the_admin_server_start_without_the_client_and_the_settings() -> None:
    """A health check that starts `tandemmq status` every few seconds pays for each import."""
    program = """
import sys
from tandemmq.cli import main
for words in "", "status", "queues list", "lock status", "handover", "log-level", "replication status", "store":
    try:
        main([*words.split(), "--help"], standalone_mode=False)
    except SystemExit:
        pass
print(*sys.modules, sep="\\n", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "tandemmq.cli.mastership" in done.stderr.split()
    assert set(done.stderr.split()) & HEAVY == set()
