"""Links, commands, flags and verbs on the pages exist."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tandemmq.cli import main
from tests.support.tree import DIRECTORIES
from tests.support.tree import ROOT as TREE

PAGES = sorted(
    path
    for path in [*TREE.glob("*.md"), *TREE.glob("*/**/*.md")]
    if not any(part[0] == "." for part in path.relative_to(TREE).parts[:-1])
)
GUIDES = ["failover.md", "troubleshooting.md"]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
#: The directories whose files pages name, and the file names that they name alone.
ROOTS = (*DIRECTORIES, "tandemmq", "tests", "docs", "examples", "deploy")
PATH = re.compile(rf"(?<![\w./<>:-])((?:{'|'.join(ROOTS)})/[\w./-]*)(?![\w*<>{{-])")
FILE = re.compile(r"`(\w+\.py)`")
#: Not of this tree: a program of a user or of `pipeline package`, a distribution, what there was once.
ELSEWHERE = {"config.py", "docs/simulator.md", "shop.py", "store.py", "stomp.py", "submit.py", "tandemmq/_app/"}
PROOF = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`|`…::(\w+)`")


def prose(page: Path) -> str:
    """The page without its blocks of code, which may have brackets."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def anchors(page: Path) -> set[str]:
    """Return the valid targets of `#...` there: each heading, as code hosts make an anchor of it."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: Path) -> Iterator[list[str]]:
    """Every `tandemmq ...` that the page's blocks of code show, as a shell would split it."""
    text = re.sub(r"\\\n *", " ", page.read_text())
    for line in re.findall(r"^    (.*)$", text, flags=re.MULTILINE):
        for part in re.split(r"&&|;(?![^\"]*\")", line):
            if part.strip().startswith("tandemmq "):
                yield shlex.split(part, comments=True)[1:]


def exists(page: Path, words: list[str]) -> None:
    """The command that they are, and its flags."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"{page.name} names `tandemmq {' '.join(words)}`: there is no {words[0]!r}"
        command, words = found, words[1:]
    if isinstance(command, click.Group) and words:  # without a verb, many groups list what there is
        command = command.get_command(click.Context(command), "list") or command
    known = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
    flags = {word.split("=")[0] for word in words if word.startswith("--")} - {"--help"}
    assert flags <= known | {"--version"}, f"{page.name}: `tandemmq {command.name}` has no {flags - known}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TREE)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target.split("#")[0] for target in LINK.findall(prose(page)) if "://" not in target]
    dead = [target for target in targets if target and not (page.parent / target).exists()]
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TREE)))
def test_links_into_a_page_name_a_heading(page: Path) -> None:
    targets = [target.partition("#") for target in LINK.findall(prose(page)) if "://" not in target and "#" in target]
    dead = [
        f"{name}#{anchor}" for name, _, anchor in targets if anchor not in anchors(page.parent / name if name else page)
    ]
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


def test_the_index_has_every_page() -> None:
    index = TREE / "docs/README.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(prose(index))}
    assert [str(page.relative_to(TREE)) for page in TREE.glob("docs/**/*.md") if page not in {*linked, index}] == []


def test_the_site_leads_to_every_page() -> None:
    """`make docs` checks that the pages make a site, and that each link has a target there."""
    named = re.findall(r"^ +- (?:.+: )?([\w./-]+\.md)$", (TREE / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert len(named) == len(set(named))
    assert {TREE / name for name in named} == {*PAGES}


@pytest.mark.parametrize("page", [*PAGES, TREE / "Makefile"], ids=lambda page: str(page.relative_to(TREE)))
def test_files_that_are_named_exist(page: Path) -> None:
    """`store/writer/batch.py`, `broker/core/`, and `schema.py` where it is clear whose that is. NAME is any."""
    text = page.read_text()
    named = {name for name in PATH.findall(text) if "NAME" not in name} - ELSEWHERE
    missing = [name for name in named if not (TREE / name.rstrip(".")).exists()]
    missing += [name for name in {*FILE.findall(text)} - ELSEWHERE if not any(TREE.glob(f"*/**/{name}"))]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TREE)))
def test_commands_and_their_flags_exist(page: Path) -> None:
    for words in commands(page):
        exists(page, words)


def test_commands_are_found_on_pages() -> None:
    assert len([page for page in PAGES if any(commands(page))]) > 5


@pytest.mark.parametrize("name", GUIDES)
def test_commands_that_an_operator_is_sent_to_exist(name: str) -> None:
    page = TREE / "docs" / name
    named = [shlex.split(words) for words in re.findall(r"`tandemmq ([^`]+)`", page.read_text())]
    assert named
    for words in named:
        exists(page, words)


@pytest.mark.parametrize("name", GUIDES)
def test_metrics_that_an_operator_is_sent_to_exist(name: str) -> None:
    there = (TREE / "docs/metrics.md").read_text()
    named = set(re.findall(r"tandemmq_[a-z_]+", (TREE / "docs" / name).read_text()))
    assert named
    assert [metric for metric in sorted(named) if not re.search(rf"\b{metric}\b", there)] == []


def test_every_command_has_its_place_on_the_page_of_commands() -> None:
    page = (TREE / "docs/commands.md").read_text()
    missing = [name for name in main.list_commands(click.Context(main)) if f"`tandemmq {name}" not in page]
    assert missing == []


def test_every_verb_of_the_makefile_is_there() -> None:
    result = subprocess.run(["make", "-s", "-C", str(TREE), "help"], capture_output=True, text=True, check=True)
    verbs = {line.split()[0] for line in result.stdout.splitlines() if "\t" in line}
    named = {
        verb for page in PAGES for verb in re.findall(r"`make ([a-z-]+)|^    make ([a-z-]+)", page.read_text(), re.M)
    }
    assert {first or second for first, second in named} <= verbs
