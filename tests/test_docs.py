"""What the pages say exists: links, commands, flags, verbs."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from broker.cli import main

TREE = Path(__file__).parents[1]
PAGES = sorted(
    path
    for path in [*TREE.glob("*.md"), *TREE.glob("*/**/*.md")]
    if not any(part[0] == "." for part in path.relative_to(TREE).parts[:-1])
)
PAGES_WITH_COMMANDS = [
    TREE / "README.md",
    TREE / "docs/commands.md",
    TREE / "deploy/README.md",
    TREE / "docs/migration.md",
    TREE / "docs/operations.md",
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PROOF = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`|`…::(\w+)`")


def prose(page: Path) -> str:
    """The page without its blocks of code, which may hold brackets of their own."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def commands(page: Path) -> Iterator[list[str]]:
    """Every `tandemmq ...` that the page's blocks of code show, as a shell would split it."""
    for line in re.findall(r"^    (.*)$", page.read_text(), flags=re.MULTILINE):
        for part in re.split(r"&&|;(?![^\"]*\")", line):
            if part.strip().startswith("tandemmq "):
                yield shlex.split(part, comments=True)[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TREE)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target.split("#")[0] for target in LINK.findall(prose(page)) if "://" not in target]
    dead = [target for target in targets if target and not (page.parent / target).exists()]
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TREE)))
def test_tests_that_prove_something_exist(page: Path) -> None:
    """`tests/a/test_b.py::test_c`, or `…::test_c` of the file named before."""
    missing = []
    file = ""
    for named, test, further in PROOF.findall(page.read_text()):
        file = named or file
        path = TREE / file
        if not path.is_file() or f"def {test or further}" not in path.read_text():
            missing.append(f"{file}::{test or further}")
    short = re.findall(r"`(test_\w+\.py)`", page.read_text())
    missing += [name for name in short if not any(TREE.glob(f"tests/**/{name}"))]
    assert missing == []


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: str(page.relative_to(TREE)))
def test_commands_and_their_flags_exist(page: Path) -> None:
    shown = list(commands(page))
    assert shown, "a page with commands shows at least one"
    for words in shown:
        command: click.Command = main
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(click.Context(command), words[0])
            assert found is not None, f"{page.name} names `tandemmq {' '.join(words)}`: there is no {words[0]!r}"
            command, words = found, words[1:]
        known = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
        flags = {word.split("=")[0] for word in words if word.startswith("--")} - {"--help"}
        assert flags <= known | {"--version"}, f"{page.name}: `tandemmq {command.name}` has no {flags - known}"


def test_every_command_has_its_place_on_the_page_of_commands() -> None:
    page = (TREE / "docs/commands.md").read_text()
    missing = [name for name in main.list_commands(click.Context(main)) if f"`tandemmq {name}" not in page]
    assert missing == []


def test_every_verb_of_the_makefile_is_there() -> None:
    result = subprocess.run(["make", "-s", "-C", str(TREE), "help"], capture_output=True, text=True, check=True)
    verbs = {line.split()[0] for line in result.stdout.splitlines() if "\t" in line}
    assert verbs == {"setup", "check", "test", "bench", "run", "prove"}
