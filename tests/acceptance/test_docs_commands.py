"""The commands that the pages show are run as a reader would, and print what the pages say."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import Require
from tests.support.pages import session
from tests.support.pages.blocks import MARKS, SHELL, PageError, blocks
from tests.support.tree import ROOT

README = "README.md"
QUICK = [
    "deploy/README.md", "docs/operations.md", "docs/security.md",
    "docs/troubleshooting.md", "docs/tutorial.md",
]  # fmt: skip
#: Two dozen commands, each of which has tests of its own.
LONG = "docs/migration.md"
#: Each starts Spark many times, for minutes.
SPARK = ["docs/pipeline.md", "docs/pipeline-jobs.md"]
#: Settings that would be taken for commands; and what needs an installation, or a network.
ELSEWHERE = re.compile(
    r"\[|[\w.]+ = |(?:\w+=\S* )*(?:docker|docker-compose|systemctl|kubectl|helm|pip|pipx|apt|apt-get)\b"
)
PAGES = [README, *QUICK, LONG, *SPARK]


@pytest.fixture
def machine(tmp_path: Path, require_program: Require) -> Path:
    """A directory for a session, which makes it."""
    require_program(
        session.can_run(tmp_path / "probe"),
        "no machine of its own: that takes root, unshare, and overlay as a file system",
    )
    return tmp_path / "session"


@pytest.mark.parametrize("page", [pytest.param(QUICK[0], marks=pytest.mark.promise("pages-are-true")), *QUICK[1:]])
def test_commands_of_a_page_do_what_it_says(page: str, machine: Path, require_program: Require) -> None:
    require_program(shutil.which("openssl"), "no openssl")
    assert session.run(ROOT / page, machine, seconds=110) > 0


def test_commands_of_a_long_page_do_what_it_says(machine: Path) -> None:
    assert session.run(ROOT / LONG, machine, seconds=110) > 0


class TestReadme:
    """By itself, so that another worker has it: it sends for twenty seconds."""

    def test_commands_of_the_readme_do_what_it_says(self, machine: Path) -> None:
        assert session.run(ROOT / README, machine, seconds=110) > 0


@pytest.mark.service
@pytest.mark.prove
@pytest.mark.proof_only
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", SPARK)
def test_commands_of_the_pipeline_do_what_its_pages_say(page: str, machine: Path, require_service: Require) -> None:
    require_service(shutil.which("java"), "no Java")
    assert session.run(ROOT / page, machine, seconds=850) > 0


@pytest.mark.promise("pages-are-true")
@pytest.mark.parametrize("page", PAGES)
def test_each_comment_of_a_page_means_something(page: str) -> None:
    assert any(block.is_run for block in blocks(ROOT / page))


@pytest.mark.promise("pages-are-true")
@pytest.mark.parametrize("page", PAGES)
def test_what_cannot_be_run_here_says_why(page: str) -> None:
    run = [block for block in blocks(ROOT / page) if block.is_run and block.language == SHELL]
    lines = [(block.line, line) for block in run for line in block.text.splitlines()]
    assert [(at, line) for at, line in lines if ELSEWHERE.match(line)] == [], "settings are fenced, others `not run`"


def test_the_comments_are_explained() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert [mark for mark in MARKS if f"`<!-- {mark}" not in page] == []


def written(tmp_path: Path, text: str) -> Path:
    page = tmp_path / "page.md"
    page.write_text(text)
    return page


def test_a_command_that_fails_is_named_with_its_place(tmp_path: Path, machine: Path) -> None:
    page = written(tmp_path, "Text\n\n    echo well\n\nText\n\n    echo so far\n    false\n    echo no further\n")
    with pytest.raises(session.CommandFailed, match=r"page.md:7\n(.|\n)*ended with 1\nso far\n$"):
        session.run(page, machine, seconds=30)


@pytest.mark.parametrize(("shown", "is_right"), [("one 1 two", True), ("two", False)])
def test_what_is_printed_is_what_the_page_shows(shown: str, is_right: bool, tmp_path: Path, machine: Path) -> None:
    page = written(tmp_path, f"    echo zero; echo 'one  7   two'\n\n<!-- output -->\n```text\n{shown}\n```\n")
    if is_right:
        assert session.run(page, machine, seconds=30) == 1
    else:
        with pytest.raises(session.CommandFailed, match=r"page.md:4: the page shows\n  two\n"):
            session.run(page, machine, seconds=30)


@pytest.mark.parametrize("comment", ["not run", "not run it: why", "output: what"])
def test_a_comment_that_means_nothing_is_refused(comment: str, tmp_path: Path) -> None:
    with pytest.raises(PageError, match="expected one of"):
        blocks(written(tmp_path, f"<!-- {comment} -->\n\n    true\n"))
    with pytest.raises(PageError, match="does not follow"):
        blocks(written(tmp_path, "<!-- not run: why -->\n\nText\n"))
