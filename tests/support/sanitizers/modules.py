"""A pytest plug-in that compiles and imports the C modules, before other modules of the tree are imported."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.support.journal.compiler import compile_c
from tests.support.tree import ROOT


def _import_all() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    directory = Path(tempfile.mkdtemp(prefix="tandemmq-sanitized-"))  # kept, because reports refer to the libraries
    for path in settings["tool"]["hatch"]["build"]["hooks"]["custom"]["native"]:
        name = f"tandemmq.{path.removesuffix('.c').replace('/', '.')}"
        library = directory / f"{name}.so"
        compile_c(ROOT / path, library)
        spec = importlib.util.spec_from_file_location(name, library)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_import_all()
