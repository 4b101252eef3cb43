"""Writes the lists that pages hold and the sizes that tests compare, so that neither is typed by hand.

    python -m tests.support.lists              write them (`make lists`); fail if a size grew
    python -m tests.support.lists --grow       write them, also those that grew
    python -m tests.support.lists --check      write nothing; exit code 1 if something would change
    python -m tests.support.lists private      print the list behind a size, here of private accesses

A list stands in its page between ``<!-- list: NAME -->`` and ``<!-- end of list -->``. The sizes are in sizes.txt: a
test fails when one grew, and prints nothing else of the list, which is for reading.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from tandemmq.broker.ha import locks
from tandemmq.broker.security import access, setup
from tandemmq.broker.settings import engine, policies, store
from tandemmq.broker.settings.copying import SettingsCopy
from tandemmq.cli.doctor.errors_command import failure_table
from tandemmq.config.section import Section
from tandemmq.config.settings import Settings
from tests.support import language
from tests.support.broker import functions_crossed
from tests.support.config import tables
from tests.support.tree import ROOT, TESTS

SIZES_FILE: Final = Path(__file__).with_name("sizes.txt")
END: Final = "<!-- end of list -->"


class Listing(NamedTuple):
    """``page`` below docs/; ``make`` gives what stands between the marks."""

    page: str
    make: Callable[[], str]


@cache
def functions() -> str:
    """The functions that a message crosses, as Markdown; docs/architecture.md holds them."""
    with tempfile.TemporaryDirectory() as directory:
        return functions_crossed.listing(asyncio.run(functions_crossed.trace_messages(directory)))


#: By name.
LISTS: Final[Mapping[str, Listing]] = {
    "events": Listing("logging.md", tables.event_table),
    "failures": Listing("troubleshooting.md", failure_table),
    "functions": Listing("architecture.md", functions),
    "kahadb": Listing("kahadb-settings.md", tables.kahadb_tables),
    "leveldb": Listing("replication.md", tables.leveldb_tables),
    "metrics": Listing("metrics.md", tables.metric_tables),
    "policies": Listing("policies.md", tables.policy_tables),
    "settings": Listing("settings.md", tables.settings_table),
}


def begin(name: str) -> str:
    return f"<!-- list: {name} -->"


def written(name: str) -> str:
    """Return the text of the page."""
    text = (ROOT / "docs" / LISTS[name].page).read_text(encoding="utf-8")
    _, found, rest = text.partition(f"{begin(name)}\n")
    assert found, f"docs/{LISTS[name].page} has no {begin(name)}"
    return rest.partition(END)[0].strip()


def write(name: str, content: str) -> None:
    page = ROOT / "docs" / LISTS[name].page
    before, mark, rest = page.read_text(encoding="utf-8").partition(f"{begin(name)}\n")
    page.write_text(f"{before}{mark}\n{content.strip()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


# ---- sizes

#: Public, though they begin with an underscore.
_PUBLIC = frozenset({"_asdict", "_exit", "_field_defaults", "_fields", "_make", "_replace"})
_PATCHES = frozenset({"monkeypatch", "patch", "patches"})
_COUNTED = re.compile(r"(?<!\bself)(?<!\bcls)\._[a-zA-Z]|\.setattr\(")
#: In the list of functions.
_COUNT = re.compile(r"\*\*(.+): (\d+) functions in \d+ files\*\*")


@cache
def _parsed() -> list[tuple[str, ast.Module]]:
    """The tests that may have something to count."""
    sources = ((file, file.read_text(encoding="utf-8")) for file in sorted(TESTS.rglob("*.py")))
    return [(str(file.relative_to(ROOT)), ast.parse(source)) for file, source in sources if _COUNTED.search(source)]


def private_accesses() -> list[str]:
    """In tests, attributes of other objects whose name begins with an underscore."""
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in _parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.match("_[^_]", node.attr)
        and node.attr not in _PUBLIC
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]


def patches() -> list[str]:
    """In tests, what monkeypatch replaces."""
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in _parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "setattr"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in _PATCHES
    ]


def copies() -> list[SettingsCopy[Any, Any]]:
    """All that copy settings by name."""
    modules = (access, engine, locks, policies, setup, store)
    return [value for module in modules for value in vars(module).values() if isinstance(value, SettingsCopy)]


def _sections(annotation: Any) -> Iterator[type[Section]]:
    """All tables of settings below one."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
        for field in annotation.model_fields.values():
            yield from _sections(field.annotation)
    for inner in get_args(annotation):
        yield from _sections(inner)


def sections_not_copied() -> list[str]:
    """Tables of settings of which nothing is copied by name: they are read as they are, or hold other tables."""
    copied = {copy.section for copy in copies()}
    return sorted(each.__name__ for each in set(_sections(Settings)) if not copied & set(each.__mro__))


#: Names of sizes and the lists behind them.
COUNTED: Final[Mapping[str, Callable[[], list[str]]]] = {
    "docstring-openings": language.docstring_openings,
    "patches": patches,
    "private": private_accesses,
    "replaced-words": language.replaced_words,
    "sections-not-copied": sections_not_copied,
}


def sizes_of_functions(listing: str) -> dict[str, int]:
    """Return the titles of the parts of the list of functions."""
    return {f"functions: {title}": int(count) for title, count in _COUNT.findall(listing)}


def recorded() -> dict[str, int]:
    lines = SIZES_FILE.read_text(encoding="utf-8").splitlines() if SIZES_FILE.exists() else []
    return {name: int(size) for size, name in (line.split(" ", 1) for line in lines)}


def record(sizes: Mapping[str, int]) -> None:
    SIZES_FILE.write_text("".join(f"{size} {name}\n" for name, size in sorted(sizes.items())), encoding="utf-8")


def _changes() -> Iterator[tuple[str, str]]:
    for name, listing in LISTS.items():
        content = listing.make()
        if content.strip() != written(name):
            yield name, content


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.lists", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=sorted({*COUNTED, *LISTS}), help="print this list")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--grow", action="store_true", help="a size may be larger than before")
    arguments = parser.parse_args()
    if arguments.name in COUNTED:
        found = COUNTED[arguments.name]()
        print(*found, f"{len(found)} in all", sep="\n")
        return 0
    if arguments.name is not None:
        print(LISTS[arguments.name].make())
        return 0

    changed = False
    for name, content in _changes():
        changed = True
        print(f"docs/{LISTS[name].page}: {name}")
        if not arguments.check:
            write(name, content)
    before = recorded()
    sizes = {name: len(make()) for name, make in COUNTED.items()} | sizes_of_functions(functions())
    grown = {name: size for name, size in sizes.items() if size > before.get(name, size) and not arguments.grow}
    for name, size in sorted(sizes.items()):
        if size != before.get(name):
            print(f"{name}: {before.get(name, 0)} -> {size}{' grew: make it fit, or --grow' if name in grown else ''}")
    if not arguments.check and sizes != before:
        record(sizes | {name: before[name] for name in grown})
    return 1 if grown or (arguments.check and (changed or sizes != before)) else 0


if __name__ == "__main__":
    sys.exit(main())
