"""Manual pages: one for each command, made of what the command says."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tandemmq.cli import main
from tandemmq.cli.man import contexts, name_of, page


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


def test_what_a_command_says_is_no_request_of_troff() -> None:
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
