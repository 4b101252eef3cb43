"""Find the forms that Technical English replaces: in the product's docstrings, comments and texts, and in the pages.

A docstring begins with a verb or with the noun that it describes; a page names the client, the user or the operator.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Final

from tests.support.tree import DIRECTORIES, ROOT

#: Openings of a docstring that do not name its subject.
_OPENING: Final = re.compile(
    r"(?:it|its|it's|they|them|their|he|she|his|her|this|that|these|those|there|one|ones|none|nobody|somebody|someone"
    r"|anybody|everybody|what|whatever|who|whom|whose|whoever|which|when|whenever|where|wherever|why|how|whether|if|so"
    r"|as|also|else|then)\b",
    re.IGNORECASE,
)
#: Who acts has a name: the client, the user, the operator, the broker. A setting is set, an address is advertised.
_REPLACED: Final = re.compile(
    r"\b(?:he|she|him|his|hers|himself|herself|somebody|someone|anybody|everybody|whoever|whom|whomever"
    r"|(?:is|are|was|were|be|been|being) (?:told|asked)|nobody)\b",
    re.IGNORECASE,
)
#: A name of the code, a command or an address, which a text must spell as it is.
_CODE: Final = re.compile(r"``[^`]*``|`[^`]*`|https?://\S+")
#: Released entries of the changelog are history.
_PAGES: Final = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "deploy/**/*.md", "examples/**/*.md")


def docstring_openings() -> list[str]:
    """Return the docstrings of the product that begin with a pronoun or a question word, also those of fields and
    constants."""
    return [
        f"{path}:{line}: {text.partition(chr(10))[0]}"
        for path, tree, source in _modules()
        for line, text in descriptions(tree, source)
        if _OPENING.match(text)
    ]


def replaced_words() -> list[str]:
    """Return the words that Technical English replaces, in pages and in the texts of the product's modules."""
    return [
        f"{path}:{line}: {found[0]}"
        for path, line, text in (*_page_lines(), *_texts())
        for found in _REPLACED.finditer(_CODE.sub("", text))
    ]


@cache
def _modules() -> list[tuple[str, ast.Module, str]]:
    files = sorted(file for name in ("tandemmq", *DIRECTORIES) for file in (ROOT / name).rglob("*.py"))
    sources = ((str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")) for file in files)
    return [(path, ast.parse(source), source) for path, source in sources]


def descriptions(tree: ast.Module, source: str) -> Iterator[tuple[int, str]]:
    """Yield docstrings, strings after a field or constant, and comments ``#:``: each with its line."""
    yield from _docstrings(tree)
    yield from _described(source)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield docstrings, and the strings after fields and constants that describe them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for before, statement in pairwise((None, *node.body)):
                if isinstance(before, ast.Assign | ast.AnnAssign | None) and isinstance(statement, ast.Expr):
                    text = statement.value
                    if isinstance(text, ast.Constant) and isinstance(text.value, str):
                        yield statement.lineno, text.value.strip()


def _described(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first lines of the comments ``#:``, each of which describes the next constant."""
    before = ""
    for number, line in enumerate(source.splitlines(), 1):
        mark, found, text = line.partition("#: ")
        if found and not mark.strip() and not before.lstrip().startswith("#: "):
            yield number, text
        before = line


def _page_lines() -> Iterator[tuple[str, int, str]]:
    """Yield the lines of the pages without their blocks of code."""
    for page in sorted({page for pattern in _PAGES for page in ROOT.glob(pattern)}):
        is_code = False
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            if line.lstrip().startswith("```"):
                is_code = not is_code
            elif not is_code and not line.startswith("    "):
                yield str(page.relative_to(ROOT)), number, line


def _texts() -> Iterator[tuple[str, int, str]]:
    """Yield comments and string literals, including docstrings. A literal of one word is left out, because it is a
    value, such as a role in JSON."""
    for path, tree, source in _modules():
        if not _REPLACED.search(source):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and not node.value.isidentifier():
                for number, line in enumerate(node.value.splitlines()):
                    yield path, node.lineno + number, line
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield path, token.start[0], token.string
