"""Which files of the tree the site has: the pages where they lie, so that their links hold, and what these link to."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = ("README.md", "CHANGELOG.md", "docs/**/*.md", "deploy/**/*.md", "examples/**/*.md", "bench/README.md")
INDEX: Final = ROOT / "docs" / "README.md"
STYLE: Final = "docs/site/extra.css"
_LINK = re.compile(r"\]\(([^)\s#:]+)[^)]*\)")


@event_priority(100)  # before plugins, which look for pages by their place in the tree
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The theme's files stay; those of docs_dir have their place in the tree instead."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    pages = sorted({page for pattern in PAGES for page in ROOT.glob(pattern)})
    linked = {target for page in pages for target in _linked(page) if target.is_file() and target.is_relative_to(ROOT)}
    for path in sorted({*pages, *linked, ROOT / STYLE}):
        uri = path.relative_to(ROOT).as_posix()
        files.append(File(uri, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A directory has no page: who follows a link to one comes to the list of all pages."""
    here = (ROOT / page.file.src_uri).parent
    index = os.path.relpath(INDEX, here)
    return _LINK.sub(lambda link: f"]({index})" if (here / link[1]).is_dir() else link[0], markdown)


def _linked(page: Path) -> set[Path]:
    return {(page.parent / target).resolve() for target in _LINK.findall(page.read_text())}
