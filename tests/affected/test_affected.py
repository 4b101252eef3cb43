"""The tests that a change selects, in a small separate tree."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.affected.changes import Change, changes_of, names_in
from tests.affected.choose import Kind, choose, rank
from tests.affected.imports import Graph, graph_of

TREE = {
    "store/disk.py": "def write_fully():\n    return 1\n\n\ndef unlink():\n    return 2\n",
    "store/writer.py": "from tandemmq.store import disk\n\n# proofs: writing\nsync()  # prove: batch\n",
    "locker/kinds.py": 'def create(kind):\n    return import_module(f"tandemmq.locker.{kind}")\n',
    "locker/memory.py": "",
    "docs/a.md": "A page.\n",
    "tests/support/term.py": "def begin():\n    from tandemmq.store.writer import x\n",
    "tests/support/peer.c": "",
    "tests/unit/store/test_disk.py": "from tandemmq.store.disk import write_fully\n",
    "tests/unit/store/test_room.py": "from tests.support.term import begin\n",
    "tests/unit/store/test_writer.py": "from tandemmq.store.writer import x\n",
    "tests/unit/locker/conftest.py": "from tandemmq.locker import kinds\n",
    "tests/unit/locker/test_all.py": "",
    "tests/crash/test_power.py": '"""Crashes."""\n\n# proves: writing\n\nfrom tests.support.term import begin\n',
    "tests/crash/test_unlinks.py": "from tests.support.term import begin\n\ndef test_a():\n    unlink()\n",
    "tests/acceptance/test_disk_of_page.py": 'begin = [python, "-m", "tandemmq"]\n',
    "tests/acceptance/test_peer.py": 'PEER = "peer.c"\n',
    "tests/unit/test_pages.py": 'PAGES = ROOT.glob("*.md")\n',
    "tandemmq/__main__.py": "import tandemmq.store.writer\n",
}


def git(root: Path, *arguments: str) -> None:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
    subprocess.run(command, cwd=root, check=True, capture_output=True)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    root = tmp_path_factory.mktemp("tree")
    for path, text in TREE.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "a")
    return graph_of(root)


@pytest.fixture
def kinds(tree: Graph) -> Callable[[str, range], dict[str, str]]:
    def of(path: str, lines: range) -> dict[str, str]:
        return {each.file: each.kind.name for each in rank(tree, [Change(path, (lines,))])}

    return of


def test_a_file_needs_what_it_imports_and_what_its_texts_name(tree: Graph) -> None:
    assert tree.needs["tests/support/term.py"] == {"store/writer.py"}
    assert tree.needs["locker/kinds.py"] == {"locker/memory.py"}
    assert tree.needs["tests/acceptance/test_disk_of_page.py"] == {"tandemmq/__main__.py"}
    assert tree.needs["tests/acceptance/test_peer.py"] == {"tests/support/peer.c"}
    assert tree.needs["tests/unit/test_pages.py"] == {"docs/a.md"}
    assert tree.needs["tests/unit/locker/test_all.py"] == {"tests/unit/locker/conftest.py"}
    assert tree.distances("locker/memory.py")["tests/unit/locker/test_all.py"] == 3


def test_tests_are_of_a_kind_by_how_near_they_are(kinds: Callable[[str, range], dict[str, str]]) -> None:
    assert kinds("store/disk.py", range(5, 7)) == {
        "tests/unit/store/test_disk.py": "MIRROR",
        "tests/crash/test_unlinks.py": "NAMED",
        "tests/unit/store/test_room.py": "NEIGHBOUR",
        "tests/unit/store/test_writer.py": "NEIGHBOUR",
        "tests/acceptance/test_disk_of_page.py": "ALIKE",
        "tests/crash/test_power.py": "FAR",
    }
    assert kinds("store/writer.py", range(4, 5))["tests/crash/test_power.py"] == "PROOF"
    assert kinds("docs/a.md", range(1, 2)) == {"tests/unit/test_pages.py": "CHANGED"}


def test_of_a_file_that_is_gone_the_mirror_is_chosen(kinds: Callable[[str, range], dict[str, str]]) -> None:
    assert kinds("tests/unit/store/test_gone.py", range(0, 1)) == {}
    assert kinds("locker/all.py", range(0, 1)) == {"tests/unit/locker/test_all.py": "MIRROR"}


def test_a_change_names_the_functions_that_it_touches(tree: Graph) -> None:
    assert names_in(tree.root, Change("store/disk.py", (range(2, 3),))) == {"write_fully"}


def test_the_likeliest_run_first_and_the_budget_has_an_end(tree: Graph) -> None:
    change = Change("store/disk.py", (range(5, 7),))
    choice = choose(tree, [change], 0.7)
    assert choice.tests == ("tests/unit/store/test_disk.py", "tests/crash/test_unlinks.py")
    assert len(choice.left_out) == 4
    assert choose(tree, [change, Change("tests/unit/store/test_room.py", (range(1, 2),))], 0.4).tests == (
        "tests/unit/store/test_room.py",
    )
    assert [each.kind for each in choice.candidates] == [Kind.MIRROR, Kind.NAMED]


def test_changes_are_lines_of_files_and_files_that_are_new(tree: Graph) -> None:
    (tree.root / "store/disk.py").write_text(TREE["store/disk.py"].replace("2", "3"))
    (tree.root / "store/new.py").write_text("")
    try:
        changes = {each.path: each for each in changes_of(tree.root)}
        assert changes["store/disk.py"] == Change("store/disk.py", (range(6, 7),))
        assert changes["store/new.py"].touches(1, 1)
        assert len(changes) == 2
    finally:
        (tree.root / "store/new.py").unlink()
        git(tree.root, "checkout", "store/disk.py")
